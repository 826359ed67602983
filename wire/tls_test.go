package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/sim/testca"
)

// TestBeginsTLS gives first bytes one by one.
func TestBeginsTLS(t *testing.T) {
	f := func(p string, yes, known bool) {
		t.Helper()
		if y, k := beginsTLS([]byte(p)); y != yes || k != known {
			t.Errorf("beginsTLS(%q) = %v, %v", p, y, k)
		}
	}

	f("", false, false)
	f("\x16", false, false)
	f("\x16\x03", false, false)
	f("\x16\x03\x01", true, true)
	f("\x16\x03\x03\x02", true, true)
	f("\x16\x03\x00\x00", false, true) // a frame of 790 bytes
	f("\x16\x00", false, true)         // one of 22
	f("G", false, true)
}

// FuzzBeginsTLS expects a verdict that more bytes do not change, and none of TLS on
// what may be a first frame.
func FuzzBeginsTLS(f *testing.F) {
	f.Add([]byte("\x16\x03\x01\x02\x00"))
	f.Add(requestFrame(APIHello, 0, 1, &HelloRequest{Client: strings.Repeat("x", 700)}))
	f.Fuzz(func(t *testing.T, p []byte) {
		yes, known := beginsTLS(p)
		if yes && !known || !known && len(p) > 2 {
			t.Fatalf("%q: %v, %v", p, yes, known)
		}
		if more, still := beginsTLS(append(bytes.Clone(p), 1)); known && (more != yes || !still) {
			t.Fatalf("%q: %v, with one more byte %v", p, yes, more)
		}
		if len(p) >= sizeLen && yes {
			r := frameReader{}
			r.init(nil, dialPool)
			r.buf, r.end = dialPool.Get(len(p)), len(p)
			copy(r.buf.B, p)
			if _, _, err := r.frameLen(requestLen-sizeLen, maxHelloFrame); err == nil {
				t.Fatalf("%q may be a frame", p)
			}
			r.drop()
		}
	})
}

// refusals notes what a server tells of connections it ended for how they began.
type refusals struct {
	mu  sync.Mutex
	all []string
}

func (r *refusals) note(reason, _ string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, reason+": "+err.Error())
}

func (r *refusals) want(t *testing.T, reason, text string) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.all) != 1 || !strings.HasPrefix(r.all[0], reason+": ") || !strings.Contains(r.all[0], text) {
		t.Errorf("refusals %q, want one for %s, %s", r.all, reason, text)
	}
	r.all = nil
}

// TestWrongKind has clients of each kind come to the other kind of address: within
// a second they are told what is wrong, in words, and the connection is gone.
func TestWrongKind(t *testing.T) {
	both(t, func(t *testing.T, k kind) {
		synctest.Test(t, func(t *testing.T) {
			var told refusals
			b := newBedOf(t, k, echo, func(s *Server) { s.Unfit = told.note })
			ours, config, reason, word := "it does not speak TLS", (*tls.Config)(nil), "tls", "speaks TLS only"
			if k == plaintext {
				ours, config, reason, word = "it speaks TLS", &tls.Config{}, "plaintext", "does not speak TLS"
			}
			start := time.Now()
			_, err := Dial(context.Background(), b.net, testAddr, DialOptions{Pool: b.client, TLS: config})
			if !errors.Is(err, ErrNotSent) || !errors.Is(err, CodeUnsupported) || !strings.Contains(err.Error(), word) {
				t.Errorf("dialled: %v, want %q", err, word)
			}
			synctest.Wait()
			told.want(t, reason, ours)
			if n := b.server.Stats().Conns; n != 0 || time.Since(start) > 0 {
				t.Errorf("%d connections after %v", n, time.Since(start))
			}
			// A peer that reads nothing and does not close is gone within a second, too.
			p := b.peer()
			p.Write([]byte("\x16\x03\x01\x02\x00 and so on: a hello of TLS"))
			if k == encrypted {
				p = b.peer()
				p.Write(requestFrame(APIHello, 0, 1, &HelloRequest{}))
			}
			time.Sleep(time.Second)
			synctest.Wait()
			if _, err := io.ReadAll(p); err != nil || time.Since(start) > time.Second {
				t.Errorf("the connection ended after %v with %v", time.Since(start), err)
			}
			if s := b.server.Stats(); s.Conns > 1 || k == plaintext && (s.Conns != 0 || s.SpokeTLS != 2) {
				t.Errorf("%+v", s)
			}
		})
	})
}

// TestPlainPieces has plaintext reach an encrypted address in ways that no client of
// ours has.
func TestPlainPieces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, encrypted, echo, nil)
		f := func(text string, bad int64) {
			t.Helper()
			synctest.Wait()
			before := b.server.Stats()
			p := b.peer()
			for i := range text {
				p.Write([]byte{text[i]})
				synctest.Wait()
			}
			time.Sleep(time.Second)
			synctest.Wait()
			s := b.server.Stats()
			if s.Conns != 0 || s.BadHandshakes-before.BadHandshakes != bad || s.Handshakes != 0 {
				t.Errorf("%q: %+v", text, s)
			}
			if _, err := io.ReadAll(p); err != nil {
				t.Errorf("%q: the end is none in order: %v", text, err)
			}
			p.Close()
		}

		f("G", 1)
		f("\x16\x00", 1)
		f("\x16\x03\x00", 1)
		f("GET / HTTP/1.1\r\n\r\n", 1)
		f("\x16\x03\x01\x00\x04\x01\x00\x00\x00", 1) // of TLS, and no hello
		f("\x16\x03\x01\xff\xff", 1)                 // a record longer than there may be

		// The end is none by a reset, though much was not read.
		p := b.peer()
		p.Write([]byte("GET / HTTP/1.1\r\nHost: broker\r\n\r\n"))
		time.Sleep(time.Second)
		if _, err := io.ReadAll(p); err != nil {
			t.Errorf("a request of HTTP ends with %v", err)
		}

		// Who only looks whether somebody listens did nothing wrong.
		b.peer().Close()
		time.Sleep(time.Second)
		if s := b.server.Stats(); s.Conns != 0 || s.BadHandshakes != 7 {
			t.Errorf("%+v", s)
		}
	})
}

// TestHandshakeTime lets handshakes begin and never end: each has ten seconds with
// its Hello, others are served meanwhile, and the number of them is bounded.
func TestHandshakeTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, encrypted, echo, func(s *Server) { s.MaxUnidentified = 4 })
		for i, text := range []string{"", "\x16\x03", "\x16\x03\x01\x02\x00\x01"} {
			b.peer().Write([]byte(text))
			synctest.Wait()
			if n := b.server.Stats().Conns; n != i+1 {
				t.Fatalf("%d connections", n)
			}
		}
		c := b.dial()
		ask(context.Background(), c, 3, false).wantOK(t, 3)
		b.peer()
		synctest.Wait()
		p := b.peer() // a fifth, of which four have no handshake yet
		if _, err := p.Read(make([]byte, 1)); err == nil || b.server.Stats().Refused != 1 {
			t.Errorf("one too many: %v, %+v", err, b.server.Stats())
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		if s := b.server.Stats(); s.Conns != 1 || s.Timeouts != 4 {
			t.Errorf("after 10 s: %+v", s)
		}
		ask(context.Background(), b.dial(), 4, false).wantOK(t, 4)

		// Time that the handshake took is not there for Hello.
		nc, err := b.net.DialContext(context.Background(), "", testAddr)
		if err != nil {
			t.Fatal(err)
		}
		defer nc.Close()
		time.Sleep(6 * time.Second)
		if err := tls.Client(nc, clientOf(b)).Handshake(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(4*time.Second + time.Millisecond)
		synctest.Wait()
		if s := b.server.Stats(); s.Conns != 2 || s.Timeouts != 5 {
			t.Errorf("no hello: %+v", s)
		}
	})
}

// clientOf returns what a client without Dial needs for a bed.
func clientOf(b *bed) *tls.Config {
	c := b.tls.Clone()
	c.ServerName = "broker"
	return c
}

// TestHandshakeBytes sends a hello larger than any.
func TestHandshakeBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told refusals
		b := newBedOf(t, encrypted, echo, func(s *Server) { s.Unfit = told.note })
		p := b.peer()
		record := append([]byte("\x16\x03\x01\x40\x00"), make([]byte, 16<<10)...)
		copy(record[5:], "\x01\x00\xff\xff") // a hello of 65,535 bytes
		for range 5 {
			p.Write(record)
		}
		time.Sleep(time.Second)
		told.want(t, "tls", "")
		if s := b.server.Stats(); s.Conns != 0 || s.BadHandshakes != 1 {
			t.Errorf("%+v", s)
		}
	})
}

// TestOldVersions speaks TLS as it was before 1.2.
func TestOldVersions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, encrypted, echo, nil)
		f := func(least, most uint16, fails string) {
			t.Helper()
			nc, err := b.net.DialContext(context.Background(), "", testAddr)
			if err != nil {
				t.Fatal(err)
			}
			defer nc.Close()
			config := clientOf(b)
			config.MinVersion, config.MaxVersion = least, most
			start := time.Now()
			err = tls.Client(nc, config).Handshake()
			if fails == "" && err != nil || fails != "" && (err == nil || !strings.Contains(err.Error(), fails)) || time.Since(start) > 0 {
				t.Errorf("TLS %x to %x: %v after %v", least, most, err, time.Since(start))
			}
		}

		f(tls.VersionTLS10, tls.VersionTLS10, "protocol version not supported")
		f(tls.VersionTLS10, tls.VersionTLS11, "protocol version not supported")
		f(tls.VersionTLS12, tls.VersionTLS12, "")
		f(tls.VersionTLS13, tls.VersionTLS13, "")
	})
}

// TestWrongServer connects to servers whose certificate is of no use.
func TestWrongServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told refusals
		b := newBedOf(t, encrypted, echo, func(s *Server) { s.Unfit = told.note })
		f := func(config *tls.Config, want string) {
			t.Helper()
			_, err := Dial(context.Background(), b.net, testAddr, DialOptions{Pool: b.client, TLS: config})
			if !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), want) {
				t.Errorf("dialled: %v, want %q", err, want)
			}
			synctest.Wait()
			told.want(t, "tls", "bad certificate")
		}

		f(&tls.Config{}, "unknown authority")
		f(&tls.Config{RootCAs: testca.New(t).Pool()}, "unknown authority")
		f(&tls.Config{RootCAs: b.tls.RootCAs, ServerName: "elsewhere"}, "elsewhere")
	})
}

// TestClientCertificates has a server that asks for certificates of an authority of
// its own. Who has none learns it from Dial.
func TestClientCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ca, clients := testca.New(t), testca.New(t)
		b := newBed(t, echo, nil)
		config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(x509.Certificate{}).TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: clients.Pool()}
		serveMore(t, b, "broker:2", func() *tls.Config { return config })
		f := func(pair *testca.Pair, version uint16, want string) {
			t.Helper()
			client := &tls.Config{RootCAs: ca.Pool(), MaxVersion: version}
			if pair != nil {
				client.Certificates = []tls.Certificate{pair.TLS()}
			}
			c, err := Dial(context.Background(), b.net, "broker:2", DialOptions{Pool: b.client, TLS: client})
			switch {
			case err == nil && want == "":
				ask(context.Background(), c, 3, false).wantOK(t, 3)
				c.Close()
			case err == nil || want == "" || !errors.Is(err, ErrNotSent) || !strings.Contains(err.Error(), want):
				t.Errorf("dialled: %v, want %q", err, want)
			}
		}
		issue := func(by *testca.CA, c x509.Certificate) *testca.Pair {
			pair := by.Issue(c)
			return &pair
		}

		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			f(issue(clients, x509.Certificate{}), version, "")
			f(issue(ca, x509.Certificate{}), version, "certificate")
			f(issue(clients, x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}), version, "bad certificate")
			f(issue(clients, x509.Certificate{NotAfter: time.Now().Add(-time.Hour)}), version, "expired certificate")
		}
		f(nil, tls.VersionTLS12, "handshake failure")
		f(nil, tls.VersionTLS13, "certificate required")
	})
}

// serveMore has a bed's server listen at one more address, for TLS.
func serveMore(t *testing.T, b *bed, addr string, config func() *tls.Config) {
	t.Helper()
	ln, err := b.net.Listen(addr)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.server.ServeTLS(ln, config) }()
	t.Cleanup(func() {
		b.server.Shutdown(context.Background())
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

// TestNewConfig changes a server's configuration: what is connected lives on, who
// comes later meets the new one, and a session begun before is worth nothing.
func TestNewConfig(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, fresh := testca.New(t), testca.New(t)
		var config atomic.Pointer[tls.Config]
		load := func(ca *testca.CA) {
			config.Store(&tls.Config{Certificates: []tls.Certificate{ca.Issue(x509.Certificate{}).TLS()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: ca.Pool()})
		}
		load(old)
		b := newBed(t, echo, nil)
		serveMore(t, b, "broker:2", config.Load)
		trust := old.Pool()
		trust.AppendCertsFromPEM(fresh.PEM())
		cache := tls.NewLRUClientSessionCache(0)
		client := func(ca *testca.CA) *tls.Config {
			return &tls.Config{RootCAs: trust, Certificates: []tls.Certificate{ca.Issue(x509.Certificate{}).TLS()}, ClientSessionCache: cache, ServerName: "broker"}
		}
		// resumed says whether a connection went on with a session of an earlier one.
		resumed := func(config *tls.Config) (bool, error) {
			c, err := Dial(context.Background(), b.net, "broker:2", DialOptions{Pool: b.client, TLS: config})
			if err != nil {
				return false, err
			}
			defer c.Close()
			return c.sock.tls.tls.ConnectionState().DidResume, nil
		}
		dial := func(config *tls.Config) *Conn {
			t.Helper()
			c, err := Dial(context.Background(), b.net, "broker:2", DialOptions{Pool: b.client, TLS: config})
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			load(old)
			mine := client(old)
			mine.MaxVersion = version
			alive := dial(mine)
			if yes, err := resumed(mine); !yes || err != nil {
				t.Fatalf("a session is not resumed even where nothing changed: %v", err)
			}
			load(fresh)
			ask(context.Background(), alive, 3, false).wantOK(t, 3)
			if _, err := resumed(mine); err == nil || !strings.Contains(err.Error(), "certificate") {
				t.Errorf("a client of the old authority came in again: %v", err)
			}
			theirs := client(fresh)
			theirs.MaxVersion = version
			if yes, err := resumed(theirs); yes || err != nil {
				t.Errorf("a client of the new authority: resumed %v, %v", yes, err)
			}
			ask(context.Background(), alive, 4, false).wantOK(t, 4)
			alive.Close()
		}
	})
}

// TestTrickle reads an encrypted connection whose peer has room for little, and
// expects everything in order and no buffer held in the end.
func TestTrickle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		data := make([]byte, 1<<20)
		for i := range data {
			data[i] = byte(i * 7 >> 3)
		}
		var open sync.WaitGroup
		open.Add(3)
		b := newBedOf(t, encrypted, handlerFunc(func(c *Call) {
			c.ReplyFiles(&FetchResponse{Partitions: []FetchResult{{Topic: FirstUserTopic, Bytes: uint32(len(data))}}},
				[]FileRange{{R: bytes.NewReader(data), Len: int64(len(data)), Done: open.Done}})
		}), nil)
		c := b.dial()
		for range 3 { // far more than the network holds
			b.net.Stall(testAddr, true)
			var r FetchResponse
			p, err := c.Begin(context.Background(), &FetchRequest{}, &r)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Second)
			b.net.Stall(testAddr, false)
			buf, err := p.await(context.Background())
			if err != nil || !bytes.Equal(r.Partitions[0].Data, data) {
				t.Fatalf("%v, %d bytes", err, len(r.Partitions[0].Data))
			}
			buf.Release()
		}
		open.Wait()
		synctest.Wait()
		b.wantNoBuffers()
	})
}

// TestLastWords lets the server end an idle connection. The client sees it before
// it sends a request that would be lost.
func TestLastWords(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBedOf(t, encrypted, echo, func(s *Server) { s.IdleTimeout = time.Minute })
		c := b.dial()
		ask(context.Background(), c, 3, false).wantOK(t, 3)
		time.Sleep(30 * time.Second)
		for range 2 { // the first look may have read something
			if c.sock.ended() {
				t.Error("the connection is taken for ended")
			}
		}
		ask(context.Background(), c, 4, false).wantOK(t, 4)
		time.Sleep(2 * time.Minute)
		if !c.sock.ended() {
			t.Error("the end is not seen")
		}
		call := ask(context.Background(), c, 5, false)
		<-call.done
		if !errors.Is(call.err, ErrNotSent) {
			t.Error(call.err)
		}
	})
}

// TestAheadKept lets Ended meet a byte of data, which must not be lost.
func TestAheadKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := tlsPair(t)
		f := func(want bool) {
			t.Helper()
			if near.Ended() != want {
				t.Errorf("Ended() = %v", !want)
			}
		}

		f(false)
		far.Write([]byte("abc"))
		f(false)
		f(false)
		got := make([]byte, 3)
		if _, err := io.ReadFull(near, got); err != nil || string(got) != "abc" {
			t.Errorf("%q, %v", got, err)
		}
		f(false)
		far.Close()
		f(true)
		f(true)
	})
}

// TestFarewell expects an end that costs no waiting to be told in TLS, too: others
// than we take one that is not for an attack.
func TestFarewell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		near, far := tlsPair(t)
		far.Close()
		var record [64]byte
		if n, err := near.below.readNow(record[:]); n < 20 || record[0] != 23 {
			t.Errorf("%d bytes, %v, before the end", n, err)
		}
	})
}

// TestPieceOfSeveral cuts the connection within a piece that holds several requests.
// Some of them may have been served, so none may be told not to have left.
func TestPieceOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		served := map[Offset]bool{}
		b := newBedOf(t, encrypted, handlerFunc(func(c *Call) {
			if c.API != APITrim {
				c.Reply(&ProduceResponse{})
				return
			}
			var q TrimRequest
			if err := c.Decode(&q); err != nil {
				c.ReplyError(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			served[q.Before] = true
			c.Reply(&TrimResponse{})
		}), nil)
		large := make([]byte, memWindow+100_000)
		const small = 4
		// send cuts after up bytes, and returns how many requests were served and how
		// many were told not to have left.
		send := func(up int64) (done, unsent int) {
			b.net.CutAfter(testAddr, up, -1)
			c, err := Dial(context.Background(), b.net, testAddr, DialOptions{Pool: b.client, TLS: b.tls})
			if err != nil {
				return 0, 0
			}
			defer c.Close()
			clear(served)
			b.net.Stall(testAddr, true)
			errs := make([]error, 1+small)
			c.Go(&ProduceRequest{Acks: 1, Batches: []Batch{large}}, &ProduceResponse{}, func(err error) { errs[0] = err })
			synctest.Wait() // it fills the network; the others wait behind it
			for i := range small {
				c.Go(&TrimRequest{Topic: FirstUserTopic, Before: Offset(i)}, &TrimResponse{}, func(err error) { errs[1+i] = err })
			}
			b.net.Stall(testAddr, false)
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			for i := range small {
				definite := errors.Is(errs[1+i], ErrNotSent) && !errors.Is(errs[1+i], ErrConnLost)
				if definite && served[Offset(i)] {
					t.Errorf("cut after %d bytes: request %d was served, yet %v", up, i, errs[1+i])
				}
				if definite {
					unsent++
				}
			}
			return len(served), unsent
		}
		all := int64(sort.Search(2*len(large), func(n int) bool { done, _ := send(int64(n)); return done == small }))
		some, unsent := 0, 0
		for up := all - 450; up < all; up += 9 {
			n, not := send(up)
			unsent += not
			if n > 0 {
				some++
			}
		}
		if some == 0 || unsent == 0 {
			t.Errorf("%d cuts let some requests through, %d requests were not sent", some, unsent)
		}
	})
}

// tlsPair returns both ends of an encrypted connection in memory.
func tlsPair(t *testing.T) (client, server *tlsConn) {
	t.Helper()
	network, ca := NewMemNet(), testca.New(t)
	ln, err := network.Listen(testAddr)
	if err != nil {
		t.Fatal(err)
	}
	nc, err := network.DialContext(context.Background(), "", testAddr)
	if err != nil {
		t.Fatal(err)
	}
	at, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	server = newTLSConn(at, tls.Server, &tls.Config{Certificates: []tls.Certificate{ca.Issue(x509.Certificate{}).TLS()}}, dialPool, time.Minute, &handshake{left: maxHandshake})
	shaken := make(chan error, 1)
	go func() {
		first, err := firstBytes(at)
		if err == nil {
			err = server.accept(first)
		}
		shaken <- err
	}()
	client, err = dialTLS(context.Background(), nc, testAddr, DialOptions{Pool: dialPool, SendTimeout: time.Minute, TLS: &tls.Config{RootCAs: ca.Pool()}})
	if err := errors.Join(err, <-shaken); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close(); ln.Close() })
	return client, server
}

// TestSealedBound has TLS answer by itself without anybody sending: what it says
// waits, up to a bound.
func TestSealedBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := tlsPair(t)
		r := records{c.Conn, c}
		n := 0
		for ; n <= maxSealed; n += 1000 {
			if _, err := r.Write(make([]byte, 1000)); err != nil {
				break
			}
		}
		if n <= maxSealed-1000 || n > maxSealed {
			t.Errorf("%d bytes wait", n)
		}
		c.Close()
		if _, err := r.Write([]byte{1}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("written after the end: %v", err)
		}
	})
}
