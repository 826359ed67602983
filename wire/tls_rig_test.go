package wire

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"testing"

	"github.com/teralog/teralog/sim/testca"
)

// A kind of connection.
type kind string

const (
	plaintext kind = "plain"
	encrypted kind = "tls"
)

// both runs a test for connections of either kind.
func both(t *testing.T, f func(t *testing.T, k kind)) {
	for _, k := range []kind{plaintext, encrypted} {
		t.Run(string(k), func(t *testing.T) { f(t, k) })
	}
}

// serveTLSOn returns what serves encrypted connections, and what a client of them
// needs.
func serveTLSOn(t testing.TB, s *Server) (serve func(net.Listener) error, client *tls.Config) {
	ca := testca.New(t)
	server := &tls.Config{Certificates: []tls.Certificate{ca.Issue(x509.Certificate{}).TLS()}, DynamicRecordSizingDisabled: true}
	return func(ln net.Listener) error { return s.ServeTLS(ln, func() *tls.Config { return server }) },
		&tls.Config{RootCAs: ca.Pool()}
}
