package bench

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A load is what a workload is asked to do. Sizes are in bytes.
type load struct {
	workload string
	command  string // as it was typed

	server   string          // "": a broker of our own
	pid      int             // of the server, 0: not known
	http     string          // where the server has its metrics
	tlsFiles client.TLSFiles // how to reach the server
	keep     bool            // its files stay
	dir      string          // where our own broker's directory is made

	topic      string
	partitions int    // 0: 1, or what the topic has
	flush      string // "": async, or what the topic has
	settings   settings

	size, keys int64
	producers  int
	consumers  int
	acks       string
	codec      wire.Codec
	batch      int64
	buffer     int64 // 0: as window says
	inFlight   int
	linger     time.Duration
	one        bool // each record waits for the one before it
	follow     bool // read from the end on

	rate     int64 // records a second, 0: as fast as it goes
	warmUp   time.Duration
	duration time.Duration
	records  int64 // 0: until duration has passed
	backlog  int64 // bytes to read
	conns    int

	format, csv, html string
	profile           string
	quiet             bool

	serve  []string     // flags for a broker of our own
	refine func() error // of one workload: a further look at what was asked, or nil
}

// newLoad returns the defaults of a workload.
func newLoad(workload string) *load {
	return &load{workload: workload, topic: "bench", size: 1 << 10, producers: 1, consumers: 1, acks: "all",
		batch: 64 << 10, inFlight: 5, warmUp: 2 * time.Second, duration: 10 * time.Second, format: "text"}
}

var (
	acksWords  = []string{"0", "1", "all"}
	flushWords = []string{"async", "interval", "sync"}
)

func (l *load) brokerFlags(f *flags) {
	f.StringVar(&l.server, "server", "", "host:port of the broker to load (by default one is started for the run)")
	f.IntVar(&l.pid, "broker-pid", 0, "process of that broker, if it runs on this machine: its CPU and memory are reported")
	f.StringVar(&l.http, "broker-http", "", "host:port of that broker's metrics")
	l.tlsFiles.Flags(f.FlagSet)
	f.BoolVar(&l.keep, "keep", false, "leave the directory of our own broker, and say where it is")
	f.StringVar(&l.dir, "dir", "", "where the directory of our own broker is made (by default the directory for temporary files)")
}

func (l *load) topicFlags(f *flags) {
	f.StringVar(&l.topic, "topic", l.topic, "topic; it is made if there is none of that name")
	f.IntVar(&l.partitions, "partitions", l.partitions, "partitions of the topic (by default 1, or what it has)")
	f.Var(oneOf(&l.flush, flushWords...), "flush", "when the topic's records are made durable: async, interval or sync (by default async, or what it has)")
	f.Var(&l.settings, "c", "a setting of the topic, key=value; may be repeated")
}

func size(to *int64) value[int64] { return value[int64]{to, wire.ParseSize, wire.FormatSize} }

func duration(to *time.Duration) value[time.Duration] {
	return value[time.Duration]{to, wire.ParseDuration, wire.FormatDuration}
}

func (l *load) recordFlags(f *flags) {
	f.Var(size(&l.size), "size", "bytes of a record's value")
	f.Var(value[int64]{&l.keys, parseCount, formatCount}, "keys", "so many different keys; 0: records have none")
}

func (l *load) producerFlags(f *flags) {
	l.recordFlags(f)
	f.IntVar(&l.producers, "producers", l.producers, "producers, each with a connection of its own")
	f.Var(oneOf(&l.acks, acksWords...), "acks", "who must have a record: 0 (nobody is asked), 1 (the leader) or all")
	f.Var(value[wire.Codec]{&l.codec, wire.ParseCodec, wire.Codec.String}, "codec", "compression: none, gzip, snappy or zstd; with one, values are hexadecimal digits, of which about half can be saved")
	f.Var(size(&l.batch), "batch", "bytes at which a batch is complete")
	f.Var(size(&l.buffer), "window", "bytes of records a producer may have without acknowledgement (by default 8 batches, with keys 2 for each partition if that is more, up to 64 MiB)")
	f.IntVar(&l.inFlight, "in-flight", l.inFlight, "batches of one partition on their way at once, 1 to 5")
	f.Var(duration(&l.linger), "linger", "how long a batch waits for more records")
}

func (l *load) timeFlags(f *flags) {
	f.Var(duration(&l.warmUp), "warm-up", "time before anything counts")
	f.Var(duration(&l.duration), "duration", "time that counts")
	f.Var(value[int64]{&l.records, parseCount, formatCount}, "records", "end after so many records instead")
	f.StringVar(&l.profile, "cpu-profile", "", "write what the client spent its CPU time on to this file, for go tool pprof")
}

func (l *load) rateFlag(f *flags) {
	f.Var(value[int64]{&l.rate, parseRateOrNone, formatCount}, "rate", "records a second over all producers, such as 250k/s; latency counts from when a record was due (by default as many as go)")
}

func parseRateOrNone(s string) (int64, error) {
	if s == "0" {
		return 0, nil
	}
	return parseRate(s)
}

func (l *load) outputFlags(f *flags) {
	f.Var(oneOf(&l.format, "text", "json"), "o", "text or json")
	f.StringVar(&l.html, "html", "", "write a page about the run to this file")
	f.StringVar(&l.csv, "csv", "", "write a line for each second to this file")
	f.BoolVar(&l.quiet, "q", false, "show no progress")
}

// check returns an error if what was asked for makes no sense.
func (l *load) check() error {
	for _, b := range []struct {
		flag           string
		v, least, most int64
	}{
		{"partitions", int64(l.partitions), 0, 100_000},
		{"size", l.size, 0, 15 << 20},
		{"keys", l.keys, 0, 10_000_000},
		{"producers", int64(l.producers), 1, 10_000},
		{"consumers", int64(l.consumers), 0, 10_000},
		{"batch", l.batch, 1 << 10, wire.MaxBatchBytes},
		{"in-flight", int64(l.inFlight), 1, 5},
	} {
		if b.v < b.least || b.v > b.most {
			return usage{fmt.Errorf("--%s %d: it is %d to %d", b.flag, b.v, b.least, b.most)}
		}
	}
	var err error
	switch {
	case l.linger%time.Millisecond != 0:
		err = fmt.Errorf("--linger %v: it is a number of whole milliseconds", l.linger)
	case l.rate > 0 && l.rate < int64(l.producers):
		err = fmt.Errorf("--rate %d/s is less than one record a second for each of %d producers", l.rate, l.producers)
	case l.records > 0 && l.records < int64(l.producers):
		err = fmt.Errorf("--records %d are less than one for each of %d producers", l.records, l.producers)
	case l.buffer != 0 && l.buffer < l.cost():
		err = fmt.Errorf("--window %d has no room for a record, which takes %d", l.buffer, l.cost())
	case l.duration <= 0:
		err = errors.New("--duration must be more than 0")
	case l.server == "" && (l.pid != 0 || l.http != ""):
		err = errors.New("--broker-pid and --broker-http go with --server")
	case l.server == "" && l.tlsFiles != (client.TLSFiles{}):
		err = errors.New("--tls and its like go with --server")
	case l.server != "" && (l.dir != "" || l.keep):
		err = errors.New("--dir and --keep are for a broker of our own, without --server")
	}
	if err != nil {
		return usage{err}
	}
	return nil
}

// keyLen is the length of a key.
const keyLen = 8

// recordBytes is what counts as a record's bytes.
func (l *load) recordBytes() int64 {
	if l.keys > 0 {
		return l.size + keyLen
	}
	return l.size
}

// cost is what a record takes of a producer's window: the client's own sum.
func (l *load) cost() int64 { return l.recordBytes() + 32 }

// window is the bytes a producer may have without acknowledgement.
func (l *load) window() int64 {
	if l.buffer != 0 {
		return l.buffer
	}
	batches := int64(8)
	if l.keys > 0 {
		batches = max(batches, 2*int64(l.partitions))
	}
	// A small record costs more in the window than in its batch.
	perBatch := max(l.batch/(l.recordBytes()+8), 1) * l.cost()
	return max(min(batches*perBatch, 64<<20), l.cost())
}

func (l *load) producerOptions() client.ProducerOptions {
	acks := [...]client.Acks{client.AcksNone, client.AcksLeader, client.AcksAll}[slices.Index(acksWords, l.acks)]
	return client.ProducerOptions{Acks: acks, Codec: l.codec, BatchBytes: int(l.batch), BufferBytes: l.window(), InFlight: l.inFlight, Linger: l.linger,
		DeliveryTimeout: drainTime}
}

// block is what values are cut out of: long enough that no two close to each
// other are alike, short enough to stay in a core's cache.
const block = 256 << 10

// payload returns pseudo-random bytes from which values of length size can be
// cut at any of the first block positions. With a codec they are hexadecimal
// digits.
func (l *load) payload() []byte {
	var seed [32]byte
	copy(seed[:], "teralog bench")
	b := make([]byte, block+l.size)
	rand.NewChaCha8(seed).Read(b)
	if l.codec != wire.None {
		for i := range b {
			b[i] = "0123456789abcdef"[b[i]&15]
		}
	}
	return b
}

// keyTable returns the keys, or nil. They are made once, so that a record
// takes no more than a look.
func (l *load) keyTable() [][]byte {
	if l.keys == 0 {
		return nil
	}
	all := make([]byte, 0, l.keys*keyLen)
	keys := make([][]byte, l.keys)
	for i := range keys {
		all = fmt.Appendf(all, "%08x", uint32(i)*2654435761) // spread, so that neighbours lie apart
		keys[i] = all[i*keyLen : (i+1)*keyLen : (i+1)*keyLen]
	}
	return keys
}

// A measuring runs one workload on a target, showing how it goes.
type measuring func(ctx context.Context, t *target, l *load, d *Display) (*Result, error)

// execute is the life of a command: flags are read, a broker is found, the
// workload runs, the result is written. Interrupted, it still writes what it
// has.
func (l *load) execute(ctx context.Context, f *flags, args []string, start Start, out, notes io.Writer, run measuring) (err error) {
	switch err := f.parse(args, out); {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	}
	l.command = strings.Join(append([]string{"teralog bench", l.workload}, args...), " ")
	if err := l.check(); err != nil {
		return err
	}
	if l.refine != nil {
		if err := l.refine(); err != nil {
			return err
		}
	}
	t, err := l.open(start)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	r, err := run(ctx, t, l, NewDisplay(notes, l.quiet))
	if r != nil {
		err = errors.Join(err, r.write(l, out))
	}
	if t.keep {
		fmt.Fprintf(notes, "the broker's files are in %s\n", t.dir)
	}
	if ctx.Err() != nil && (err == nil || errors.Is(err, context.Canceled)) {
		return interrupted{}
	}
	return err
}

// interrupted ends the process as Ctrl-C does, all having been said.
type interrupted struct{}

func (interrupted) Error() string { return "" }
func (interrupted) ExitCode() int { return 130 }
