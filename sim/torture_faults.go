package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A nemesis does one kind of harm and sees the broker come round.
type nemesis struct {
	kind      string
	perMinute float64
	strike    func(*torture, context.Context) error
}

var nemeses = []*nemesis{
	{"kill", 6, (*torture).killed},
	{"pause", 2, (*torture).paused},
	{"full disk", 0.5, (*torture).filled},
	{"failed fsync", 0.3, (*torture).unsynced},
	{"power cut", 0.5, (*torture).cutOff},
}

// A strike is due at a moment of the run. If the one before it takes longer, it
// waits.
type strike struct {
	at time.Duration
	by *nemesis
}

// schedule draws what comes when: all in an order of chance, spread over the run.
func (t *torture) schedule() []strike {
	var all []strike
	for _, n := range nemeses {
		for range max(1, int(math.Ceil(n.perMinute*t.minutes-1e-9))) { // 0.3 is a little more than it should be
			all = append(all, strike{by: n})
		}
	}
	t.rnd.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	share := t.minutes * float64(time.Minute) / float64(len(all))
	for i := range all {
		all[i].at = time.Duration((float64(i) + t.rnd.Float64()) * share)
	}
	return all
}

func (t *torture) suffer(ctx context.Context, by *nemesis) error {
	begun := time.Now()
	if err := by.strike(t, ctx); err != nil {
		return fmt.Errorf("%s after %.1f s: %w", by.kind, time.Since(t.begun).Seconds(), err)
	}
	t.result.Faults[by.kind]++
	t.result.Longest[by.kind] = max(t.result.Longest[by.kind], time.Since(begun).Seconds())
	return nil
}

// upTo draws a time below d.
func (t *torture) upTo(d time.Duration) time.Duration { return time.Duration(t.rnd.Int64N(int64(d))) }

// killed ends the broker with SIGKILL, and sometimes the next one while it
// starts.
func (t *torture) killed(ctx context.Context) error {
	if err := t.p.kill(); err != nil {
		return err
	}
	if t.rnd.IntN(5) == 0 {
		if err := t.launch(); err != nil {
			return err
		}
		time.Sleep(t.upTo(200 * time.Millisecond))
		if err := t.p.kill(); err != nil {
			return err
		}
		t.result.Faults["kill"]++
	}
	return t.again(ctx)
}

// paused stops the broker's process and lets it go on.
func (t *torture) paused(ctx context.Context) error {
	longest := min(3*time.Second, time.Duration(t.minutes*6*float64(time.Second))) // a short run has short ones
	pid := t.p.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		return err
	}
	time.Sleep(200*time.Millisecond + t.upTo(max(longest-200*time.Millisecond, 1)))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		return err
	}
	return t.resumed(ctx)
}

// filled lets the disk fill up. Reading goes on, a topic can be deleted, and the
// broker can be killed and started again; all that is to be written waits and
// goes on by itself once there is room.
func (t *torture) filled(ctx context.Context) error {
	ballast, err := t.ballast(ctx)
	if err != nil {
		return err
	}
	how := "hidden"
	if t.rnd.IntN(2) == 0 {
		how = "seen"
	}
	bound := fmt.Sprintf("%d %s", heldBelow(t.data())+t.rnd.Int64N(min(2<<20, 10*t.records)), how)
	os.Remove(t.disk() + metSuffix) // of the last time
	log, err := os.Stat(t.log())
	if err != nil {
		return err
	}
	if err := t.tell("full %s", bound); err != nil {
		return err
	}
	if err := t.fills(ctx, log.Size()); err != nil {
		return err
	}
	time.Sleep(t.upTo(500 * time.Millisecond))
	if err := t.peek(ctx); err != nil {
		return fmt.Errorf("read on a full disk: %w", err)
	}
	if err := t.l.c.DeleteTopic(ctx, ballast); err != nil {
		return fmt.Errorf("delete a topic on a full disk: %w", err)
	}
	if t.rnd.IntN(2) == 0 {
		if err := t.p.kill(); err != nil {
			return err
		}
		t.result.Faults["kill"]++
		t.flags = []string{"-full", bound}
		if err := t.start(ctx); err != nil {
			return fmt.Errorf("start on a full disk: %w", err)
		}
		if err := t.peek(ctx); err != nil {
			return fmt.Errorf("read on a full disk after a start: %w", err)
		}
		if err := t.weighed(ctx); err != nil {
			return err
		}
	}
	time.Sleep(t.upTo(500 * time.Millisecond))
	if err := t.tell("room"); err != nil {
		return err
	}
	return t.resumed(ctx)
}

// ballast makes a topic whose end frees space.
func (t *torture) ballast(ctx context.Context) (wire.TopicID, error) {
	topic := loadTopic{name: fmt.Sprintf("ballast-%d", t.starts), partitions: 1, flush: "async"}
	id, err := t.l.c.CreateTopic(ctx, client.TopicSpec{Name: topic.name, Settings: []wire.Setting{{Key: "flush", Value: topic.flush}}})
	if err != nil {
		return 0, err
	}
	topic.id = id
	w, err := t.l.writer(client.ProducerOptions{})
	if err != nil {
		return 0, err
	}
	defer w.p.Close()
	for range 2000 {
		if err := w.send(ctx, topic); err != nil {
			return 0, err
		}
	}
	return id, w.p.Flush(ctx)
}

// fills waits until a write has met the full disk; or, if the broker saw it first
// and refuses all that there is to write, for a while after it has logged that,
// from byte told on.
func (t *torture) fills(ctx context.Context, told int64) error {
	left := 200
	return t.await(ctx, 4*recoverLimit, "the disk to be full", func() bool {
		if _, err := os.Stat(t.disk() + metSuffix); err == nil {
			return true
		}
		if refuses(t.logged(told)) {
			left--
		}
		return left == 0
	})
}

// logged returns what the broker has logged, from a byte on.
func (t *torture) logged(from int64) []byte {
	f, err := os.Open(t.log())
	if err != nil {
		return nil
	}
	defer f.Close()
	b, _ := io.ReadAll(io.NewSectionReader(f, from, 16<<20))
	return b
}

// refuses reports whether a log tells of a mark of the disk from which on nothing
// is written.
func refuses(log []byte) bool {
	return bytes.Contains(log, []byte("limit=disk-refuse")) || bytes.Contains(log, []byte("limit=disk-protect"))
}

// peek reads the first and the last records of each partition.
func (t *torture) peek(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	for _, topic := range t.l.topics {
		for p := range topic.partitions {
			for _, from := range []float64{0, 1} {
				if err := t.l.glance(ctx, topic, p, from, 100); err != nil {
					return fmt.Errorf("%s/%d: %w", topic.name, p, err)
				}
			}
		}
	}
	return nil
}

// exitIO is how a broker ends whose disk cannot be trusted any more.
const exitIO = 74

// unsynced has one fsync fail. The broker must end, and what it had acknowledged
// as durable must be there, though the page cache has forgotten the rest.
func (t *torture) unsynced(ctx context.Context) error {
	where := []string{"/topics/", "/metadata/", "/kept-sync/"}[t.rnd.IntN(3)]
	if err := t.tell("fail %s", where); err != nil {
		return err
	}
	late, stop := looks(recoverLimit)
	defer stop()
	select {
	case <-t.p.ended:
	case <-late:
		return fmt.Errorf("the broker goes on %v after an fsync in %s was to fail", recoverLimit, where)
	case <-ctx.Done():
		return ctx.Err()
	}
	if code := t.p.cmd.ProcessState.ExitCode(); code != exitIO {
		return fmt.Errorf("the broker should have ended with %d, not with %d: %w", exitIO, code, t.p.err)
	}
	// Its last words are not those of a fault of the program.
	if err := os.Rename(t.log(), fmt.Sprintf("%s.fsync-%d", t.log(), t.starts)); err != nil {
		return err
	}
	return t.poorer(ctx, func() error { return nil })
}

// cutOff cuts the power, after a moment in which the disk already did not sync
// any more, and sometimes again while the broker recovers.
func (t *torture) cutOff(ctx context.Context) error {
	if err := t.tell("stall"); err != nil {
		return err
	}
	time.Sleep(50*time.Millisecond + t.upTo(400*time.Millisecond))
	cut := func() error {
		t.boots++
		t.flags = []string{"-power-cut"}
		return t.p.kill()
	}
	if err := cut(); err != nil {
		return err
	}
	return t.poorer(ctx, func() error {
		for t.rnd.IntN(3) == 0 {
			if err := t.launch(); err != nil {
				return err
			}
			time.Sleep(t.upTo(300 * time.Millisecond))
			if err := cut(); err != nil {
				return err
			}
		}
		return nil
	})
}

// again starts the broker and sees it at work, with nothing lost.
func (t *torture) again(ctx context.Context) error {
	if err := t.start(ctx); err != nil {
		return err
	}
	if err := t.weighed(ctx); err != nil {
		return err
	}
	return t.resumed(ctx)
}

// weighed sees that a start has lost nothing.
func (t *torture) weighed(ctx context.Context) error {
	all, err := t.findings(ctx)
	if err != nil {
		return err
	}
	t.h.mu.Lock()
	defer t.h.mu.Unlock()
	for _, f := range all {
		if err := t.weigh(f, false); err != nil {
			return err
		}
	}
	return nil
}

// onTheirWay is how long acknowledgements are given to arrive that a broker had
// sent before it died. Those that take longer are not weighed, but checked.
const onTheirWay = 20 * time.Millisecond

// poorer is again after a fault that may have lost records. What clients see is
// held back until the checker knows what was lost, since it may be in its place.
// Before that other brokers may live and die.
func (t *torture) poorer(ctx context.Context, before func() error) error {
	time.Sleep(onTheirWay)
	t.losses.any.Store(true)
	held := func() error {
		t.h.mu.Lock()
		defer t.h.mu.Unlock()
		if err := before(); err != nil {
			return err
		}
		if err := t.start(ctx); err != nil {
			return err
		}
		all, err := t.findings(ctx)
		if err != nil {
			return err
		}
		for _, f := range all {
			if err := t.weigh(f, true); err != nil {
				return err
			}
		}
		return nil
	}
	if err := held(); err != nil {
		return err
	}
	return t.resumed(ctx)
}

// resumed waits until records of every partition are acknowledged again.
func (t *torture) resumed(ctx context.Context) error {
	before := t.losses.soFar(t.h)
	return t.await(ctx, recoverLimit, "records to be acknowledged in every partition", func() bool {
		now := t.losses.soFar(t.h)
		for _, topic := range t.l.topics {
			for p := range topic.partitions {
				if id := (wire.PartitionID{Topic: topic.id, Partition: p}); now[id] == before[id] {
					return false
				}
			}
		}
		return true
	})
}

// tell has the broker's disk do something.
func (t *torture) tell(format string, args ...any) error {
	if _, err := fmt.Fprintf(t.p.tell, format+"\n", args...); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		return fmt.Errorf("the broker's disk does not hear: %w", err)
	}
	return nil
}
