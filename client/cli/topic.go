package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

const topicHelp = `Usage: teralog topic create|ls|describe|delete …

  teralog topic create orders -p 12 -c flush=sync -c retention.age=7d
  teralog topic ls
  teralog topic describe orders
  teralog topic delete orders --yes

teralog topic SUBCOMMAND --help tells more.
`

// Topic is the command `teralog topic`.
func Topic(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(notes, topicHelp)
		return &exitError{code: exitUsage}
	}
	switch args[0] {
	case "create":
		return topicCreate(ctx, args[1:], out)
	case "ls", "list":
		return topicList(ctx, args[1:], out)
	case "describe", "info":
		return topicDescribe(ctx, args[1:], out)
	case "delete", "rm":
		return topicDelete(ctx, args[1:], in, out, notes)
	case "-h", "--help", "help":
		fmt.Fprint(out, topicHelp)
		return nil
	}
	if near := wire.Nearest(args[0], []string{"create", "ls", "describe", "delete"}); near != "" {
		return usageError("unknown subcommand %q; did you mean %q?", args[0], near)
	}
	return usageError("unknown subcommand %q; it is create, ls, describe or delete", args[0])
}

func topicCreate(ctx context.Context, args []string, out io.Writer) error {
	f := newFlags(`Usage: teralog topic create NAME [flags]

  teralog topic create orders -p 12 -c flush=sync -c retention.age=7d
`, out)
	partitions := f.Int("p", 1, "number of partitions")
	exists := f.Bool("if-not-exists", false, "succeed if there is such a topic already, whatever its settings")
	dry := f.Bool("dry-run", false, "check everything, make nothing")
	var settings list
	f.Var(&settings, "c", "a setting, key=value; may be repeated")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		spec := client.TopicSpec{Name: args[0], Partitions: int32(*partitions), ValidateOnly: *dry}
		if *partitions < 1 || *partitions > 1<<20 {
			return usageError("-p %d: a topic has at least one partition", *partitions)
		}
		for _, s := range settings {
			k, v, ok := strings.Cut(s, "=")
			if !ok {
				return usageError("-c %q is not of the form key=value", s)
			}
			spec.Settings = append(spec.Settings, wire.Setting{Key: k, Value: v})
		}
		id, err := c.CreateTopic(ctx, spec)
		switch {
		case err != nil && *exists && wire.CodeOf(err) == wire.CodeTopicExists:
			fmt.Fprintf(out, "topic %s exists\n", spec.Name)
		case err != nil:
			return err
		case *dry:
			fmt.Fprintf(out, "topic %s with %d partitions could be created\n", spec.Name, spec.Partitions)
		default:
			fmt.Fprintf(out, "created topic %s with %d partitions, id %d\n", spec.Name, spec.Partitions, id)
		}
		return nil
	})
}

func topicList(ctx context.Context, args []string, out io.Writer) error {
	f := newFlags(`Usage: teralog topic ls [flags]

  teralog topic ls -o json
`, out)
	format := f.String("o", "table", "table or json")
	return f.run(ctx, args, 0, 0, func(c *client.Client, _ []string) error {
		if err := oneOf("-o", *format, "table", "json"); err != nil {
			return err
		}
		topics, err := c.ListTopics(ctx)
		if err != nil {
			return err
		}
		if *format == "json" {
			rows := []any{}
			for _, t := range topics {
				rows = append(rows, struct {
					Name       string       `json:"name"`
					ID         wire.TopicID `json:"id"`
					Partitions int          `json:"partitions"`
				}{t.Name, t.ID, len(t.Partitions)})
			}
			return writeJSON(out, rows)
		}
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "TOPIC\tPARTITIONS\tID")
		for _, t := range topics {
			fmt.Fprintf(w, "%s\t%d\t%d\n", t.Name, len(t.Partitions), t.ID)
		}
		return w.Flush()
	})
}

func topicDescribe(ctx context.Context, args []string, out io.Writer) error {
	f := newFlags(`Usage: teralog topic describe NAME [flags]

  teralog topic describe orders -o json
`, out)
	format := f.String("o", "table", "table or json")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		if err := oneOf("-o", *format, "table", "json"); err != nil {
			return err
		}
		t, err := describe(ctx, c, args[0])
		if err != nil {
			return err
		}
		if *format == "json" {
			return writeJSON(out, describedTopic(t))
		}
		fmt.Fprintf(out, "topic %s, id %d, created %s\n\n", t.Name, t.ID, formatTime(t.Created))
		w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(w, "SETTING\tVALUE")
		for _, s := range t.Settings {
			fmt.Fprintf(w, "%s\t%s\n", s.Key, s.Value)
		}
		fmt.Fprintln(w)
		w.Flush()
		if err := writePartitions(out, t); err != nil {
			return err
		}
		if n := futureTimes(t); n > 0 {
			fmt.Fprintf(out, "\nfuture timestamps: %d of %d partitions have a record more than an hour ahead of their last append\n", n, len(t.Partitions))
		}
		return nil
	})
}

// describe returns the topic's description; an error if there is none.
func describe(ctx context.Context, c *client.Client, name string) (wire.TopicDescription, error) {
	all, err := c.DescribeTopics(ctx, name)
	if err != nil {
		return wire.TopicDescription{}, err
	}
	if len(all) != 1 {
		return wire.TopicDescription{}, fmt.Errorf("%d answers for one topic", len(all))
	}
	if all[0].Code != wire.CodeOK {
		return all[0], wire.Errorf(all[0].Code, "topic %q; `teralog topic ls` lists them", name)
	}
	return all[0], nil
}

func writePartitions(out io.Writer, t wire.TopicDescription) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "PARTITION\tSTATE\tLEADER\tEPOCH\tSTART\tEND\tRECORDS\tBYTES\tGREATEST TIME\tLAST APPEND")
	for _, p := range t.Partitions {
		state := "ok"
		if p.Code != wire.CodeOK {
			state = p.Code.Error()
		}
		fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", p.Partition, state, p.Leader, p.Epoch,
			p.Start, p.Committed, p.Committed-p.Start, p.Bytes, formatTime(p.GreatestTime), formatTime(p.LastAppendTime))
	}
	return w.Flush()
}

// futureTimes returns how many partitions hold event times that cannot be.
func futureTimes(t wire.TopicDescription) (n int) {
	for _, p := range t.Partitions {
		if wire.FutureTime(p.GreatestTime, p.LastAppendTime) {
			n++
		}
	}
	return n
}

// formatTime writes ms since the epoch for people; "-" if nothing has a time.
func formatTime(ms int64) string {
	if ms < -1<<60 {
		return "-"
	}
	t := time.UnixMilli(ms).UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return fmt.Sprintf("%d ms", ms)
	}
	return t.Format("2006-01-02T15:04:05.999Z07:00")
}

func describedTopic(t wire.TopicDescription) any {
	type partition struct {
		Partition      int32       `json:"partition"`
		State          string      `json:"state"`
		Leader         wire.NodeID `json:"leader"`
		Epoch          wire.Epoch  `json:"epoch"`
		Start          wire.Offset `json:"start"`
		Committed      wire.Offset `json:"committed"`
		End            wire.Offset `json:"end"`
		Bytes          int64       `json:"bytes"`
		GreatestTime   *int64      `json:"greatest_time"`
		LastAppendTime *int64      `json:"last_append_time"`
		Directory      string      `json:"directory"`
	}
	known := func(ms int64) *int64 {
		if ms < -1<<60 {
			return nil
		}
		return &ms
	}
	d := struct {
		Name       string            `json:"name"`
		ID         wire.TopicID      `json:"id"`
		Created    int64             `json:"created"`
		Settings   map[string]string `json:"settings"`
		Future     int               `json:"future_timestamps"` // partitions with some
		Partitions []partition       `json:"partitions"`
	}{t.Name, t.ID, t.Created, map[string]string{}, futureTimes(t), []partition{}}
	for _, s := range t.Settings {
		d.Settings[s.Key] = s.Value
	}
	for _, p := range t.Partitions {
		d.Partitions = append(d.Partitions, partition{p.Partition, p.Code.Error(), p.Leader, p.Epoch, p.Start, p.Committed, p.End,
			p.Bytes, known(p.GreatestTime), known(p.LastAppendTime), p.Directory.String()})
	}
	return d
}

func topicDelete(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	f := newFlags(`Usage: teralog topic delete NAME [flags]

  teralog topic delete orders --yes
`, out)
	yes := f.Bool("yes", false, "do not ask")
	dry := f.Bool("dry-run", false, "say what would be deleted, delete nothing")
	return f.run(ctx, args, 1, 1, func(c *client.Client, args []string) error {
		t, err := describe(ctx, c, args[0])
		if err != nil {
			return err
		}
		var records wire.Offset
		var bytes int64
		for _, p := range t.Partitions {
			records, bytes = records+p.Committed-p.Start, bytes+p.Bytes
		}
		what := fmt.Sprintf("topic %s (id %d, %d partitions, %d records, %d bytes)", t.Name, t.ID, len(t.Partitions), records, bytes)
		if *dry {
			fmt.Fprintf(out, "would delete %s\n", what)
			return nil
		}
		if !*yes {
			if !isTerminal(in) {
				return usageError("deleting %s is final; say --yes", what)
			}
			fmt.Fprintf(notes, "Delete %s for good? Type its name: ", what)
			var answer string
			if _, err := fmt.Fscanln(in, &answer); err != nil || answer != t.Name {
				return errors.New("nothing was deleted")
			}
		}
		if err := c.DeleteTopic(ctx, t.ID); err != nil {
			return err
		}
		fmt.Fprintf(out, "deleted %s\n", what)
		return nil
	})
}

func writeJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(v)
}
