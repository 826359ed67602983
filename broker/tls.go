package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"
)

// A secure is what a broker serves encrypted connections with: a listener, and
// the certificate that its files held when they were read last.
type secure struct {
	files keyFiles
	ln    net.Listener           // nil: not served
	addr  atomic.Pointer[string] // told to clients that came by TLS
	now   atomic.Pointer[keys]
}

// keys are a certificate and whom it trusts, made ready. New ones come with
// secrets for session tickets of their own, so that a session which began under
// the old ones is not resumed.
type keys struct {
	config  *tls.Config // for clients
	peer    *tls.Config // for other nodes, on either side; nil: they talk in plaintext
	expires time.Time   // of the certificate or, if that is sooner, of one above it
}

// openSecure reads the files that c names; nil if it names none. What is wrong
// with them ends the process with exitConfig.
func openSecure(c Config) (*secure, error) {
	if c.TLSListen+c.PeerCA == "" {
		return nil, nil
	}
	s := &secure{files: c.keyFiles()}
	if err := s.load(time.Now()); err != nil {
		return nil, &exitError{exitConfig, err}
	}
	return s, nil
}

// load reads the files. After an error all is as it was.
func (s *secure) load(now time.Time) error {
	k, err := s.files.read(now)
	if err == nil {
		s.now.Store(k)
	}
	return err
}

func (s *secure) config() *tls.Config { return s.now.Load().config }

// peer is what to talk to other nodes with; nil: plaintext.
func (s *secure) peer() *tls.Config {
	if s == nil {
		return nil
	}
	return s.now.Load().peer
}

// unfit notes a connection that was ended for how it began.
func (b *Broker) unfit(reason, remote string, err error) {
	b.event(EventClientRefused, slog.String("reason", reason), slog.String("remote", remote), slog.Any("err", err))
}

// ServeTLS has Run serve encrypted connections on ln, too, with the certificate of
// the configuration, which must name one. It is called before Run.
func (b *Broker) ServeTLS(ln net.Listener) { b.secure.ln = ln }

// reload reads again what may change while the broker runs: certificates. They are
// for connections to come; those that are open live on.
func (b *Broker) reload() {
	s := b.secure
	if s == nil {
		b.log.Info("there is nothing to reload: TLS is not configured")
		return
	}
	if err := s.load(time.Now()); err != nil {
		b.event(EventCertificateRefused, slog.Any("err", err))
		return
	}
	b.event(EventCertificateLoaded, slog.String("cert", s.files.cert), slog.String("expires", s.now.Load().expires.UTC().Format(time.RFC3339)))
}

// reloadOn reloads at every signal until ctx is done.
func (b *Broker) reloadOn(ctx context.Context, signals <-chan os.Signal) {
	for {
		select {
		case <-signals:
			b.reload()
		case <-ctx.Done():
			return
		}
	}
}

// keyFiles names the files of TLS: by path, or as credential:NAME what the service
// manager has put into the directory credentials.
type keyFiles struct {
	cert, key   string
	clientCA    string // "": clients need no certificate
	peerCA      string // "": other nodes are talked to in plaintext
	credentials string
}

func (c *Config) keyFiles() keyFiles {
	return keyFiles{cert: c.TLSCert, key: c.TLSKey, clientCA: c.TLSClientCA, peerCA: c.PeerCA, credentials: os.Getenv("CREDENTIALS_DIRECTORY")}
}

// there reports whether this process can read the files: no other than one that the
// service manager started has credentials.
func (f keyFiles) there() bool {
	return f.credentials != "" || !slices.ContainsFunc([]string{f.cert, f.key, f.clientCA, f.peerCA},
		func(name string) bool { return strings.HasPrefix(name, credential) })
}

const credential = "credential:"

// maxKeyFile bounds a file that is read, inclusive.
const maxKeyFile = 1 << 20

// file returns what one setting names.
func (f keyFiles) file(setting, value string, private bool) (text []byte, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", setting, err)
		}
	}()
	path, closed := value, os.FileMode(0o077)
	if name, ok := strings.CutPrefix(value, credential); ok {
		if f.credentials == "" {
			return nil, fmt.Errorf("%s: no credentials were handed over (CREDENTIALS_DIRECTORY is not set); LoadCredential= of the unit does that", value)
		}
		if name == "" || name != filepath.Base(name) || name == ".." || name == "." {
			return nil, fmt.Errorf("%q does not name a credential", value)
		}
		// The directory is closed to others. A file in it may show the rights that an
		// access list gives to us as those of a group.
		path, closed = filepath.Join(f.credentials, name), 0o007
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	switch {
	case err != nil:
		return nil, err
	case !st.Mode().IsRegular():
		return nil, fmt.Errorf("%s is not a file", path)
	case private && st.Mode()&closed != 0:
		return nil, fmt.Errorf("%s may be read or changed by others (its mode is %04o); chmod 600 closes it", path, st.Mode().Perm())
	}
	if text, err = io.ReadAll(io.LimitReader(file, maxKeyFile+1)); len(text) > maxKeyFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxKeyFile)
	}
	return text, err
}

// read makes keys of the files.
func (f keyFiles) read(now time.Time) (*keys, error) {
	cert, err := f.file("tls-cert", f.cert, false)
	if err != nil {
		return nil, err
	}
	key, err := f.file("tls-key", f.key, true)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls-cert %s with tls-key %s: %w", f.cert, f.key, err)
	}
	expires, err := checkChain(pair.Certificate, now)
	if err != nil {
		return nil, fmt.Errorf("tls-cert %s: %w", f.cert, err)
	}
	k := &keys{expires: expires, config: &tls.Config{
		Certificates:                []tls.Certificate{pair},
		MinVersion:                  tls.VersionTLS12,
		DynamicRecordSizingDisabled: true, // frames are of use only whole
	}}
	if f.clientCA != "" {
		if k.config.ClientCAs, err = f.authorities("tls-client-ca", f.clientCA, now); err != nil {
			return nil, err
		}
		k.config.ClientAuth = tls.RequireAndVerifyClientCert
	}
	if f.peerCA != "" {
		if !usable(pair.Leaf, x509.ExtKeyUsageClientAuth) {
			return nil, fmt.Errorf("tls-cert %s: the certificate of %s is not one of a client, which a node is to others, as its extended key usage says", f.cert, nameOf(pair.Leaf))
		}
		pool, err := f.authorities("peer-ca", f.peerCA, now)
		if err != nil {
			return nil, err
		}
		k.peer = &tls.Config{Certificates: k.config.Certificates, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true,
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool, RootCAs: pool}
	}
	return k, nil
}

// authorities returns the certificates in a file as those whose signature is
// believed.
func (f keyFiles) authorities(setting, value string, now time.Time) (*x509.CertPool, error) {
	text, err := f.file(setting, value, false)
	if err != nil {
		return nil, err
	}
	pool, err := authorities(text, now)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", setting, value, err)
	}
	return pool, nil
}

// usable reports whether a certificate may be used so.
func usable(c *x509.Certificate, so x509.ExtKeyUsage) bool {
	return len(c.ExtKeyUsage) == 0 || slices.ContainsFunc(c.ExtKeyUsage, func(u x509.ExtKeyUsage) bool { return u == so || u == x509.ExtKeyUsageAny })
}

// checkChain returns the time at which the first of a server's certificates
// expires, or why no client would take them.
func checkChain(chain [][]byte, now time.Time) (expires time.Time, err error) {
	for i, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err == nil {
			err = checkTime(c, now)
		}
		if err != nil {
			return expires, err
		}
		if i == 0 && !usable(c, x509.ExtKeyUsageServerAuth) {
			return expires, fmt.Errorf("the certificate of %s is not one of a server, as its extended key usage says", nameOf(c))
		}
		if i == 0 || c.NotAfter.Before(expires) {
			expires = c.NotAfter
		}
	}
	return expires, nil
}

func checkTime(c *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(c.NotBefore):
		return fmt.Errorf("the certificate of %s is not valid before %s", nameOf(c), c.NotBefore.UTC().Format(time.RFC3339))
	case now.After(c.NotAfter):
		return fmt.Errorf("the certificate of %s expired at %s", nameOf(c), c.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// nameOf names a certificate for people.
func nameOf(c *x509.Certificate) string {
	name := c.Subject.CommonName
	if name == "" && len(c.DNSNames) > 0 {
		name = c.DNSNames[0]
	}
	return fmt.Sprintf("%q", cmp.Or(name, c.SerialNumber.String()))
}

// authorities makes a pool of the certificates in text. Of several all but one may
// have expired.
func authorities(text []byte, now time.Time) (*x509.CertPool, error) {
	pool, bad, good := x509.NewCertPool(), error(nil), 0
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("it holds a %s; only certificates belong there", strings.ToLower(block.Type))
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if err := checkTime(c, now); err != nil {
			bad = err
			continue
		}
		pool.AddCert(c)
		good++
	}
	if good == 0 {
		return nil, cmp.Or(bad, errors.New("it holds no certificate"))
	}
	return pool, nil
}
