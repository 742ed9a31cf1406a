// Package access holds the certificates and passwords of a data source, which may change while
// bed-job runs. Each new connection reads them again.
package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"regexp"
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
	// Headers are added to each call of a service, HeaderFiles from files. Timeout bounds a call; 0
	// leaves that to the delivery.
	Headers, HeaderFiles map[string]string
	Timeout              time.Duration
}

// TLS are the keys below tls.
type TLS struct{ CA, Cert, Key, ServerName string }

// Access is how to log in to a data source. It is safe for concurrent use. A nil one leaves
// everything to the DSN.
type Access struct {
	Keys
	// turn lets one connection at a time run the command for all. It guards printed and until.
	turn    chan struct{}
	printed []byte
	until   time.Time

	mu sync.Mutex
	// last are the last two passwords.
	last [2]string
}

var (
	tlsOfDSN      = regexp.MustCompile(`(?i)(?:^amqp:/()|(?:^|[?&\s])(tls|ssl\w+|certfile|keyfile|cacertfile|server_name_indication)\s*=)`)
	passwordOfDSN = regexp.MustCompile(`^[^:@/?]*:[^@/?]*@|(?i:(?:^|[?&\s])(?:password|credentials)\s*=)`)
)

// New checks that the keys fit each other and the DSN. It reads no files.
func New(k Keys, dsn string) (*Access, error) {
	_, rest, isURL := strings.Cut(dsn, "://")
	if !isURL {
		rest = dsn
	}
	t, said := k.TLS, tlsOfDSN.FindStringSubmatch(dsn)
	switch byCommand := len(k.PasswordCommand) > 0; {
	case t != nil && said != nil && said[2] == "":
		return nil, errors.New("its DSN begins with amqp://, and tls needs amqps://")
	case t != nil && said != nil:
		return nil, fmt.Errorf("its DSN has the parameter %s, and the data source has tls: remove one of the two", said[2])
	case t != nil && (t.Cert == "") != (t.Key == ""):
		return nil, errors.New("tls.cert and tls.key, the certificate and its private key, need each other")
	case k.PasswordFile != "" && byCommand:
		return nil, errors.New("passwordFile and passwordCommand exclude each other")
	case k.PasswordTTL > 0 && !byCommand:
		return nil, errors.New("passwordTTLMillis needs passwordCommand")
	case byCommand && k.PasswordCommand[0] == "":
		return nil, errors.New("passwordCommand names no program")
	case (byCommand || k.PasswordFile != "") && passwordOfDSN.MatchString(rest):
		return nil, errors.New("its DSN has a password or credentials, and the data source passwordFile or passwordCommand: remove one of the two")
	}
	return &Access{Keys: k, turn: make(chan struct{}, 1)}, nil
}

// HasTLS and HasPassword report whether the keys complete the DSN.
func (a *Access) HasTLS() bool { return a != nil && a.TLS != nil }
func (a *Access) HasPassword() bool {
	return a != nil && (a.PasswordFile != "" || len(a.PasswordCommand) > 0)
}

// HasCredentials reports whether the keys give a call of a service credentials.
func (a *Access) HasCredentials() bool {
	return a.HasPassword() || a != nil && len(a.Headers)+len(a.HeaderFiles) > 0
}

// Error is a problem with the file, program or name behind a key.
type Error struct {
	Key, Of string
	Err     error
}

func (e *Error) Error() string { return e.Key + " " + e.Of + ": " + e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// commandTime bounds a run of a password's command, most its output in bytes.
const (
	commandTime = 30 * time.Second
	most        = 1 << 20
)

// Password returns the password for a new connection; own is the DSN's. Errors never quote the
// output of a command.
func (a *Access) Password(ctx context.Context, own string) (password string, err error) {
	if !a.HasPassword() {
		return own, nil
	}
	key, of := "passwordFile", a.PasswordFile
	var text []byte
	if of != "" {
		text, err = os.ReadFile(of) //nolint:gosec // the operator's own
	} else {
		key, of = "passwordCommand", a.PasswordCommand[0]
		text, err = a.ask(ctx)
	}
	if err == nil {
		password, err = line(text)
	}
	if err != nil {
		return "", &Error{key, of, bare(err)}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if password != a.last[0] {
		a.last = [2]string{password, a.last[0]}
	}
	return password, nil
}

// Hide replaces the last passwords in a text for an operator.
func (a *Access) Hide(text string) string {
	if !a.HasPassword() {
		return text
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, password := range a.last {
		if password != "" {
			text = strings.ReplaceAll(text, password, "***")
		}
	}
	return text
}

// ask runs the command, unless the last password has a tenth of its time left.
func (a *Access) ask(ctx context.Context) (printed []byte, err error) {
	if a.PasswordTTL <= 0 {
		return run(ctx, a.PasswordCommand)
	}
	select {
	case a.turn <- struct{}{}:
		defer func() { <-a.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	asked := time.Now()
	if asked.Before(a.until) {
		return a.printed, nil
	}
	if printed, err = run(ctx, a.PasswordCommand); err == nil {
		a.printed, a.until = printed, asked.Add(a.PasswordTTL/10*9)
	}
	return printed, err
}

// run runs a command without a shell. It drops standard error, which may hold a secret.
func run(ctx context.Context, command []string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, command[0], command[1:]...) //nolint:gosec // the operator's own
	out := &limited{stop: cancel}
	cmd.Stdout, cmd.WaitDelay = out, time.Second // children may keep the pipe open
	err := cmd.Run()
	switch {
	case len(out.text) > most:
		err = fmt.Errorf("it printed more than %d bytes", most)
	case ctx.Err() != nil:
		err = fmt.Errorf("it did not end in time: %w", ctx.Err())
	case errors.As(err, new(*exec.ExitError)):
		err = fmt.Errorf("it failed (%w): run it by hand to see why", err)
	}
	return out.text, err
}

// limited keeps an output, and calls stop when it has more than most bytes.
type limited struct {
	text []byte
	stop func()
}

func (l *limited) Write(p []byte) (int, error) {
	if l.text = append(l.text, p...); len(l.text) > most {
		l.stop()
		return 0, errors.New("too long")
	}
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

// bare is an error without the name of its file.
func bare(err error) error {
	var file *fs.PathError
	if errors.As(err, &file) {
		return file.Err
	}
	return err
}

// Config returns the configuration of connections to host. Each handshake reads the files again.
func (a *Access) Config(host string) *tls.Config {
	name := cmp.Or(a.TLS.ServerName, host)
	return &tls.Config{
		ServerName: name,
		// verify does the same, with the keys in its errors.
		InsecureSkipVerify:   true,
		VerifyConnection:     func(s tls.ConnectionState) error { return a.TLS.verify(name, s) },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return a.TLS.pair() },
	}
}

// certificates reads the file behind a key.
func certificates(key, file string) ([]byte, *x509.CertPool, error) {
	text, err := os.ReadFile(file) //nolint:gosec // the operator's own
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = errors.New("it holds no certificate in PEM form")
	}
	if err != nil {
		return nil, nil, &Error{key, file, bare(err)}
	}
	return text, pool, nil
}

// pair reads the client's certificate and its key; the pair is empty without the keys.
func (k *TLS) pair() (*tls.Certificate, error) {
	if k.Cert == "" {
		return new(tls.Certificate), nil
	}
	cert, _, err := certificates("tls.cert", k.Cert)
	if err != nil {
		return nil, err
	}
	var pair tls.Certificate
	key, err := os.ReadFile(k.Key)
	if err == nil {
		if pair, err = tls.X509KeyPair(cert, key); err != nil {
			err = fmt.Errorf("it does not fit the certificate in tls.cert %s: %w", k.Cert, err)
		}
	}
	if err != nil {
		return nil, &Error{"tls.key", k.Key, bare(err)}
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if now := time.Now(); err == nil && (now.After(leaf.NotAfter) || now.Before(leaf.NotBefore)) {
		err = fmt.Errorf("the certificate has expired or is not yet valid: it is from %s to %s", leaf.NotBefore.Format(time.RFC3339), leaf.NotAfter.Format(time.RFC3339))
	}
	if err != nil {
		return nil, &Error{"tls.cert", k.Cert, err}
	}
	return &pair, nil
}

// verify verifies the server's certificate as package tls does. It also finds files of the client
// that the server does not ask for.
func (k *TLS) verify(name string, s tls.ConnectionState) error {
	opts := x509.VerifyOptions{DNSName: name, Intermediates: x509.NewCertPool()}
	_, err := k.pair()
	if name == "" {
		err = &Error{"tls.serverName", "(not set)", errors.New("the DSN has no host that the server's certificate could name")}
	}
	if err == nil && k.CA != "" {
		_, opts.Roots, err = certificates("tls.ca", k.CA)
	}
	if err != nil {
		return err
	}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err = s.PeerCertificates[0].Verify(opts)
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, new(x509.HostnameError)):
		return &Error{"tls.serverName", cmp.Or(k.ServerName, "(the DSN's "+name+")"), fmt.Errorf("the server's certificate has other names: %w", err)}
	case errors.As(err, &invalid) && invalid.Cert == s.PeerCertificates[0]:
		return fmt.Errorf("tls: the server's own certificate is not valid: %w", err)
	}
	return &Error{"tls.ca", cmp.Or(k.CA, "(not set)"), fmt.Errorf("it does not vouch for the server's certificate: %w", err)}
}
