// Package access holds the certificates and passwords of a data source, which may change while
// bed-job runs. Each new connection reads them again.
package access

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// Keys are the keys of a data source besides its driver and DSN.
type Keys struct {
	TLS *TLS
	// PasswordFile is a file with the password, and PasswordCommand a program, with its arguments,
	// that prints it.
	PasswordFile    string
	PasswordCommand []string
	// PasswordTTL is how long a printed password is valid; 0 runs the command for each connection.
	PasswordTTL time.Duration
}

// TLS are the keys below tls.
type TLS struct{ CA, Cert, Key, ServerName string }

// Access is how to log in to a data source. It is safe for concurrent use. A nil one leaves
// everything to the DSN.
type Access struct {
	Keys
	// turn lets one connection at a time run the command for all.
	turn   chan struct{}
	cached string
	until  time.Time

	mu sync.Mutex
	// shown are the last two passwords.
	shown [2]string
}

// New checks that the keys fit each other. It reads no files.
func New(k Keys) (*Access, error) {
	switch t := k.TLS; {
	case t != nil && t.Cert != "" && t.Key == "":
		return nil, errors.New("tls.cert needs tls.key, the private key of the certificate")
	case t != nil && t.Key != "" && t.Cert == "":
		return nil, errors.New("tls.key needs tls.cert, the certificate of the private key")
	case k.PasswordFile != "" && len(k.PasswordCommand) > 0:
		return nil, errors.New("passwordFile and passwordCommand exclude each other")
	case len(k.PasswordCommand) > 0 && k.PasswordCommand[0] == "":
		return nil, errors.New("passwordCommand names no program")
	case k.PasswordTTL > 0 && len(k.PasswordCommand) == 0:
		return nil, errors.New("passwordTTLMillis needs passwordCommand")
	}
	return &Access{Keys: k, turn: make(chan struct{}, 1)}, nil
}

// HasTLS and HasPassword report whether the keys replace the DSN's.
func (a *Access) HasTLS() bool { return a != nil && a.TLS != nil }
func (a *Access) HasPassword() bool {
	return a != nil && (a.PasswordFile != "" || len(a.PasswordCommand) > 0)
}

// Check refuses a DSN that says the same as the keys. tls names the DSN's own settings of TLS, if it
// has any, and password reports whether it has a password.
func (a *Access) Check(tls string, password bool) error {
	switch {
	case a.HasTLS() && tls != "":
		return fmt.Errorf("its DSN has %s, and the data source has tls: remove one of the two", tls)
	case a.HasPassword() && password:
		return errors.New("its DSN has a password, and the data source passwordFile or passwordCommand: remove one of the two")
	}
	return nil
}

// Error is a problem with the file, program or name behind a key.
type Error struct {
	Key, Of string
	Err     error
}

func (e *Error) Error() string { return strings.TrimSpace(e.Key+" "+e.Of) + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

const (
	// commandTime bounds a run of a password's command.
	commandTime = 30 * time.Second
	// most bounds a password in bytes. Tokens of clouds have a few thousand.
	most = 64 << 10
)

// Password returns the password for a new connection. Errors never quote the output of a command.
func (a *Access) Password(ctx context.Context) (string, error) {
	var password string
	var err error
	if a.PasswordFile != "" {
		var text []byte
		if text, err = read(a.PasswordFile); err == nil {
			password, err = line(text)
		}
		if err != nil {
			return "", &Error{"passwordFile", a.PasswordFile, err}
		}
	} else if password, err = a.printed(ctx); err != nil {
		return "", &Error{"passwordCommand", a.PasswordCommand[0], err}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if password != a.shown[0] {
		a.shown = [2]string{password, a.shown[0]}
	}
	return password, nil
}

// printed returns a command's password, which serves for nine tenths of its time.
func (a *Access) printed(ctx context.Context) (string, error) {
	if a.PasswordTTL <= 0 {
		return run(ctx, a.PasswordCommand)
	}
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return "", ctx.Err()
	}
	if time.Now().Before(a.until) {
		return a.cached, nil
	}
	asked := time.Now()
	password, err := run(ctx, a.PasswordCommand)
	if err == nil {
		a.cached, a.until = password, asked.Add(a.PasswordTTL/10*9)
	}
	return password, err
}

// run runs a command without a shell. What it writes to standard error is dropped: it may hold a
// secret.
func run(ctx context.Context, command []string) (string, error) {
	bounded, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(bounded, command[0], command[1:]...) //nolint:gosec // the operator's own
	cmd.WaitDelay = time.Second                                     // for children that keep the pipe open
	out := &limited{stop: cancel}
	cmd.Stdout = out
	err := cmd.Run()
	var status *exec.ExitError
	var file *fs.PathError
	switch {
	case out.over:
		return "", fmt.Errorf("it printed more than %d bytes", most)
	case bounded.Err() != nil:
		return "", fmt.Errorf("it did not end in time: %w", bounded.Err())
	case errors.As(err, &status):
		return "", fmt.Errorf("it failed (%v): run it by hand to see why", status)
	case errors.As(err, &file):
		return "", file.Err
	case err != nil:
		return "", err
	}
	return line(out.text)
}

// limited keeps an output of at most most bytes, and calls stop for a longer one.
type limited struct {
	text []byte
	over bool
	stop func()
}

func (l *limited) Write(p []byte) (int, error) {
	if l.over = l.over || len(l.text)+len(p) > most; l.over {
		l.stop()
		return 0, errors.New("too long")
	}
	l.text = append(l.text, p...)
	return len(p), nil
}

// line returns the only line of a text.
func line(text []byte) (string, error) {
	s := strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
	switch {
	case s == "":
		return "", errors.New("it holds no password")
	case strings.ContainsAny(s, "\r\n"):
		return "", errors.New("it holds more than one line, and the password is one")
	}
	return s, nil
}

// read reads a file of a password, a certificate or a key.
func read(name string) ([]byte, error) {
	text, err := os.ReadFile(name) //nolint:gosec // the operator's own
	var file *fs.PathError
	if errors.As(err, &file) {
		err = file.Err // its text has the name again
	}
	if err == nil && len(text) > 1<<20 {
		err = errors.New("it is larger than 1 MiB")
	}
	return text, err
}

// Hide replaces the last passwords in a text for an operator.
func (a *Access) Hide(text string) string {
	if a == nil {
		return text
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, password := range a.shown {
		if password != "" {
			text = strings.ReplaceAll(text, password, "***")
		}
	}
	return text
}
