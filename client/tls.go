package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"os"
	"strconv"
)

// TLSFiles says how to reach brokers by TLS, as a command line or a file of settings
// does. The zero value does not encrypt.
type TLSFiles struct {
	On         bool   // encrypt, also if nothing below is set
	CA         string // PEM file of the authorities to believe; empty: those of the system
	Cert, Key  string // PEM files of this client's certificate; both or neither
	ServerName string // name in the brokers' certificates; empty: the host dialled
}

// Flags adds --tls, --tls-ca, --tls-cert, --tls-key and --tls-server-name to set.
// Their defaults come from the environment: TERALOG_CLIENT_TLS, which is a bool,
// TERALOG_CLIENT_TLS_CA and so on.
func (f *TLSFiles) Flags(set *flag.FlagSet) {
	asked := os.Getenv("TERALOG_CLIENT_TLS")
	on, err := strconv.ParseBool(asked)
	on = on || err != nil && asked != "" // who writes "yes" means it
	set.BoolVar(&f.On, "tls", on, "encrypt, and believe the system's authorities; each flag of TLS below does so, too (TERALOG_CLIENT_TLS)")
	text := func(to *string, name, env, doc string) {
		set.StringVar(to, name, os.Getenv(env), doc+" ("+env+")")
	}
	text(&f.CA, "tls-ca", "TERALOG_CLIENT_TLS_CA", "PEM file of the authorities to believe instead")
	text(&f.Cert, "tls-cert", "TERALOG_CLIENT_TLS_CERT", "PEM file of our own certificate")
	text(&f.Key, "tls-key", "TERALOG_CLIENT_TLS_KEY", "PEM file of its key")
	text(&f.ServerName, "tls-server-name", "TERALOG_CLIENT_TLS_SERVER_NAME", "name in the brokers' certificates (by default the host in --servers)")
}

// Config reads the files: what Options.TLS takes, nil if nothing is to be encrypted.
// The brokers' certificates are always verified.
func (f TLSFiles) Config() (*tls.Config, error) {
	if f == (TLSFiles{}) {
		return nil, nil
	}
	c := &tls.Config{ServerName: f.ServerName, MinVersion: tls.VersionTLS12}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("authorities: %s holds no certificate in PEM", f.CA)
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
		return c, nil
	case f.Cert == "" || f.Key == "":
		return nil, errors.New("a certificate needs its key, and a key its certificate")
	}
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate %s with key %s: %w", f.Cert, f.Key, err)
	}
	c.Certificates = []tls.Certificate{pair}
	return c, nil
}
