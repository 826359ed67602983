package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/teralog/teralog/client"
)

const backlogHelp = `Usage: teralog bench backlog [flags]

Reads a backlog that is not in memory while others produce at half of full
speed, and says how fast that went, what it did to the producers, and whether
the newest records stayed in memory. In turn: the backlog is written; full speed
is measured, unless --rate says what half of it is; producers go undisturbed;
producers go while the backlog is read. Before each of the three the page cache
gives up what was written, but for the newest records, so that all find the same
memory free. It is only looked at, and given up, for a broker of our own, whose
files are known.

  teralog bench backlog --backlog 10GiB --partitions 12 --dir /var/tmp
`

func benchBacklog(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	l := newLoad("backlog")
	f := newFlags(backlogHelp)
	l.backlog = 2 << 30
	l.brokerFlags(f)
	l.topicFlags(f)
	l.producerFlags(f)
	l.rateFlag(f)
	l.outputFlags(f)
	f.Var(duration(&l.warmUp), "warm-up", "time before anything counts")
	f.Var(duration(&l.duration), "duration", "time that full speed is measured, and then that producers go undisturbed")
	f.IntVar(&l.consumers, "consumers", l.consumers, "consumers that read the backlog, each all of it")
	f.Var(size(&l.backlog), "backlog", "bytes of records to read")
	l.refine = l.someConsumers
	return l.execute(ctx, f, args, start, out, notes, measureBacklog)
}

// Backlog is what reading a backlog did. The result's own figures are those of
// the producers meanwhile.
type Backlog struct {
	Bytes       int64     `json:"bytes"` // read, of keys and values
	Records     int64     `json:"records"`
	Seconds     float64   `json:"seconds"`
	MBPerSecond float64   `json:"mb_per_second"`
	Cold        bool      `json:"cold"`           // the page cache was given up before
	Undisturbed *Latency  `json:"undisturbed_us"` // of the producers, nobody reading
	P99Ratio    *float64  `json:"p99_ratio"`      // of the producers, reading over undisturbed
	TailInCache *float64  `json:"tail_resident"`  // share of the newest bytes, 0 to 1
	TailBytes   int64     `json:"tail_bytes"`     // how many of them were looked at
	ReadLaps    []float64 `json:"read_mb_each_second"`
}

func (b *Backlog) text(line func(name, format string, args ...any)) {
	line("backlog", "%s records, %.1f MB in %.1f s: %.1f MB/s", group(b.Records), float64(b.Bytes)/1e6, b.Seconds, b.MBPerSecond)
	if b.Undisturbed != nil {
		line("undisturbed", "%s", b.Undisturbed.text())
	}
	if b.P99Ratio != nil {
		line("P99 ratio", "%.2f", *b.P99Ratio)
	}
	if b.TailInCache != nil {
		line("newest", "%.1f %% of the newest %.0f MB were in memory afterwards", *b.TailInCache*100, float64(b.TailBytes)/1e6)
	}
}

func measureBacklog(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	if err := t.prepare(ctx, l); err != nil {
		return nil, err
	}
	flat := *l
	flat.rate = 0
	n, err := t.fill(ctx, &flat, d)
	if err != nil {
		return nil, err
	}
	ends, err := t.c.Offsets(ctx, l.topic, client.End())
	if err != nil {
		return nil, err
	}
	// Each part finds the cache as the one before it did.
	part := func(name string, run func() (*Result, error)) (*Result, error) {
		if err := t.forget(l); err != nil {
			return nil, err
		}
		d.Say("%s:", name)
		return run()
	}
	paced := *l
	if l.rate == 0 {
		full, err := part("full speed", func() (*Result, error) { return produceOnce(ctx, t, &flat, d) })
		if err != nil || full.Interrupted {
			return full, err
		}
		paced.rate = max(int64(full.RecordsPerSecond/2), int64(l.producers))
	}
	calm, err := part(fmt.Sprintf("undisturbed, %s records/s", group(paced.rate)), func() (*Result, error) { return produceOnce(ctx, t, &paced, d) })
	if err != nil || calm.Interrupted {
		return calm, err
	}
	b := &Backlog{Undisturbed: calm.Latency, Cold: t.dir != ""}
	r, err := part("while the backlog is read", func() (*Result, error) { return t.readWhileProducing(ctx, &paced, d, b, ends) })
	if r == nil {
		return nil, err
	}
	r.Backlog = b
	if want := n * int64(l.consumers); err == nil && b.Records != want && !r.Interrupted && t.dir != "" {
		err = fmt.Errorf("%d records of the backlog were read, and there were %d", b.Records, want)
	}
	if r.Latency != nil && calm.Latency != nil {
		b.P99Ratio = ratio(r.Latency.P99, calm.Latency.P99)
	}
	if t.dir != "" && err == nil {
		err = t.residency(l, b)
	}
	return r, err
}

func produceOnce(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	ps, err := openProducers(t, l)
	if err != nil {
		return nil, err
	}
	defer ps.close()
	r, err := t.measure(ctx, l, d, ps.run)
	if r != nil {
		r.bound(ps.verdict(l, r))
	}
	return r, err
}

// readWhileProducing produces until the readers have read up to ends.
func (t *target) readWhileProducing(ctx context.Context, l *load, d *Display, b *Backlog, ends []client.Found) (*Result, error) {
	during := *l
	during.warmUp, during.duration = 0, maxRead
	reading, done := context.WithCancel(ctx)
	defer done()
	var wg sync.WaitGroup
	var readErr error
	wg.Go(func() {
		defer done()
		readErr = t.readTo(ctx, l, b, ends)
	})
	r, err := produceOnce(reading, t, &during, d)
	done()
	wg.Wait()
	if r != nil {
		r.Interrupted = ctx.Err() != nil
	}
	return r, errors.Join(err, readErr)
}

// maxRead bounds the time in which a backlog must have been read.
const maxRead = time.Hour

// readTo has l.consumers consumers read the topic up to ends.
func (t *target) readTo(ctx context.Context, l *load, b *Backlog, ends []client.Found) error {
	m := newMeter()
	errs := make([]error, l.consumers)
	began := time.Now()
	var running sync.WaitGroup
	for i := range l.consumers {
		running.Go(func() { errs[i] = t.readOnce(ctx, l.topic, ends, m) })
	}
	finished := make(chan struct{})
	go func() {
		running.Wait()
		close(finished)
	}()
	ticks := time.NewTicker(time.Second)
	defer ticks.Stop()
	for last, going := int64(0), true; going; {
		select {
		case <-ticks.C:
			now := m.bytes.Load()
			b.ReadLaps = append(b.ReadLaps, float64(now-last)/1e6)
			last = now
		case <-finished:
			going = false
		}
	}
	b.Seconds = time.Since(began).Seconds()
	b.Records, b.Bytes = m.records.Load(), m.bytes.Load()
	b.MBPerSecond = over(float64(b.Bytes)/1e6, b.Seconds)
	return errors.Join(errs...)
}

// readOnce reads the topic from its start up to ends.
func (t *target) readOnce(ctx context.Context, topic string, ends []client.Found, m *meter) error {
	x, err := t.c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		return err
	}
	defer x.Close()
	for _, e := range ends {
		if e.Offset == 0 {
			continue
		}
		if err := x.Assign(ctx, topic, e.Partition, client.Range{To: client.At(e.Offset)}); err != nil {
			return err
		}
	}
	for {
		messages, err := x.Poll(ctx)
		if errors.Is(err, client.ErrEnd) || ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		bytes := int64(0)
		for i := range messages {
			bytes += int64(len(messages[i].Key) + len(messages[i].Value))
		}
		m.add(int64(len(messages)), bytes)
	}
}

// hotTail is how much of the end of the topic should stay in memory, in bytes.
const hotTail = 64 << 20

// ends calls f for the files of each partition, newest first, with how many
// of each one's last bytes belong to the hot tail. f returns how many there
// were.
func (t *target) ends(l *load, f func(name string, tail int64) (int64, error)) error {
	files, err := t.logFiles(l)
	if err != nil {
		return err
	}
	for _, names := range files {
		left := int64(hotTail) / int64(l.partitions)
		for _, name := range slices.Backward(names) {
			n, err := f(name, left)
			if err != nil {
				return err
			}
			left = max(left-n, 0)
		}
	}
	return nil
}

// forget has the kernel drop the topic's files from its cache, but for the hot
// tail, if the broker is our own.
func (t *target) forget(l *load) error {
	if t.dir == "" {
		return nil
	}
	return t.ends(l, forgetFile)
}

// forgetFile drops all but the last bytes of a file from the cache, which the
// kernel does only with what is on the disk.
func forgetFile(name string, but int64) (kept int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return 0, err
	}
	if st.Size() <= but {
		return st.Size(), nil
	}
	if err := unix.Fdatasync(int(f.Fd())); err != nil {
		return 0, fmt.Errorf("sync %s: %w", name, err)
	}
	if err := unix.Fadvise(int(f.Fd()), 0, st.Size()-but, unix.FADV_DONTNEED); err != nil {
		return 0, fmt.Errorf("drop %s from the cache: %w", name, err)
	}
	return but, nil
}

// residency says how much of the hot tail is in memory.
func (t *target) residency(l *load, b *Backlog) error {
	in, all := int64(0), int64(0)
	err := t.ends(l, func(name string, tail int64) (int64, error) {
		pages, resident, err := residentTail(name, tail)
		all, in = all+pages, in+resident
		return pages * int64(os.Getpagesize()), err
	})
	b.TailInCache = ratio(float64(in), float64(all))
	b.TailBytes = all * int64(os.Getpagesize())
	return err
}

// residentTail returns how many of the pages of a file's last n bytes, written
// ones only, there are and how many of them the cache holds. Mapping a file
// loads nothing.
func residentTail(name string, n int64) (pages, resident int64, err error) {
	f, err := os.Open(name)
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil || st.Size() == 0 || n == 0 {
		return 0, 0, err
	}
	page := int64(os.Getpagesize())
	from := max(st.Size()-n, 0) / page * page
	b, err := unix.Mmap(int(f.Fd()), from, int(st.Size()-from), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return 0, 0, fmt.Errorf("map %s: %w", name, err)
	}
	defer unix.Munmap(b)
	vec := make([]byte, (int64(len(b))+page-1)/page)
	if err := mincore(b, vec); err != nil {
		return 0, 0, fmt.Errorf("residency of %s: %w", name, err)
	}
	for _, v := range vec {
		resident += int64(v & 1)
	}
	return int64(len(vec)), resident, nil
}

// mincore fills vec with a byte for each page of b, whose lowest bit says
// whether the page is in memory.
func mincore(b, vec []byte) error {
	_, _, errno := unix.Syscall(unix.SYS_MINCORE, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), uintptr(unsafe.Pointer(&vec[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
