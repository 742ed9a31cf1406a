package cli

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/term"
)

// maxPassword is how much of a password bcrypt takes, in bytes.
const maxPassword = 72

func hashCommand(a *app) *cobra.Command {
	var token bool
	cmd := &cobra.Command{
		Use:   "hash",
		Short: "Hash a password of the console, or a token, for the configuration",
		Long: `Hash a password of the console for passwordHash (bcrypt), or with --token a token for
tokenHash (SHA-256). On a terminal it asks twice without an echo; elsewhere it reads one line
from standard input. It takes no argument, because other users of the machine could see it.

Copy a password's hash into the configuration unchanged, including its dollar signs.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			secret, err := secretOf(a)
			switch {
			case err != nil:
				return err
			case len(secret) == 0:
				return errors.New("it is empty: nothing was hashed")
			case token:
				sum := sha256.Sum256(secret)
				_, err = fmt.Fprintln(a.Out, hex.EncodeToString(sum[:]))
				return err
			case len(secret) > maxPassword:
				return fmt.Errorf("the password has %d bytes, but bcrypt takes at most %d: choose a shorter one", len(secret), maxPassword)
			}
			hash, err := bcrypt.GenerateFromPassword(secret, 12)
			if err == nil {
				_, err = fmt.Fprintln(a.Out, string(hash))
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&token, "token", false, "hash a token: SHA-256, in lower-case hexadecimal digits")
	return cmd
}

// secretOf reads a line without showing it. A line break at its end does not belong to it.
func secretOf(a *app) ([]byte, error) {
	terminal, ok := a.In.(*os.File)
	if !a.InTTY || !ok {
		line, err := bufio.NewReader(io.LimitReader(a.In, 64<<10)).ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")), err
	}
	var said [2][]byte
	for i, prompt := range []string{"Secret: ", "Again: "} {
		fmt.Fprint(a.Err, prompt)
		line, err := term.ReadPassword(int(terminal.Fd()))
		fmt.Fprintln(a.Err)
		if err != nil {
			return nil, fmt.Errorf("the terminal cannot be read: %w", err)
		}
		said[i] = line
	}
	if !bytes.Equal(said[0], said[1]) {
		return nil, errors.New("the two differ: nothing was hashed")
	}
	return said[0], nil
}
