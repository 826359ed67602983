//go:build linux

package sim

import (
	"context"
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// TestFullDisk fills a real file system under load, kills the broker there again
// and again, deletes a topic, and wants everything to go on by itself.
func TestFullDisk(t *testing.T) {
	asked(t)
	b := newBox(t, 64<<20)
	b.serve(t, "127.0.0.1:0")
	b.dial(t)
	b.makeFullTopics(t)
	ballast := b.makeBallast(t)
	l := &load{h: b.h, seed: b.seed, c: b.c, topics: b.topics}
	if err := l.begin(); err != nil {
		t.Fatal(err)
	}
	b.awaitStill(t)
	t.Logf("full: %d B free, %d records acknowledged", b.free(t), b.h.acked())
	for range 6 {
		if err := b.p.kill(); err != nil {
			t.Fatal(err)
		}
		b.serve(t, b.p.addr)
		time.Sleep(time.Duration(b.rnd.Int64N(int64(300 * time.Millisecond))))
		b.readAll(t, l)
	}
	before := b.h.acked()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := b.c.DeleteTopic(ctx, ballast); err != nil {
		t.Fatalf("delete a topic on a full disk: %v", err)
	}
	for b.h.acked() < before+1000 {
		if ctx.Err() != nil {
			t.Fatalf("a minute after %d B came free, %d B are free and %d records were acknowledged", ballastBytes, b.free(t), b.h.acked()-before)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if err := l.finish(ctx); err != nil {
		t.Fatal(err)
	}
	b.readBack(t)
}

const ballastBytes = 20 << 20

// TestFailedFsync has the disk under the file system lose its space, so that an
// fsync fails, once, after which the kernel says that all is well. The broker
// must end, and what it had acknowledged in sync mode must be there.
func TestFailedFsync(t *testing.T) {
	asked(t)
	small := t.TempDir()
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=40m"); err != nil {
		t.Skipf("mount a tmpfs: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(small, 0) })
	b := newBoxOn(t, small, 256<<20)
	b.serve(t, "127.0.0.1:0")
	b.dial(t)
	b.makeFullTopics(t)
	l := &load{h: b.h, seed: b.seed, c: b.c, topics: b.topics, acked: b.note, stopped: b.stood}
	if err := l.begin(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-b.p.ended:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the broker goes on without a disk, %d records acknowledged", b.h.acked())
	}
	l.abort()
	t.Logf("the broker ended: %v\n%s", b.p.err, lastLines(b.log(), 5))
	if code := b.p.cmd.ProcessState.ExitCode(); code != 74 { // do not restart blindly
		t.Errorf("it should have ended with 74")
	}
	if err := os.Rename(b.log(), b.log()+".failed"); err != nil {
		t.Fatal(err)
	}
	command(t, "umount", b.mountpoint())
	if err := syscall.Mount("tmpfs", small, "tmpfs", syscall.MS_REMOUNT, "size=400m"); err != nil {
		t.Fatal(err)
	}
	if !b.mount(t) {
		t.Fatal("the image cannot be mounted again")
	}
	b.serve(t, "127.0.0.1:0")
	b.dial(t)
	b.look(t, 0, nil)
	// Other records take the place of those that are gone. Whoever read those
	// must hear of it all the same, though the machine never went down.
	l = &load{h: b.h, seed: b.seed + 1, c: b.c, topics: b.topics}
	if err := l.begin(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for before := b.h.acked(); b.h.acked() < before+5000 && ctx.Err() == nil; {
		time.Sleep(10 * time.Millisecond)
	}
	if err := l.finish(ctx); err != nil {
		t.Fatal(err)
	}
	b.askPositions(t, ctx, 1)
	b.readBack(t)
	t.Logf("acknowledged records lost: %v, positions answered TRUNCATED: %v", b.lost, b.told)
}

// makeFullTopics makes topics from which nothing is ever deleted.
func (b *box) makeFullTopics(t *testing.T) {
	for _, mode := range []string{"async", "interval", "sync"} {
		id := b.createFull(t, "kept-"+mode, mode)
		b.topics = append(b.topics, loadTopic{name: "kept-" + mode, id: id, partitions: 1, flush: mode})
	}
}

func (b *box) createFull(t *testing.T, name, mode string) wire.TopicID {
	id, err := b.c.CreateTopic(t.Context(), client.TopicSpec{Name: name, Settings: []wire.Setting{{Key: "flush", Value: mode},
		{Key: "segment.bytes", Value: "1MiB"}, {Key: "flush.bytes", Value: fmt.Sprint(boxFlushBytes)}, {Key: "flush.interval", Value: fmt.Sprintf("%dms", boxFlushEvery)}}})
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// makeBallast makes a topic whose end frees space.
func (b *box) makeBallast(t *testing.T) wire.TopicID {
	ctx, id := t.Context(), b.createFull(t, "ballast", "async")
	p, err := b.c.NewProducer(client.ProducerOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for n := 0; n < ballastBytes; n += 64 << 10 {
		if err := p.ProduceAsync(ctx, client.Record{Topic: "ballast", Value: fmt.Append(nil, n, string(zeros[:]))}, nil); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Flush(ctx); err != nil {
		t.Fatal(err)
	}
	return id
}

var zeros [64 << 10]byte

func (b *box) free(t *testing.T) int64 {
	var st syscall.Statfs_t
	if err := syscall.Statfs(b.mountpoint(), &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// awaitStill waits until no record has been acknowledged for a while.
func (b *box) awaitStill(t *testing.T) {
	last, since := int64(-1), time.Now()
	for begun := time.Now(); time.Since(since) < 2*time.Second; time.Sleep(20 * time.Millisecond) {
		if n := b.h.acked(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(begun) > 2*time.Minute {
			t.Fatalf("the disk does not fill: %d B are free", b.free(t))
		}
	}
}

// readAll reads all topics, which a full disk must not keep from being read.
func (b *box) readAll(t *testing.T, l *load) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, topic := range b.topics {
		if _, _, err := l.read(ctx, topic, 0); err != nil {
			t.Fatalf("read %s on a full disk: %v", topic.name, err)
		}
	}
}
