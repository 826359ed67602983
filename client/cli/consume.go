package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

const consumeHelp = `Usage: teralog consume TOPIC [flags]

Prints records. --from takes ` + windowHelp + `.

  teralog consume orders --from -10
  teralog consume orders --from @2001-01-10T10:00:00Z:2001-01-10T10:15:00Z --until-end -o jsonl
  teralog consume orders --from -15m --clock append -p 3
`

// Consume is the command `teralog consume`.
func Consume(ctx context.Context, args []string, _ io.Reader, out, notes io.Writer) error {
	f := newFlags(consumeHelp, out)
	from := f.String("from", "start", "where to begin, and to end; see above")
	clock := f.String("clock", "event", "whose time is meant: event (the producer's) or append (the broker's)")
	var partitions list
	f.Var(&partitions, "p", "only this partition; may be repeated")
	most := f.Int64("n", 0, "stop after so many records")
	untilEnd := f.Bool("until-end", false, "stop at what is the end now instead of waiting for more")
	format := f.String("o", "text", "text, raw (values, a line each) or jsonl")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		if err := oneOf("-o", *format, "text", "raw", "jsonl"); err != nil {
			return err
		}
		if *most < 0 {
			return usageError("-n %d: a number of records is not negative", *most)
		}
		w, err := parseWindow(*from, time.Now())
		if err != nil {
			return usageError("--from: %w", err)
		}
		by, err := parseClock(*clock)
		if err != nil {
			return err
		}
		which, err := choose(ctx, c, args[0], partitions)
		if err != nil {
			return err
		}
		x, err := c.NewConsumer(client.ConsumerOptions{})
		if err != nil {
			return err
		}
		defer x.Close()
		for _, p := range which {
			r, err := w.resolve(ctx, c, args[0], p, by)
			if err == nil && *untilEnd {
				r.To, err = soonest(ctx, c, args[0], p, w.to, r.To)
			}
			if err == nil {
				err = x.Assign(ctx, args[0], p, r)
			}
			if err != nil {
				return err
			}
		}
		return print(ctx, x, out, notes, *format, *most)
	})
}

// choose returns the partitions asked for, all if none is.
func choose(ctx context.Context, c *client.Client, topic string, asked list) ([]int32, error) {
	n, err := c.Partitions(ctx, topic)
	if err != nil {
		return nil, err
	}
	var which []int32
	for _, s := range asked {
		p, err := strconv.ParseInt(s, 10, 32)
		if err != nil || p < 0 || p >= int64(n) {
			return nil, usageError("-p %s: topic %s has partitions 0 to %d", s, topic, n-1)
		}
		which = append(which, int32(p))
	}
	for p := int32(0); p < n && len(asked) == 0; p++ {
		which = append(which, p)
	}
	return which, nil
}

// resolve says what the window is in one partition.
func (w window) resolve(ctx context.Context, c *client.Client, topic string, partition int32, by client.Clock) (r client.Range, err error) {
	if r.From, err = w.from.resolve(ctx, c, topic, partition, by); err != nil || w.to.kind == never {
		return r, err
	}
	r.To, err = w.to.resolve(ctx, c, topic, partition, by)
	return r, err
}

// soonest returns the end of a window that must not wait for records to come.
func soonest(ctx context.Context, c *client.Client, topic string, partition int32, to place, end client.Position) (client.Position, error) {
	switch to.kind {
	case never:
		return client.End(), nil
	case atOffset:
		now, err := c.Offset(ctx, topic, partition, client.End())
		return client.At(min(now.Offset, wire.Offset(to.n))), err
	}
	return end, nil // the end as it is now, or a time: neither waits
}

func (p place) resolve(ctx context.Context, c *client.Client, topic string, partition int32, by client.Clock) (client.Position, error) {
	switch p.kind {
	case atOffset:
		return client.At(wire.Offset(p.n)), nil
	case atTime:
		return client.AtTime(by, p.n), nil
	case atEnd:
		if p.n == 0 {
			return client.End(), nil
		}
	}
	start, err := c.Offset(ctx, topic, partition, client.Start())
	if err != nil || p.kind == atStart {
		return client.At(start.Offset + wire.Offset(p.n)), err
	}
	end, err := c.Offset(ctx, topic, partition, client.End())
	return client.At(max(start.Offset, end.Offset-wire.Offset(p.n))), err
}

// print writes records until the ranges, or most of them, are done. When a
// person ends it, that is a good end.
func print(ctx context.Context, x *client.Consumer, out, notes io.Writer, format string, most int64) error {
	w := bufio.NewWriterSize(out, 256<<10)
	var shown *progress
	if isTerminal(out) { // the records themselves are the progress
		shown = newProgress(io.Discard, "read", 0)
	} else {
		shown = newProgress(notes, "read", 0)
	}
	defer shown.end()
	var buf []byte
	for n := int64(0); most == 0 || n < most; {
		records, err := x.Poll(ctx)
		switch {
		case errors.Is(err, client.ErrEnd) || err != nil && ctx.Err() != nil:
			return w.Flush()
		case err != nil:
			w.Flush()
			return err
		}
		for i := range records {
			if most > 0 && n == most {
				break
			}
			n++
			buf = appendRecord(buf[:0], &records[i], format)
			if _, err := w.Write(buf); err != nil {
				return err
			}
			shown.add(1, int64(len(buf)))
		}
		if err := w.Flush(); err != nil {
			return err
		}
	}
	return nil
}

func appendRecord(dst []byte, m *client.Message, format string) []byte {
	switch format {
	case "raw":
		return append(append(dst, m.Value...), '\n')
	case "jsonl":
		return appendLine(dst, &line{m.Topic, m.Partition, m.Offset, m.Time, m.AppendTime, m.LeaderEpoch, m.Key, m.Value, m.Headers})
	}
	dst = fmt.Appendf(dst, "%d@%d\t%s\t", m.Partition, m.Offset, formatTime(m.Time))
	dst = appendText(dst, m.Key)
	for _, h := range m.Headers {
		dst = append(dst, '\t')
		dst = appendText(dst, nonNil(h.Key))
		dst = append(dst, '=')
		dst = appendText(dst, h.Value)
	}
	dst = append(dst, '\t')
	return append(appendText(dst, m.Value), '\n')
}

// appendText writes bytes for a person: null and empty told apart, nothing
// that would drive a terminal.
func appendText(dst, b []byte) []byte {
	switch {
	case b == nil:
		return append(dst, "(null)"...)
	case len(b) == 0:
		return append(dst, "(empty)"...)
	}
	quoted := strconv.AppendQuote(dst, string(b))
	if string(quoted[len(dst)+1:len(quoted)-1]) == string(b) {
		return append(dst, b...) // nothing needed an escape
	}
	return quoted
}
