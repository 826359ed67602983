package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// maxLine is the longest input line, in bytes, inclusive: no record is larger.
const maxLine = 16 << 20

// maxComplaints bounds the failures that are told one by one.
const maxComplaints = 10

// A source makes one record of each line.
type source struct {
	format      string // lines or jsonl
	topic       string
	delimiter   string // between key and value; "": no key in the line
	key         []byte
	headers     []wire.Header
	partition   int // -1: by key
	emptyIsNull bool
}

func (s *source) record(text []byte) (client.Record, error) {
	r := client.Record{Topic: s.topic, Key: s.key, Headers: s.headers}
	if s.partition >= 0 {
		r.Partition, r.Pinned = int32(s.partition), true
	}
	if s.format == "jsonl" {
		l, hasTime, err := parseLine(text)
		if err != nil {
			return r, err
		}
		r.Key, r.Value = l.Key, l.Value
		r.Headers = append(l.Headers, s.headers...)
		if hasTime {
			r.Time = time.UnixMilli(l.Time)
		}
		if s.key != nil {
			r.Key = s.key
		}
	} else {
		r.Value = text
		if s.delimiter != "" {
			var ok bool
			if r.Key, r.Value, ok = bytes.Cut(text, []byte(s.delimiter)); !ok {
				return r, fmt.Errorf("no %q between key and value", s.delimiter)
			}
		}
	}
	if s.emptyIsNull && len(r.Value) == 0 {
		r.Value = nil
	}
	return r, nil
}

const produceHelp = `Usage: teralog produce TOPIC [flags]

Writes a record for each line of standard input, or of a file, and tells where
each lies once it is acknowledged.

  echo hello | teralog produce greetings
  teralog produce orders -K : -H tenantId=7 <orders.txt
  teralog consume orders --until-end -o jsonl | teralog produce copy --input jsonl -q
`

// Produce is the command `teralog produce`.
func Produce(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	f := newFlags(produceHelp, out)
	s := &source{}
	var headers list
	key := f.String("k", "", "key of every record")
	f.StringVar(&s.delimiter, "K", "", "what separates key and value in a line")
	f.Var(&headers, "H", "a header of every record, key=value; may be repeated")
	f.IntVar(&s.partition, "p", -1, "partition of every record (by default the key's hash chooses)")
	f.BoolVar(&s.emptyIsNull, "Z", false, "an empty value is null")
	codec := f.String("z", "none", "compression: none, gzip, snappy or zstd")
	acks := f.String("acks", "all", "who must have a record: 0 (nobody is asked), 1 (the leader) or all")
	f.StringVar(&s.format, "input", "lines", "lines, or jsonl as consume -o jsonl prints it")
	file := f.String("file", "", "read this file instead of standard input")
	format := f.String("o", "text", "text, or jsonl: {\"line\",\"topic\",\"partition\",\"offset\"} a record")
	quiet := f.Bool("q", false, "print nothing")
	timeout := f.Duration("delivery-timeout", 2*time.Minute, "how long to try to deliver a record")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		s.topic = args[0]
		if f.isSet("k") {
			s.key = []byte(*key)
		}
		if err := errors.Join(oneOf("--input", s.format, "lines", "jsonl"), oneOf("-o", *format, "text", "jsonl"), oneOf("--acks", *acks, "0", "1", "all")); err != nil {
			return err
		}
		for _, h := range headers {
			k, v, ok := strings.Cut(h, "=")
			if !ok {
				return usageError("-H %q is not of the form key=value", h)
			}
			s.headers = append(s.headers, wire.Header{Key: []byte(k), Value: []byte(v)})
		}
		o := client.ProducerOptions{DeliveryTimeout: *timeout}
		switch *acks {
		case "0":
			o.Acks = client.AcksNone
		case "1":
			o.Acks = client.AcksLeader
		}
		var err error
		if o.Codec, err = wire.ParseCodec(*codec); err != nil {
			return usageError("-z: %w", err)
		}
		n, err := c.Partitions(ctx, s.topic)
		if err != nil {
			return err
		}
		if f.isSet("p") && s.partition < 0 || s.partition >= int(n) {
			return usageError("-p %d: topic %s has partitions 0 to %d", s.partition, s.topic, n-1)
		}
		size := int64(0)
		if *file != "" {
			opened, err := os.Open(*file)
			if err != nil {
				return err
			}
			defer opened.Close()
			if st, err := opened.Stat(); err == nil {
				size = st.Size()
			}
			in = opened
		} else {
			in = interruptible(ctx, in)
		}
		p, err := c.NewProducer(o)
		if err != nil {
			return usageError("%w", err)
		}
		defer p.Close()
		d := newDelivery(out, notes, *format, *quiet)
		err = d.send(ctx, p, s, in, newProgress(notes, "sent", size))
		return errors.Join(err, d.end())
	})
}

// A delivery follows records to their outcome and prints it. Callbacks hand
// outcomes to one goroutine, which writes them out as soon as none is waiting.
type delivery struct {
	notes    io.Writer
	outcomes chan outcome
	done     chan struct{}
	print    func(*bufio.Writer, outcome)
	out      *bufio.Writer

	good, bad int64
	first     error // why the first one failed
}

type outcome struct {
	line int64
	ack  client.Ack
	err  error
}

func newDelivery(out, notes io.Writer, format string, quiet bool) *delivery {
	d := &delivery{notes: notes, outcomes: make(chan outcome, 4096), done: make(chan struct{}), out: bufio.NewWriterSize(out, 64<<10)}
	switch {
	case quiet:
		d.print = func(*bufio.Writer, outcome) {}
	case format == "jsonl":
		d.print = printJSON
	default:
		d.print = printText
	}
	go d.run()
	return d
}

func (d *delivery) run() {
	defer close(d.done)
	for o := range d.outcomes {
		if o.err == nil {
			d.good++
			d.print(d.out, o)
		} else {
			d.complain(o)
		}
		if len(d.outcomes) == 0 {
			d.out.Flush()
		}
	}
}

func (d *delivery) complain(o outcome) {
	d.bad++
	if d.first == nil {
		d.first = o.err
	}
	switch {
	case d.bad <= maxComplaints:
		fmt.Fprintf(d.notes, "line %d: %v\n", o.line, o.err)
	case d.bad == maxComplaints+1:
		fmt.Fprintln(d.notes, "more failed, which is not told line by line")
	}
}

func printText(w *bufio.Writer, o outcome) {
	if o.ack.Offset < 0 {
		fmt.Fprintf(w, "%s/%d\n", o.ack.Topic, o.ack.Partition)
		return
	}
	fmt.Fprintf(w, "%s/%d@%d\n", o.ack.Topic, o.ack.Partition, o.ack.Offset)
}

func printJSON(w *bufio.Writer, o outcome) {
	b := w.AvailableBuffer()
	b = append(b, `{"line":`...)
	b = strconv.AppendInt(b, o.line, 10)
	b = append(b, `,"topic":`...)
	b = appendJSONString(b, []byte(o.ack.Topic))
	b = append(b, `,"partition":`...)
	b = strconv.AppendInt(b, int64(o.ack.Partition), 10)
	b = append(b, `,"offset":`...)
	b = strconv.AppendInt(b, int64(o.ack.Offset), 10)
	w.Write(append(b, "}\n"...))
}

// scanLine is a bufio.SplitFunc of lines that end in \n. A \r before it is part
// of the record: what is read back is what was given.
func scanLine(b []byte, atEnd bool) (advance int, line []byte, err error) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1, b[:i], nil
	}
	if atEnd && len(b) > 0 {
		return len(b), b, nil
	}
	return 0, nil, nil
}

// interruptible returns in, cut off when ctx ends: a read from a terminal knows
// nothing of ctx. The goroutine that reads may then stay until the process ends.
func interruptible(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	go func() {
		_, err := io.Copy(w, in)
		w.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
	return r
}

// lastFlush is how long records already read may take to be delivered after an
// interrupt.
const lastFlush = 5 * time.Second

// send gives every line to p and returns when all have an outcome. A line that
// is no record is told and counted, and the rest goes on.
func (d *delivery) send(ctx context.Context, p *client.Producer, s *source, in io.Reader, progress *progress) error {
	defer progress.end()
	lines := bufio.NewScanner(in)
	lines.Split(scanLine)
	lines.Buffer(make([]byte, 64<<10), maxLine+1)
	n := int64(0)
	for ctx.Err() == nil && lines.Scan() {
		n++
		text := lines.Bytes()
		progress.add(1, int64(len(text)+1))
		if s.format == "jsonl" && len(text) == 0 {
			continue
		}
		r, err := s.record(text)
		if err == nil {
			line := n
			err = p.ProduceAsync(ctx, r, func(a client.Ack, err error) { d.outcomes <- outcome{line, a, err} })
		}
		if err != nil {
			d.outcomes <- outcome{line: n, err: err}
		}
	}
	flush, cancel := ctx, context.CancelFunc(func() {})
	if ctx.Err() != nil {
		flush, cancel = context.WithTimeout(context.WithoutCancel(ctx), lastFlush)
	}
	defer cancel()
	err := p.Flush(flush)
	p.Close() // now every callback was called
	switch {
	case errors.Is(lines.Err(), bufio.ErrTooLong):
		return fmt.Errorf("line %d is longer than %s; what follows was not sent", n+1, wire.FormatSize(maxLine))
	case lines.Err() != nil:
		return fmt.Errorf("after line %d: %w", n, lines.Err())
	}
	return err
}

// end prints what is left and says how it went.
func (d *delivery) end() error {
	close(d.outcomes)
	<-d.done
	if err := d.out.Flush(); err != nil {
		return err
	}
	switch {
	case d.bad == 0:
		return nil
	case d.good == 0:
		return fmt.Errorf("none of %d records was acknowledged; the first: %w", d.bad, d.first)
	}
	return &exitError{exitPartly, fmt.Errorf("%d records were acknowledged, %d were not", d.good, d.bad)}
}
