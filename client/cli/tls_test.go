package cli

import (
	"bufio"
	"context"
	"crypto/x509"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/sim/testca"
)

// TestCommandsByTLS runs commands against a broker that asks for certificates.
func TestCommandsByTLS(t *testing.T) {
	dir, ca := t.TempDir(), testca.New(t)
	cert, key := ca.Issue(x509.Certificate{}).Write(dir, "tls")
	mine, mineKey := ca.Issue(x509.Certificate{}).Write(dir, "mine")
	authority := testca.Write(t, dir, "ca.crt", ca.PEM(), 0o644)
	ctx, cancel := context.WithCancel(context.Background())
	r, w := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		ended <- broker.Serve(ctx, []string{"--data-dir", filepath.Join(dir, "data"), "--reserve", "1MiB", "--listen", "127.0.0.1:0",
			"--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--tls-client-ca", authority}, nil, w, io.Discard)
		w.Close()
	}()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	at := func(word string) string {
		_, rest, _ := strings.Cut(line, word)
		addr, _, _ := strings.Cut(rest, ",")
		return addr
	}
	t.Setenv("TERALOG_SERVERS", at(", tls "))
	s := shell{t}

	s.fails("topic ls", "", exitUsage, "this address speaks TLS only (--tls and its like encrypt)")
	s.fails("topic ls --tls", "", exitUnreachable, "unknown authority (--tls-ca")
	s.fails("topic ls --tls-ca "+authority+" --tls-server-name elsewhere", "", exitUnreachable, "not elsewhere (--tls-ca")
	s.fails("topic ls --tls-ca "+authority, "", exitUnreachable, "certificate required")
	s.fails("topic ls --tls-cert "+mine, "", exitUsage, "needs its key")
	s.fails("topic ls --servers "+at("ready: listen ")+" --tls-ca "+authority, "", exitUsage, "does not speak TLS at this address")
	flags := " --tls-ca " + authority + " --tls-cert " + mine + " --tls-key " + mineKey
	s.run("topic create t"+flags, "")
	t.Setenv("TERALOG_CLIENT_TLS_CA", authority)
	t.Setenv("TERALOG_CLIENT_TLS_CERT", mine)
	t.Setenv("TERALOG_CLIENT_TLS_KEY", mineKey)
	if out := s.run("produce t", "one\ntwo\n"); out != "t/0@0\nt/0@1\n" {
		t.Errorf("produce printed %q", out)
	}
	if out := s.run("consume t --until-end -o jsonl", ""); strings.Count(out, "\n") != 2 {
		t.Errorf("consume printed %q", out)
	}
	s.run("offsets t", "")
}
