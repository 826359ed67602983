package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

const verifyHelp = `Usage: teralog bench verify [flags]

Sends records that carry their own number and checksum, follows them with
consumers meanwhile, reads everything back at the end, and has a checker look
for what a log must not do: a record that is lost, twice there, damaged, in
another order, or in the place of another. Exits with 1 if it finds anything.

  teralog bench verify
  teralog bench verify --records 1000000 --kill-broker

It takes about 56 bytes of memory a record, and 32 a record of the partition
read back: 10,000,000 stay within 1 GiB.
`

// verifyOptions are the flags.
type verifyOptions struct {
	records, size        int64
	partitions           int
	producers, consumers int
	codec                wire.Codec
	flush                string
	server               string
	tlsFiles             client.TLSFiles
	kill                 bool
	killEvery            time.Duration
	seed                 uint64
	json                 bool
}

// A verification is one run of `bench verify`.
type verification struct {
	verifyOptions
	notes io.Writer
	live  bool // a person looks at notes
	name  string
	topic wire.TopicID
	c     *client.Client

	// quiet is called when all is sent and nobody reads any more, before
	// everything is read back: a test puts something wrong into the log there.
	quiet func(*verification) error

	node   node
	began  time.Time
	ledger ledger
}

// verify is the command `teralog bench verify`.
func verify(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	v := &verification{notes: notes, live: isTerminal(notes)}
	v.node.start = start
	switch err := v.parse(args, out); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	if v.node.dir == "" && v.server == "" {
		temp, err := os.MkdirTemp("", "teralog-verify-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(temp)
		v.node.dir = temp
	}
	// The checker's memory lives to the end; collecting at twice its size
	// would double it.
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(128<<20 + 64*v.records))
	defer debug.SetGCPercent(debug.SetGCPercent(30))
	verdict, err := v.run(ctx)
	if err != nil {
		return err
	}
	return verdict.report(out, v.json)
}

// parse reads the flags; see flags.parse for its errors.
func (v *verification) parse(args []string, out io.Writer) error {
	v.verifyOptions = verifyOptions{records: 10_000_000, size: 100, partitions: 12, producers: 4, consumers: 1, flush: "async",
		killEvery: 3 * time.Second, seed: rand.Uint64()}
	format := "table"
	f := newFlags(verifyHelp)
	f.Var(value[int64]{&v.records, parseCount, formatCount}, "records", "records to send")
	f.Var(size(&v.size), "size", "bytes of a record's value, 24 to 64KiB")
	f.IntVar(&v.partitions, "partitions", v.partitions, "partitions of the topic, 1 to 1024")
	f.IntVar(&v.producers, "producers", v.producers, "producers, each with a connection of its own, 1 to 64")
	f.IntVar(&v.consumers, "consumers", v.consumers, "consumers that follow, each reading every partition, 0 to 16")
	f.Var(value[wire.Codec]{&v.codec, wire.ParseCodec, wire.Codec.String}, "codec", "compression: none, gzip, snappy or zstd")
	f.Var(oneOf(&v.flush, flushWords...), "flush", "when records are made durable: async, interval or sync")
	f.StringVar(&v.server, "server", "", "host:port of a broker that runs already (by default one is started)")
	v.tlsFiles.Flags(f.FlagSet)
	f.StringVar(&v.node.dir, "data-dir", "", "where the started broker keeps its files (by default they are removed)")
	f.BoolVar(&v.kill, "kill-broker", false, "kill the started broker at random moments with SIGKILL and start it again")
	f.Var(duration(&v.killEvery), "kill-every", "mean time that it lives")
	f.Func("seed", "of these moments and of what goes where (by default drawn)", func(s string) (err error) { v.seed, err = strconv.ParseUint(s, 10, 64); return err })
	f.Var(oneOf(&format, "table", "json"), "o", "table or json")
	if err := f.parse(args, out); err != nil {
		return err
	}
	v.json = format == "json"
	return v.check()
}

// check returns an error if what was asked for makes no sense.
func (v *verification) check() error {
	within := func(name string, n, low, high int64) error {
		if n < low || n > high {
			return fmt.Errorf("--%s %d: it is %d to %d", name, n, low, high)
		}
		return nil
	}
	err := errors.Join(
		within("records", v.records, 1, maxOffset-1),
		within("size", v.size, valueSize, 64<<10),
		within("partitions", int64(v.partitions), 1, 1024),
		within("producers", int64(v.producers), 1, 64),
		within("consumers", int64(v.consumers), 0, 16))
	switch {
	case err != nil:
	case v.server != "" && (v.kill || v.node.dir != ""):
		err = errors.New("--kill-broker and --data-dir are for a broker started here, without --server")
	case v.server == "" && v.tlsFiles != (client.TLSFiles{}):
		err = errors.New("--tls and its like go with --server")
	case v.killEvery < time.Millisecond:
		err = errors.New("--kill-every is at least 1ms")
	}
	if err != nil {
		return usage{err}
	}
	return nil
}

// run has everything sent, followed, read back and checked.
func (v *verification) run(ctx context.Context) (verdict verdict, err error) {
	v.began = time.Now()
	v.ledger.run = uint32(v.seed)
	v.ledger.checker = NewChecker(v.ledger.run)
	addr := v.server
	if addr == "" {
		if err := v.node.begin("127.0.0.1:0"); err != nil {
			return verdict, err
		}
		defer func() { err = errors.Join(err, v.node.broker.Stop()) }()
		addr = v.node.broker.Addr
	}
	encrypted, err := v.tlsFiles.Config()
	if err != nil {
		return verdict, usage{fmt.Errorf("TLS: %w", err)}
	}
	v.c, err = client.New(client.Options{Servers: []string{addr}, TLS: encrypted, Name: "teralog-verify", BackoffMax: 200 * time.Millisecond})
	if err != nil {
		return verdict, err
	}
	defer v.c.Close()
	v.name = fmt.Sprintf("verify-%x", v.seed)
	v.topic, err = v.c.CreateTopic(ctx, client.TopicSpec{Name: v.name, Partitions: int32(v.partitions), Settings: []wire.Setting{
		{Key: "flush", Value: v.flush}, {Key: "retention.age", Value: "none"},
	}})
	if err != nil {
		return verdict, fmt.Errorf("create topic %s: %w", v.name, err)
	}
	if err := v.load(ctx); err != nil {
		return verdict, err
	}
	if v.quiet != nil {
		if err := v.quiet(v); err != nil {
			return verdict, err
		}
	}
	if err := v.drain(ctx); err != nil {
		return verdict, err
	}
	v.say("")
	return v.ledger.verdict(v), nil
}

// load runs producers, consumers and the killer until all records have an
// outcome and every consumer has read to the end.
func (v *verification) load(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	run := func(group *sync.WaitGroup, f func(context.Context) error) {
		group.Go(func() {
			if err := f(ctx); err != nil {
				cancel(err)
			}
		})
	}
	var producers, others, talk sync.WaitGroup
	tails := make([]*tail, v.consumers)
	for i := range tails {
		tails[i] = &tail{v: v, id: uint32(i + 1)}
		run(&others, tails[i].run)
	}
	sent, quit := make(chan struct{}), make(chan struct{})
	if v.kill {
		run(&others, func(ctx context.Context) error { return v.node.killAtRandom(ctx, sent, v.killEvery, v.seed) })
	}
	talk.Go(func() { v.progress(quit) })
	for i := range v.producers {
		share := v.records / int64(v.producers)
		if int64(i) < v.records%int64(v.producers) {
			share++
		}
		run(&producers, func(ctx context.Context) error { return v.produce(ctx, uint32(i+1), share) })
	}
	producers.Wait()
	close(sent)
	ends, err := v.c.Offsets(ctx, v.name, client.End())
	if err != nil {
		cancel(err)
	}
	for _, t := range tails {
		t.ends.Store(&ends)
	}
	others.Wait()
	close(quit)
	talk.Wait()
	return context.Cause(ctx)
}

// drain reads the whole topic, a partition after the other, and has the checker
// compare it with what was acknowledged and read.
func (v *verification) drain(ctx context.Context) error {
	x, err := v.c.NewConsumer(client.ConsumerOptions{BufferBytes: 16 << 20})
	if err != nil {
		return err
	}
	defer x.Close()
	starts, err := v.c.Offsets(ctx, v.name, client.Start())
	if err != nil {
		return err
	}
	ends, err := v.c.Offsets(ctx, v.name, client.End())
	if err != nil {
		return err
	}
	e := Drained{}
	for p := range int32(v.partitions) {
		v.say("reading back partition %d of %d", p+1, v.partitions)
		e.Partition, e.Start = wire.PartitionID{Topic: v.topic, Partition: p}, starts[p].Offset
		e.Reads = slices.Grow(e.Reads[:0], int(ends[p].Offset-e.Start))
		if err := x.Assign(ctx, v.name, p, client.Range{From: client.Start(), To: client.End()}); err != nil {
			return err
		}
		for {
			ms, err := x.Poll(ctx)
			if errors.Is(err, client.ErrEnd) {
				break
			}
			if fault := new(client.FetchError); errors.As(err, &fault) {
				v.ledger.violate("reading back: %v", fault)
				break
			}
			if err != nil {
				return fmt.Errorf("reading back: %w", err)
			}
			for i := range ms {
				e.Reads = append(e.Reads, readOf(&ms[i]))
			}
		}
		v.ledger.drained(&e)
		if err := x.Unassign(v.name, p); err != nil {
			return err
		}
	}
	return nil
}

// progress tells a person once a second how far it is.
func (v *verification) progress(quit <-chan struct{}) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-quit:
			return
		case <-tick.C:
			n := v.ledger.tally()
			kills, _ := v.node.deaths()
			v.say("%.0f s: %d of %d acknowledged, %d read, %d kills", time.Since(v.began).Seconds(), n.Acknowledged, v.records, n.Read, kills)
		}
	}
}

func (v *verification) say(format string, args ...any) {
	if v.live {
		fmt.Fprintf(v.notes, "\r\x1b[K%s", fmt.Sprintf(format, args...))
	}
}
