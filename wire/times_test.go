package wire

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/mem"
)

// wantTimes checks how many durations were recorded, and their sum.
func wantTimes(t *testing.T, l *mem.Latency, count int64, sum time.Duration) {
	t.Helper()
	counts, got := l.Read()
	n := int64(0)
	for _, c := range counts {
		n += c
	}
	if n != count || got != sum {
		t.Fatalf("%d times that make %v, want %d and %v", n, got, count, sum)
	}
}

// TestTimes has calls take known times: one in timedAfter + 1 is timed, the
// wait for room counts as admission, and a call that was retimed from then on.
func TestTimes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, handlerFunc(func(c *Call) {
			go func() {
				time.Sleep(time.Second)
				if c.API == APITrim {
					c.Retime()
					time.Sleep(100 * time.Millisecond)
				}
				c.ReplyError(CodeBusy)
			}()
		}), func(s *Server) { s.MaxInFlight = 1 })
		p, times := b.helloPeer(), b.server.Times()
		const rounds = 3
		for range rounds * (timedAfter + 1) {
			p.send(requestFrame(APITrim, 0, 2, &TrimRequest{Topic: FirstUserTopic}))
			p.recv()
		}
		wantTimes(t, &times.Calls[APITrim], rounds, rounds*100*time.Millisecond)
		wantTimes(t, &times.Admission, rounds, 0)
		wantTimes(t, &times.Reply, rounds, 0)

		two := requestFrame(APIInitProducer, 0, 3, &InitProducerRequest{})
		two = append(two, two...)
		p.send(two[:len(two)/2])
		p.recv()
		for range timedAfter / 2 {
			p.send(two)
			p.recv()
			p.recv()
		}
		wantTimes(t, &times.Calls[APIInitProducer], 1, 2*time.Second) // a second one, which waits for the first
		wantTimes(t, &times.Admission, rounds+1, time.Second)
	})
}

// TestTimesReply has a client take its answer late.
func TestTimesReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := make([]byte, 1<<20)
		b := newBed(t, handlerFunc(func(c *Call) {
			c.ReplyFiles(&TrimResponse{}, []FileRange{{R: bytes.NewReader(answer), Len: int64(len(answer))}})
		}), nil)
		p := b.helloPeer()
		for range timedAfter + 1 {
			p.send(trimFrame(2, 1))
			time.Sleep(time.Second)
			p.recv()
		}
		synctest.Wait()
		wantTimes(t, &b.server.Times().Reply, 1, time.Second)
	})
}
