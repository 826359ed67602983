package broker

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/sim/testca"
	"github.com/teralog/teralog/wire"
)

// TestKeyFiles reads files that are of use, and each kind that is not.
func TestKeyFiles(t *testing.T) {
	dir, ca := t.TempDir(), testca.New(t)
	now := time.Now()
	pair := ca.Issue(x509.Certificate{})
	cert, key := pair.Write(dir, "tls")
	authority := testca.Write(t, dir, "ca.crt", ca.PEM(), 0o644)
	issued := func(c x509.Certificate) keyFiles {
		cert, key := ca.Issue(c).Write(dir, "other")
		return keyFiles{cert: cert, key: key}
	}
	f := func(files keyFiles, want string) {
		t.Helper()
		k, err := files.read(now)
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%+v: %v, want %q", files, err, want)
		case err == nil && (k.config.MinVersion != tls.VersionTLS12 || (files.clientCA != "") != (k.config.ClientAuth == tls.RequireAndVerifyClientCert)):
			t.Errorf("%+v: TLS from %x on, client certificates %v", files, k.config.MinVersion, k.config.ClientAuth)
		}
	}

	f(keyFiles{cert: cert, key: key}, "")
	f(keyFiles{cert: cert, key: key, clientCA: authority}, "")
	f(keyFiles{cert: cert + ".not", key: key}, "tls-cert: open "+cert+".not: no such file")
	f(keyFiles{cert: cert, key: dir}, "tls-key: "+dir+" is not a file")
	f(keyFiles{cert: key, key: key}, "tls-cert "+key+" with tls-key "+key+": ")
	f(keyFiles{cert: cert, key: issued(x509.Certificate{}).key}, "private key does not match public key")
	f(issued(x509.Certificate{NotAfter: now.Add(-time.Second)}), `tls-cert `+filepath.Join(dir, "other.crt")+`: the certificate of "broker" expired at 20`)
	f(issued(x509.Certificate{NotBefore: now.Add(time.Minute)}), `the certificate of "broker" is not valid before 20`)
	f(issued(x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}), `the certificate of "broker" is not one of a server`)
	f(issued(x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}), "")

	old := ca.Issue(x509.Certificate{NotAfter: now.Add(-time.Hour)}).Cert
	f(keyFiles{cert: cert, key: key, clientCA: testca.Write(t, dir, "old.crt", old, 0o644)}, "tls-client-ca "+filepath.Join(dir, "old.crt")+": the certificate of")
	f(keyFiles{cert: cert, key: key, clientCA: testca.Write(t, dir, "both.crt", append(old, ca.PEM()...), 0o644)}, "")
	f(keyFiles{cert: cert, key: key, clientCA: testca.Write(t, dir, "none.crt", []byte("nothing"), 0o644)}, "holds no certificate")
	f(keyFiles{cert: cert, key: key, clientCA: testca.Write(t, dir, "key.crt", pair.Key, 0o644)}, "holds a private key")
	f(keyFiles{cert: testca.Write(t, dir, "large", make([]byte, maxKeyFile+1), 0o644), key: key}, "has more than 1048576 bytes")

	f(keyFiles{cert: cert, key: key, peerCA: authority}, "")
	f(keyFiles{cert: cert, key: key, peerCA: authority + ".not"}, "peer-ca: open ")
	alone := issued(x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	alone.peerCA = authority
	f(alone, "is not one of a client, which a node is to others")

	// A chain is as good as its worst certificate.
	f(keyFiles{cert: testca.Write(t, dir, "chain.crt", append(pair.Cert, old...), 0o644), key: key}, "expired at")

	mode := func(m os.FileMode) keyFiles {
		return keyFiles{cert: cert, key: testca.Write(t, dir, "open.key", pair.Key, m)}
	}
	f(mode(0o400), "")
	f(mode(0o640), "open.key may be read or changed by others (its mode is 0640)")
	f(mode(0o604), "(its mode is 0604)")

	named := func(name string, m os.FileMode) keyFiles {
		testca.Write(t, dir, "open.key", pair.Key, m)
		return keyFiles{cert: "credential:tls.crt", key: "credential:" + name, credentials: dir}
	}
	f(named("open.key", 0o600), "")
	f(named("open.key", 0o440), "") // as the service manager shows an access list
	f(named("open.key", 0o444), "(its mode is 0444)")
	f(named("", 0o600), "does not name a credential")
	f(named("..", 0o600), "does not name a credential")
	f(named("../x", 0o600), "does not name a credential")
	f(keyFiles{cert: "credential:tls.crt", key: key}, "tls-cert: credential:tls.crt: no credentials were handed over")
}

// TestTLSSettings gives settings that would leave somebody unencrypted who believes
// otherwise, or unheard.
func TestTLSSettings(t *testing.T) {
	f := func(want string, args ...string) {
		t.Helper()
		_, err := readServe(args, nil)
		if want == "" && err != nil || want != "" && (exitCode(err) != exitConfig || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}

	f("", "--tls-listen", ":7443", "--tls-cert", "c", "--tls-key", "k")
	f("", "--tls-listen", ":7443", "--tls-cert", "c", "--tls-key", "k", "--listen", "")
	f("need tls-cert and tls-key", "--tls-listen", ":7443", "--tls-cert", "c")
	f("need tls-cert and tls-key", "--tls-listen", ":7443", "--tls-key", "k")
	f("need tls-cert and tls-key", "--peers", "1@a:1", "--peer-ca", "c")
	f("", "--peers", "1@a:1", "--peer-ca", "c", "--tls-cert", "c", "--tls-key", "k")
	f("peer-ca without peers", "--peer-ca", "c", "--tls-cert", "c", "--tls-key", "k")
	f("without tls-listen", "--peers", "1@a:1", "--peer-ca", "c", "--tls-cert", "c", "--tls-key", "k", "--tls-client-ca", "c")
	f("without tls-listen", "--tls-cert", "c", "--tls-key", "k")
	f("without tls-listen", "--tls-client-ca", "c")
	f("without tls-listen", "--tls-advertise", "log1:1")
	f("no client could come", "--listen", "")
	f("advertise without listen", "--listen", "", "--advertise", "a:1", "--tls-listen", ":7443", "--tls-cert", "c", "--tls-key", "k")
	f("--tls-listen: ", "--tls-listen", "here")
}

// TestServeBadKeys starts brokers whose certificates are of no use.
func TestServeBadKeys(t *testing.T) {
	dir := t.TempDir()
	cert, key := testca.New(t).Issue(x509.Certificate{NotAfter: time.Now().Add(-time.Hour)}).Write(dir, "tls")
	args := []string{"--data-dir", filepath.Join(dir, "data"), "--listen", "", "--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key}
	if err := Serve(t.Context(), args, nil, io.Discard, io.Discard); exitCode(err) != exitConfig || !strings.Contains(err.Error(), "expired at") {
		t.Errorf("serve ends with %d, %v", exitCode(err), err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("a data directory was made all the same")
	}
	file := testca.Write(t, dir, "teralog.conf", fmt.Appendf(nil, "tls-listen = :7443\ntls-cert = %s\ntls-key = %s\n", cert, key), 0o600)
	if err := ConfigCommand(t.Context(), []string{"check", file}, nil, io.Discard, io.Discard); exitCode(err) != exitConfig {
		t.Errorf("config check ends with %d, %v", exitCode(err), err)
	}
	t.Setenv("CREDENTIALS_DIRECTORY", "")
	file = testca.Write(t, dir, "teralog.conf", []byte("tls-listen = :7443\ntls-cert = credential:a\ntls-key = credential:b\n"), 0o600)
	if err := ConfigCommand(t.Context(), []string{"check", file}, nil, io.Discard, io.Discard); err != nil {
		t.Errorf("config check reads credentials where there are none: %v", err)
	}
}

// said returns the address that follows word in the line of a broker that is ready.
func said(t *testing.T, line, word string) string {
	t.Helper()
	_, rest, ok := strings.Cut(line, word+" ")
	if !ok {
		t.Fatalf("no %s in %q", word, line)
	}
	addr, _, _ := strings.Cut(rest, ",")
	return addr
}

func dialTLS(t *testing.T, addr string, config *tls.Config) (*wire.Conn, error) {
	c, err := wire.Dial(context.Background(), &net.Dialer{}, addr, wire.DialOptions{Client: "test", TLS: config})
	if err == nil {
		t.Cleanup(c.Close)
	}
	return c, err
}

// TestServeTLS serves plaintext and TLS at once: each client is told the address of
// its own kind, and both read the same bytes. Then the certificate is replaced.
func TestServeTLS(t *testing.T) {
	dir, old, fresh := t.TempDir(), testca.New(t), testca.New(t)
	cert, key := old.Issue(x509.Certificate{NotAfter: time.Unix(4_000_000_000, 0)}).Write(dir, "tls")
	line, stop := serving(t, filepath.Join(dir, "data"), "--tls-listen", "127.0.0.1:0", "--tls-cert", cert, "--tls-key", key, "--http", "127.0.0.1:0")
	defer func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	}()
	plainAddr, addr, view := said(t, line, "ready: listen"), said(t, line, ", tls"), "http://"+said(t, line, ", http")
	plain := dial(t, &net.Dialer{}, plainAddr)
	defer plain.Close()
	alive, err := dialTLS(t, addr, &tls.Config{RootCAs: old.Pool()})
	if err != nil {
		t.Fatal(err)
	}
	for c, want := range map[*wire.Conn]string{plain: plainAddr, alive: addr} {
		var m wire.MetadataResponse
		do(t, c, &wire.MetadataRequest{}, &m)
		if m.Nodes[0].Addr != want {
			t.Errorf("told to come to %s, want %s", m.Nodes[0].Addr, want)
		}
	}

	id := createOn(t, alive, "t", 1)
	for i := range 40 {
		batch := batchOf(t, wire.BuilderOptions{Topic: id, Producer: -1, ProducerEpoch: -1, BaseSequence: -1}, strings.Repeat(fmt.Sprint(i, "."), 1+i*i))
		var r wire.ProduceResponse
		do(t, alive, &wire.ProduceRequest{Acks: -1, TimeoutMillis: 10_000, Batches: []wire.Batch{batch}}, &r)
		if r.Results[0].Code != wire.CodeOK {
			t.Fatal(r.Results[0])
		}
	}
	read := func(c *wire.Conn, from wire.Offset, most uint32) []byte {
		var r wire.FetchResponse
		b, err := c.DoBuf(context.Background(), &wire.FetchRequest{Replica: -1, MaxBytes: most, MinBytes: 1,
			Partitions: []wire.FetchPartition{{Topic: id, Offset: from, Epoch: -1, LastEpoch: -1, MaxBytes: most}}}, &r)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Release()
		return bytes.Clone(r.Partitions[0].Data)
	}
	for from := range wire.Offset(40) {
		for _, most := range []uint32{1, 5_000, 1 << 20} {
			if a, b := read(plain, from, most), read(alive, from, most); len(a) == 0 || !bytes.Equal(a, b) {
				t.Fatalf("from %d, at most %d: %d bytes without TLS, %d with it, or other ones", from, most, len(a), len(b))
			}
		}
	}

	get := func(path string) string {
		r, err := http.Get(view + path)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if text := get("/metrics"); !strings.Contains(text, "\nteralog_tls_certificate_expires_seconds 4e+09\n") || !strings.Contains(text, "\nteralog_tls_handshakes_total 1\n") {
		t.Error("metrics do not tell when the certificate expires, or of one handshake")
	}
	// hangUp has the broker read its files again, and waits until it says so.
	hangUp := func(event string) {
		t.Helper()
		before := strings.Count(get("/events"), event)
		if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(time.Minute); strings.Count(get("/events"), event) == before; {
			if time.Now().After(deadline) {
				t.Fatalf("no event %s: %s", event, get("/events"))
			}
		}
	}
	both := old.Pool()
	both.AppendCertsFromPEM(fresh.PEM())
	meets := func(pool *x509.CertPool, ok bool) {
		t.Helper()
		if _, err := dialTLS(t, addr, &tls.Config{RootCAs: pool}); (err == nil) != ok {
			t.Errorf("dialled: %v", err)
		}
	}

	fresh.Issue(x509.Certificate{}).Write(dir, "tls")
	meets(old.Pool(), true) // not yet
	hangUp("certificate_loaded")
	meets(old.Pool(), false)
	meets(fresh.Pool(), true)
	testca.Write(t, dir, "tls.key", old.Issue(x509.Certificate{}).Key, 0o600)
	hangUp("certificate_refused")
	meets(fresh.Pool(), true)
	if got := read(alive, 39, 1); len(got) == 0 {
		t.Error("a connection did not outlive new certificates")
	}
}

// TestHangUpWithoutTLS has nothing to read again, and goes on.
func TestHangUpWithoutTLS(t *testing.T) {
	line, stop := serving(t, t.TempDir())
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	c := dial(t, &net.Dialer{}, said(t, line, "ready: listen"))
	do(t, c, &wire.MetadataRequest{}, &wire.MetadataResponse{})
	c.Close()
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// TestPeersByTLS has three nodes keep the metadata over TLS. One whose certificate
// is of another authority, one that speaks plaintext, and a client with a
// certificate of none are not let in.
func TestPeersByTLS(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		ca, other := testca.New(t), testca.New(t)
		authority, foreign := testca.Write(t, dir, "ca.crt", ca.PEM(), 0o644), testca.Write(t, dir, "other.crt", other.PEM(), 0o644)
		c := newTrio(t)
		c.adapt = func(i int, config *Config) {
			name := fmt.Sprintf("node%d", i+1)
			config.TLSCert, config.TLSKey = ca.Issue(x509.Certificate{DNSNames: []string{name}}).Write(dir, name)
			config.PeerCA = authority
		}
		c.start(0, 1, 2)
		c.do(1, coord.CreateTopic{Name: "t", Partitions: 2, Replication: 1})
		at := fmt.Sprintf("node%d:7401", c.leader()+1)
		f := func(config *tls.Config, want string) {
			t.Helper()
			conn, err := wire.Dial(context.Background(), c.net, at, wire.DialOptions{TLS: config})
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("dialled a peer: %v, want %q", err, want)
			}
		}

		f(nil, "this address speaks TLS only")
		f(&tls.Config{RootCAs: ca.Pool()}, "certificate required")
		f(&tls.Config{RootCAs: ca.Pool(), Certificates: []tls.Certificate{other.Issue(x509.Certificate{}).TLS()}}, "certificate")

		// A node of another authority is not heard, and the other two go on.
		c.stop(2)
		c.adapt = func(i int, config *Config) {
			config.TLSCert, config.TLSKey = other.Issue(x509.Certificate{DNSNames: []string{"node3"}}).Write(dir, "foreign")
			config.PeerCA = foreign
		}
		opened := c.open(2)
		time.Sleep(time.Minute)
		c.do(0, coord.CreateTopic{Name: "u", Partitions: 1, Replication: 1})
		select {
		case err := <-opened:
			t.Errorf("a node of another authority is in: %v", err)
		default:
		}
		c.members[2].stop()
		<-c.members[2].ran
		c.members[2] = nil
		c.stop(1)
		c.stop(0)
	})
}
