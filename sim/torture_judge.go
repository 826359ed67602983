package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/teralog/teralog/bench"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A stamped record was acknowledged.
type stamped struct {
	offset wire.Offset
	epoch  wire.Epoch
	time   int64 // of its append, ms
	size   int64
}

// losses knows what was acknowledged since the last start of the broker, which
// is what the next fault can take. The history's lock guards it.
type losses struct {
	acked  map[wire.PartitionID][]stamped
	counts map[wire.PartitionID]int64
	epochs map[wire.PartitionID]wire.Epoch // the last that was weighed
	gone   map[string]int64                // records lost that had been acknowledged, by flush mode
	any    atomic.Bool                     // a fault came that may lose some
}

// note keeps an acknowledgement; see load.
func (o *losses) note(p wire.PartitionID, a client.Ack, size int) {
	o.counts[p]++
	if a.Offset >= 0 && a.Epoch >= o.epochs[p] { // else it was on its way too long to be weighed
		o.acked[p] = append(o.acked[p], stamped{a.Offset, a.Epoch, a.Time, int64(size)})
	}
}

// soFar returns how many records of each partition were acknowledged.
func (o *losses) soFar(h *history) map[wire.PartitionID]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(o.counts)
}

// A finding is where a start of the broker found the end of a log.
type finding struct {
	topic loadTopic
	id    wire.PartitionID
	end   wire.Offset
	epoch wire.Epoch // that began with this start
}

// findings asks the broker what it found at its start, and those before it that
// were killed while they started. Each start that follows no clean stop has its
// leader epoch.
func (t *torture) findings(ctx context.Context) (all []finding, err error) {
	ctx, cancel := context.WithTimeout(ctx, clientPatience)
	defer cancel()
	var conn *wire.Conn
	for conn == nil { // it is one of many at the door
		if conn, err = wire.Dial(ctx, &net.Dialer{}, t.addr, wire.DialOptions{Client: "torture"}); err != nil && ctx.Err() != nil {
			return nil, err
		}
	}
	defer conn.Close()
	for _, topic := range t.l.topics {
		var resp wire.DescribeTopicsResponse
		if err := conn.Do(ctx, &wire.DescribeTopicsRequest{Topics: []string{topic.name}}, &resp); err != nil {
			return nil, err
		}
		if ds := resp.Topics; len(ds) != 1 || ds[0].Code != wire.CodeOK || len(ds[0].Partitions) != int(topic.partitions) {
			return nil, fmt.Errorf("describe %s: %+v", topic.name, ds)
		}
		for p, d := range resp.Topics[0].Partitions {
			f := finding{topic: topic, id: wire.PartitionID{Topic: topic.id, Partition: int32(p)}}
			for f.epoch = t.losses.epochs[f.id] + 1; f.epoch <= d.Epoch; f.epoch++ {
				if f.end, err = foundEnd(ctx, conn, f.id, f.epoch); err != nil {
					return nil, fmt.Errorf("%s/%d: %w", topic.name, p, err)
				}
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// foundEnd returns where the log ended when leader epoch e began, whatever was
// appended since: where the epochs before it end. Nobody can have read so far as
// the reader that this pretends to be, so it is told.
func foundEnd(ctx context.Context, conn *wire.Conn, id wire.PartitionID, e wire.Epoch) (wire.Offset, error) {
	req := wire.FetchRequest{Replica: wire.NoNode, MaxBytes: 1, Partitions: []wire.FetchPartition{{
		Topic: id.Topic, Partition: id.Partition, Offset: 1 << 60, Epoch: wire.NoEpoch, LastEpoch: e - 1, MaxBytes: 1}}}
	var resp wire.FetchResponse
	buf, err := conn.DoBuf(ctx, &req, &resp)
	if err != nil {
		return 0, err
	}
	buf.Release()
	r := resp.Partitions[0]
	if r.Code != wire.CodeTruncated {
		return 0, fmt.Errorf("a reader beyond the end of epoch %d gets %v", e-1, r.Code)
	}
	return r.DivergeEnd, nil
}

// weigh holds what is gone of one partition, after a fault that may lose records
// or one that may not, against its flush mode. The history is held.
func (t *torture) weigh(f finding, lossy bool) error {
	var count, bytes int64
	first, last := int64(1<<62), int64(0)
	var since []stamped
	for _, r := range t.losses.acked[f.id] {
		switch {
		case r.epoch >= f.epoch:
			since = append(since, r)
		case r.offset >= f.end:
			count++
			bytes += r.size
			first, last = min(first, r.time), max(last, r.time)
		}
	}
	t.losses.acked[f.id], t.losses.epochs[f.id] = since, f.epoch
	t.losses.gone[f.topic.flush] += count
	lossy = lossy && f.topic.flush != "sync"
	switch {
	case count > 0 && !lossy:
		return fmt.Errorf("%s/%d: %d acknowledged records are gone, from offset %d on", f.topic.name, f.id.Partition, count, f.end)
	case f.topic.flush == "interval" && (bytes > tortureFlushBytes || last-first > tortureFlushEvery):
		return fmt.Errorf("%s/%d: %d B of acknowledged records are gone, over %d ms; the bounds are %d B and %d ms",
			f.topic.name, f.id.Partition, bytes, last-first, tortureFlushBytes, tortureFlushEvery)
	}
	if lossy {
		t.h.checker.Apply(&bench.Lossy{Partition: f.id, Keep: f.end, Epoch: f.epoch})
	}
	return nil
}

// settle lets all that was sent come to an outcome and reads everything back.
func (t *torture) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, max(settleLimit, time.Duration(t.minutes*float64(time.Minute))))
	defer cancel()
	if err := t.l.finish(ctx); err != nil {
		return err
	}
	for _, topic := range t.l.topics {
		for p := range topic.partitions {
			t.show.Bar(fmt.Sprintf("reading back %s/%d", topic.name, p), 1)
			all, err := t.l.drain(ctx, topic, p)
			if err != nil {
				return fmt.Errorf("read back %s/%d: %w", topic.name, p, err)
			}
			t.result.ReadBack += int64(len(all))
			if _, err := t.l.lookUps(ctx, topic, p, all, t.rnd); err != nil {
				return fmt.Errorf("look up times in %s/%d: %w", topic.name, p, err)
			}
		}
	}
	return nil
}

// A Footprint is what a broker takes of its machine.
type Footprint struct {
	Descriptors int   `json:"descriptors"` // of these, Logs and Sockets
	Logs        int   `json:"logs"`        // files of partitions, open or mapped
	Sockets     int   `json:"sockets"`
	Goroutines  int   `json:"goroutines"`
	Partitions  int   `json:"partitions"`
	Resident    int64 `json:"resident_bytes"`
	Deleted     int   `json:"deleted"` // folders of deleted topics that are still there
}

func (t *torture) footprint(ctx context.Context) (f Footprint, err error) {
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", t.p.cmd.Process.Pid))
	if err != nil {
		return f, err
	}
	for _, name := range names {
		at, err := os.Readlink(name)
		if err != nil {
			continue // closed meanwhile
		}
		f.Descriptors++
		switch {
		case strings.HasPrefix(at, "socket:"):
			f.Sockets++
		case strings.Contains(at, "/topics/"):
			f.Logs++
		}
	}
	page, err := bench.ReadPage(ctx, t.p.http)
	if err != nil {
		return f, err
	}
	f.Partitions = int(page["teralog_partitions"])
	f.Goroutines, f.Resident = int(page["go_goroutines"]), int64(page["process_resident_memory_bytes"])
	gone, err := filepath.Glob(filepath.Join(t.data(), "deleted", "*"))
	f.Deleted = len(gone)
	return f, err
}

// How much more than at the beginning, when it had empty topics and one client,
// a broker may take that has come to rest. Open log files come on top: those of
// sealed segments stay open, up to a bound of their own. So does a goroutine for
// each partition that was too much for who produced to it.
const (
	restingSockets    = 2
	restingOthers     = 8 // descriptors
	restingGoroutines = 16
	restingBytes      = 256 << 20
)

// It is looked at so often, and so many times at most, a minute in all.
const (
	restEvery = 200 * time.Millisecond
	restLooks = 300
)

// exceeds says what of a footprint is more than it may be; "" if nothing is.
func (f Footprint) exceeds(before Footprint) string {
	var what []string
	more := func(name string, now, most int64) {
		if now > most {
			what = append(what, fmt.Sprintf("%d %s, at most %d", now, name, most))
		}
	}
	more("sockets", int64(f.Sockets), int64(before.Sockets+restingSockets))
	more("other descriptors", int64(f.Descriptors-f.Sockets-f.Logs), int64(before.Descriptors-before.Sockets-before.Logs+restingOthers))
	more("goroutines", int64(f.Goroutines), int64(before.Goroutines+restingGoroutines+f.Partitions))
	more("bytes resident", f.Resident, before.Resident+restingBytes)
	more("folders of deleted topics", int64(f.Deleted), 0)
	return strings.Join(what, "; ")
}

// rest sees the broker come to rest once nobody wants anything of it.
func (t *torture) rest(ctx context.Context) error {
	t.l.abort()
	exceeds := "no look at it"
	for range restLooks {
		now, err := t.footprint(ctx)
		if err != nil {
			return err
		}
		t.result.After = now
		if exceeds = now.exceeds(t.result.Before); exceeds == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(restEvery):
		}
	}
	p := t.p
	t.p = nil
	p.cmd.Process.Signal(syscall.SIGQUIT) // its last words are what its goroutines do
	<-p.ended
	return fmt.Errorf("the broker does not come to rest: %s", exceeds)
}

// judge holds all that happened against what may.
func (t *torture) judge() error {
	var errs []error
	for _, w := range t.h.violations() {
		errs = append(errs, errors.New(w))
	}
	found, counts := t.h.checker.Finish()
	t.result.Anomalies = counts
	for i, a := range found {
		if i == 0 || a.Kind != found[i-1].Kind {
			errs = append(errs, fmt.Errorf("%d times %v", counts[a.Kind], a))
		}
	}
	bad, err := suspicious(t.log(), "no space left on device") // a topic made on a full disk is offline until there is room
	if err != nil {
		return err
	}
	errs = append(errs, bad...)
	t.show.Bar("verifying the files", 1)
	var said strings.Builder
	damaged, err := storage.VerifyPath(&said, storage.OS(), t.data())
	if damaged > 0 {
		err = fmt.Errorf("%d damaged places\n%s", damaged, &said)
	}
	return errors.Join(append(errs, err)...)
}
