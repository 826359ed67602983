package cli

import (
	"context"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// Offsets is the command `teralog offsets`.
func Offsets(ctx context.Context, args []string, _ io.Reader, out, _ io.Writer) error {
	f := newFlags(`Usage: teralog offsets TOPIC [flags]

Shows where each partition starts and ends, and with --at the first offset at
or after a time.

  teralog offsets orders
  teralog offsets orders --at 2001-01-10T10:00:00Z --clock append
`, out)
	at := f.String("at", "", "a time: RFC 3339, a date, ms, or -15m")
	clock := f.String("clock", "event", "whose time --at means: event or append")
	format := f.String("o", "table", "table or json")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		if err := oneOf("-o", *format, "table", "json"); err != nil {
			return err
		}
		t, err := describe(ctx, c, args[0])
		if err != nil {
			return err
		}
		if *at == "" {
			if *format == "json" {
				return writeJSON(out, describedTopic(t))
			}
			return writePartitions(out, t)
		}
		ms, err := wire.ParseTime(*at, time.Now())
		if err != nil {
			return usageError("--at: %w", err)
		}
		by, err := parseClock(*clock)
		if err != nil {
			return err
		}
		found, err := c.Offsets(ctx, t.Name, client.AtTime(by, ms))
		if err != nil {
			return err
		}
		if *format == "json" {
			type row struct {
				Partition int32       `json:"partition"`
				Offset    wire.Offset `json:"offset"`
				Time      int64       `json:"time"`
			}
			rows := []row{}
			for _, p := range found {
				rows = append(rows, row{p.Partition, p.Offset, p.Time})
			}
			return writeJSON(out, rows)
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "PARTITION\tOFFSET\tTIME")
		for _, p := range found {
			if p.Offset < 0 {
				fmt.Fprintf(w, "%d\tnone yet\t-\n", p.Partition)
				continue
			}
			fmt.Fprintf(w, "%d\t%d\t%s\n", p.Partition, p.Offset, formatTime(p.Time))
		}
		return w.Flush()
	})
}

func parseClock(s string) (client.Clock, error) {
	if err := oneOf("--clock", s, "event", "append"); err != nil {
		return 0, err
	}
	if s == "append" {
		return client.AppendTime, nil
	}
	return client.EventTime, nil
}
