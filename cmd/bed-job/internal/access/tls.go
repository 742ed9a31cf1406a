package access

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"time"
)

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
