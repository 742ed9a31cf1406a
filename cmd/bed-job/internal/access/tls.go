package access

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Config reads the files and returns the configuration of a new connection to host. If host is
// empty, the client fills it in, and Explain completes the error of its handshake.
func (a *Access) Config(host string) (*tls.Config, error) {
	k, cfg := a.TLS, &tls.Config{ServerName: cmp.Or(a.TLS.ServerName, host)}
	if k.CA != "" {
		var err error
		if _, cfg.RootCAs, err = certificates("tls.ca", k.CA); err != nil {
			return nil, err
		}
	}
	if k.Cert != "" {
		pair, err := k.pair()
		if err != nil {
			return nil, err
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	if host != "" {
		cfg.InsecureSkipVerify = true // verify does the same, with the keys in its errors
		cfg.VerifyConnection = func(s tls.ConnectionState) error { return a.verify(cfg, s) }
	}
	return cfg, nil
}

// certificates reads the file behind a key.
func certificates(key, file string) ([]byte, *x509.CertPool, error) {
	text, err := read(file)
	pool := x509.NewCertPool()
	if err == nil && !pool.AppendCertsFromPEM(text) {
		err = errors.New("it holds no certificate in PEM form")
	}
	if err != nil {
		return nil, nil, &Error{key, file, err}
	}
	return text, pool, nil
}

// pair reads the client's certificate and its key.
func (k *TLS) pair() (pair tls.Certificate, err error) {
	cert, _, err := certificates("tls.cert", k.Cert)
	if err != nil {
		return pair, err
	}
	key, err := read(k.Key)
	if err == nil {
		if pair, err = tls.X509KeyPair(cert, key); err != nil {
			err = fmt.Errorf("it does not fit the certificate in tls.cert %s: %w", k.Cert, err)
		}
	}
	if err != nil {
		return pair, &Error{"tls.key", k.Key, err}
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	switch now := time.Now(); {
	case err != nil:
	case now.After(leaf.NotAfter):
		err = fmt.Errorf("the certificate expired at %s", leaf.NotAfter.Format(time.RFC3339))
	case now.Before(leaf.NotBefore):
		err = fmt.Errorf("the certificate is not valid before %s", leaf.NotBefore.Format(time.RFC3339))
	}
	if err != nil {
		return pair, &Error{"tls.cert", k.Cert, err}
	}
	return pair, nil
}

// verify verifies the server's certificate as package tls does.
func (a *Access) verify(cfg *tls.Config, s tls.ConnectionState) error {
	opts := x509.VerifyOptions{Roots: cfg.RootCAs, DNSName: cfg.ServerName, Intermediates: x509.NewCertPool()}
	for _, c := range s.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(opts)
	return a.Explain(err)
}

// Explain adds the key to the error of a handshake; it returns any other error as it is.
func (a *Access) Explain(err error) error {
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case !a.HasTLS() || errors.As(err, new(*Error)):
		return err
	case errors.As(err, &name):
		if a.TLS.ServerName == "" {
			return &Error{"tls.serverName", "(not set)", fmt.Errorf("the server's certificate is not for the DSN's host: %w", err)}
		}
		return &Error{"tls.serverName", a.TLS.ServerName, fmt.Errorf("the server's certificate has other names: %w", err)}
	case errors.As(err, &unknown), errors.As(err, &invalid) && invalid.Cert != nil && invalid.Cert.IsCA:
		return &Error{"tls.ca", cmp.Or(a.TLS.CA, "(not set)"), fmt.Errorf("it does not vouch for the server's certificate: %w", err)}
	case errors.As(err, &invalid):
		return fmt.Errorf("tls: the server's own certificate is not valid: %w", err)
	}
	return err
}

// BeforeConnect sets certificates and password in the configuration of a driver for one connection.
func (a *Access) BeforeConnect(ctx context.Context, cfg any) (err error) {
	switch c := cfg.(type) {
	case *mysql.Config:
		if a.HasPassword() {
			c.Passwd, err = a.Password(ctx)
		}
		if host, _, _ := net.SplitHostPort(c.Addr); err == nil && a.HasTLS() {
			c.TLS, err = a.Config(host)
		}
	case *pgx.ConnConfig:
		if a.HasPassword() {
			c.Password, err = a.Password(ctx)
		}
		if err == nil && a.HasTLS() {
			err = a.encrypt(c)
		}
	}
	return err
}

// encrypt leaves only encrypted connections, one for each address.
func (a *Access) encrypt(c *pgx.ConnConfig) error {
	type address struct {
		host string
		port uint16
	}
	all, seen := []*pgconn.FallbackConfig{}, map[address]bool{}
	for _, f := range append([]*pgconn.FallbackConfig{{Host: c.Host, Port: c.Port}}, c.Fallbacks...) {
		if seen[address{f.Host, f.Port}] {
			continue
		}
		seen[address{f.Host, f.Port}] = true
		cfg, err := a.Config(f.Host)
		if err != nil {
			return err
		}
		all = append(all, &pgconn.FallbackConfig{Host: f.Host, Port: f.Port, TLSConfig: cfg})
	}
	c.TLSConfig, c.Fallbacks = all[0].TLSConfig, all[1:]
	return nil
}
