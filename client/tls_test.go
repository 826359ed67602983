package client

import (
	"crypto/x509"
	"flag"
	"strings"
	"testing"

	"github.com/teralog/teralog/sim/testca"
)

// TestTLSFiles makes configurations of files, and of such as are of no use.
func TestTLSFiles(t *testing.T) {
	dir, ca := t.TempDir(), testca.New(t)
	cert, key := ca.Issue(x509.Certificate{}).Write(dir, "mine")
	_, other := ca.Issue(x509.Certificate{}).Write(dir, "other")
	authority := testca.Write(t, dir, "ca.crt", ca.PEM(), 0o644)
	f := func(files TLSFiles, want string) {
		t.Helper()
		c, err := files.Config()
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%+v: %v, want %q", files, err, want)
		case err != nil:
		case (c == nil) != (files == TLSFiles{}):
			t.Errorf("%+v: configuration %v", files, c)
		case c != nil && (c.InsecureSkipVerify || c.ServerName != files.ServerName || (c.RootCAs == nil) != (files.CA == "") || (c.Certificates == nil) != (files.Cert == "")):
			t.Errorf("%+v: configuration %+v", files, c)
		}
	}

	f(TLSFiles{}, "")
	f(TLSFiles{On: true}, "")
	f(TLSFiles{ServerName: "broker"}, "")
	f(TLSFiles{CA: authority}, "")
	f(TLSFiles{CA: authority, Cert: cert, Key: key}, "")
	f(TLSFiles{CA: authority + ".not"}, "no such file")
	f(TLSFiles{CA: key}, "holds no certificate in PEM")
	f(TLSFiles{Cert: cert}, "needs its key")
	f(TLSFiles{Key: key}, "needs its key")
	f(TLSFiles{Cert: cert, Key: other}, "does not match")
}

// TestTLSFlags reads flags and their defaults.
func TestTLSFlags(t *testing.T) {
	f := func(env map[string]string, args string, want TLSFiles) {
		t.Helper()
		for _, name := range []string{"", "_CA", "_CERT", "_KEY", "_SERVER_NAME"} {
			t.Setenv("TERALOG_CLIENT_TLS"+name, env[name])
		}
		var files TLSFiles
		set := flag.NewFlagSet("", flag.ContinueOnError)
		files.Flags(set)
		if err := set.Parse(strings.Fields(args)); err != nil || files != want {
			t.Errorf("%v %q: %+v, %v", env, args, files, err)
		}
	}

	f(nil, "", TLSFiles{})
	f(nil, "--tls --tls-ca a --tls-cert b --tls-key c --tls-server-name d", TLSFiles{true, "a", "b", "c", "d"})
	f(map[string]string{"": "1", "_CA": "a", "_CERT": "b", "_KEY": "c", "_SERVER_NAME": "d"}, "", TLSFiles{true, "a", "b", "c", "d"})
	f(map[string]string{"": "false"}, "", TLSFiles{})
	f(map[string]string{"": "please"}, "", TLSFiles{On: true}) // rather than to send it in the clear
	f(map[string]string{"_CA": "a"}, "--tls-ca b", TLSFiles{CA: "b"})
}
