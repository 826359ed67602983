// Package testca makes certificates for tests, so that none lies in the
// repository and grows old there.
package testca

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
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

// A CA signs certificates.
type CA struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// A Pair is a certificate and its key, in PEM.
type Pair struct {
	t         testing.TB
	Cert, Key []byte
}

var serial int64

// New returns an authority of its own. It is valid around the year 2000, when the
// time in a synctest bubble begins, as well as now.
func New(t testing.TB) *CA {
	t.Helper()
	ca := &CA{t: t, key: newKey(t)}
	template := fill(x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, Subject: pkix.Name{CommonName: "test CA"}})
	der, err := x509.CreateCertificate(rand.Reader, template, template, &ca.key.PublicKey, ca.key)
	if err == nil {
		ca.cert, err = x509.ParseCertificate(der)
	}
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// fill completes a certificate with what all have.
func fill(c x509.Certificate) *x509.Certificate {
	serial++
	c.SerialNumber = big.NewInt(serial)
	if c.NotBefore.IsZero() {
		c.NotBefore = time.Date(1999, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	if c.NotAfter.IsZero() {
		c.NotAfter = time.Date(2099, 1, 1, 0, 0, 0, 0, time.UTC)
	}
	return &c
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// PEM returns the authority's own certificate.
func (ca *CA) PEM() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

// Pool returns the authority as what a peer trusts.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Issue signs what template says, by default a certificate for both sides of a
// connection, for the host "broker" and the loopback addresses.
func (ca *CA) Issue(template x509.Certificate) Pair {
	ca.t.Helper()
	key := newKey(ca.t)
	if template.ExtKeyUsage == nil {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	}
	if template.DNSNames == nil {
		template.DNSNames = []string{"broker", "localhost"}
	}
	template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, fill(template), ca.cert, &key.PublicKey, ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		ca.t.Fatal(err)
	}
	return Pair{ca.t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})}
}

// TLS returns the pair as one side of a connection presents it.
func (p Pair) TLS() tls.Certificate {
	p.t.Helper()
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// Write puts the pair into dir and returns the paths; the key is closed to others.
func (p Pair) Write(dir, name string) (cert, key string) {
	return Write(p.t, dir, name+".crt", p.Cert, 0o644), Write(p.t, dir, name+".key", p.Key, 0o600)
}

// Write puts a file into dir, over one that is there, and returns its path.
func Write(t testing.TB, dir, name string, data []byte, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, data, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}
