package wire

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A wireTap is a connection to a loop as a client without our transport has it.
func (l *loop) wireTap(t *testing.T) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", l.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() })
	if l.tls == nil {
		return nc
	}
	config := l.tls.Clone()
	config.ServerName = "localhost"
	return tls.Client(nc, config)
}

// TestSameBytes sends the same fetches to a plaintext and an encrypted address and
// expects the same bytes back, those of headers included.
func TestSameBytes(t *testing.T) {
	const size = 5<<20 + 12345
	file, data := randomFile(t, size)
	var open sync.WaitGroup
	h := serveRanges(sysReader{file}, &open)
	plain, tapped := newLoopOf(t, plaintext, h), newLoopOf(t, encrypted, h)
	taps := []net.Conn{plain.wireTap(t), tapped.wireTap(t)}
	exchange := func(c net.Conn, request []byte) []byte {
		t.Helper()
		c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := c.Write(request); err != nil {
			t.Fatal(err)
		}
		var all bytes.Buffer
		if _, _, err := recvFrame(io.TeeReader(c, &all)); err != nil {
			t.Fatal(err)
		}
		return all.Bytes()
	}
	for _, c := range taps {
		exchange(c, requestFrame(APIHello, 0, 1, &HelloRequest{}))
	}
	sent := int64(0)
	f := func(ranges ...[2]int) {
		t.Helper()
		open.Add(2 * len(ranges))
		request := requestFrame(APIFetch, 0, 7, fetchRanges(ranges...))
		want, got := exchange(taps[0], request), exchange(taps[1], request)
		open.Wait()
		var body []byte
		for _, r := range ranges {
			body = append(body, data[r[0]:r[0]+r[1]]...)
		}
		sent += int64(len(body))
		if !bytes.Equal(got, want) || !bytes.HasSuffix(got, body) {
			t.Errorf("ranges %v: %d bytes by TLS, %d without, or other ones", ranges, len(got), len(want))
		}
	}

	f()
	f([2]int{0, 0})
	f([2]int{5, 1})
	f([2]int{size - 1, 1})
	f([2]int{0, 16 << 10}, [2]int{0, 0}, [2]int{1, 16<<10 + 1})
	f([2]int{3, sealPiece - 1})
	f([2]int{3, sealPiece})
	f([2]int{3, sealPiece + 1})
	f([2]int{9, maxInline}, [2]int{9, maxInline + 1})
	f([2]int{0, 3 << 20}, [2]int{77, size - 77})
	f([2]int{0, size})
	if a, b := plain.server.Stats(), tapped.server.Stats(); a.SentFileBytes != sent || a.SentCopyBytes != 0 || b.SentFileBytes != 0 || b.SentCopyBytes != sent {
		t.Errorf("%d bytes: %+v by plaintext, %+v by TLS", sent, a, b)
	}

	// A file that was cut short ends the connection, and nothing is sent for what is
	// missing.
	if err := file.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	for i, c := range taps {
		open.Add(1)
		c.Write(requestFrame(APIFetch, 0, 8, fetchRanges([2]int{0, 2 << 20})))
		got, _ := io.ReadAll(c)
		open.Wait()
		if at := bytes.Index(got, data[:64]); at < 0 || len(got)-at > 1<<20 || !bytes.HasPrefix(data[:1<<20], got[at:]) {
			t.Errorf("%s: %d bytes of a file cut short, or other ones", []kind{plaintext, encrypted}[i], len(got))
		}
	}
}

// TestFetchStormTLS fetches ranges of all sizes over several encrypted connections at
// once.
func TestFetchStormTLS(t *testing.T) {
	const size = 4 << 20
	file, data := randomFile(t, size)
	var open sync.WaitGroup
	l := newLoopOf(t, encrypted, serveRanges(sysReader{file}, &open))
	var wg sync.WaitGroup
	for i := range 6 {
		c := l.dial(t)
		wg.Go(func() {
			for n := range 12 {
				open.Add(2)
				checkFetch(t, c, data, [2]int{i * 1000, 1 << (8 + n)}, [2]int{n, i*70_000 + n})
			}
		})
	}
	wg.Wait()
	open.Wait()
	if n := left(l.client); n != 0 {
		t.Errorf("%d buffers of the client are out", n)
	}
}

// TestRenegotiation has OpenSSL, where there is one, ask for a second handshake, and
// for versions before 1.2.
func TestRenegotiation(t *testing.T) {
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		t.Skip("there is no openssl here")
	}
	l := newLoopOf(t, encrypted, echo)
	f := func(in, want string, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		c := exec.CommandContext(ctx, openssl, append([]string{"s_client", "-connect", l.addr}, args...)...)
		c.Stdin = strings.NewReader(in)
		out, _ := c.CombinedOutput()
		if !strings.Contains(string(out), want) {
			t.Errorf("openssl %v says nothing of %q:\n%s", args, want, out)
		}
	}

	f("R\n", "alert unexpected message", "-tls1_2")
	f("", "alert protocol version", "-tls1_1", "-cipher", "ALL@SECLEVEL=0")
	f("", "TLSv1.3", "-tls1_3")
}
