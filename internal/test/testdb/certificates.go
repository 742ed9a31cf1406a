package testdb

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// Authority issues certificates for a test's servers and clients.
type Authority struct {
	// CA is the file with its own certificate, and Dir the directory of all files.
	CA, Dir string

	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// NewAuthority makes an authority. account owns its files, if the test runs as root: a server's
// account reads them, and nobody else the keys.
func NewAuthority(t testing.TB, account string) *Authority {
	t.Helper()
	// The server's account cannot enter t.TempDir.
	dir, err := os.MkdirTemp("", dirPrefix+"ca-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := own(dir, account); err != nil {
		t.Fatal(err)
	}
	a := &Authority{Dir: dir}
	a.CA, _ = a.Issue(t, account, "authority", time.Hour)
	return a
}

// Issue makes a certificate and its key, which are valid for so long from now; a negative time makes
// an expired one. The subject and the files have the name; 127.0.0.1, localhost and hosts are its
// other names. It replaces the files of an earlier call.
func (a *Authority) Issue(t testing.TB, account, name string, valid time.Duration, hosts ...string) (cert, key string) {
	t.Helper()
	must := func(err error) {
		if err != nil {
			t.Helper()
			t.Fatal(err)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(err)
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	must(err)
	form := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(valid),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    append([]string{"localhost"}, hosts...), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	if a.cert == nil { // its own
		form.IsCA, form.BasicConstraintsValid, form.KeyUsage = true, true, x509.KeyUsageCertSign|x509.KeyUsageDigitalSignature
		form.DNSNames, form.IPAddresses, form.ExtKeyUsage = nil, nil, nil
		a.cert, a.key = form, private
	}
	der, err := x509.CreateCertificate(rand.Reader, form, a.cert, &private.PublicKey, a.key)
	must(err)
	if form == a.cert {
		a.cert, err = x509.ParseCertificate(der)
		must(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(err)
	write := func(suffix string, block *pem.Block) string {
		file := filepath.Join(a.Dir, name+suffix)
		// As a secret is replaced: a reader meets the old file or the new one.
		must(os.WriteFile(file+".new", pem.EncodeToMemory(block), 0o600))
		must(own(file+".new", account))
		must(os.Rename(file+".new", file))
		return file
	}
	return write(".crt", &pem.Block{Type: "CERTIFICATE", Bytes: der}), write(".key", &pem.Block{Type: "PRIVATE KEY", Bytes: secret})
}
