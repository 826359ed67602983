package broker

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"

	"github.com/teralog/teralog/storage"
)

const logHelp = `Usage: teralog log dump|verify PATH [flags]

Looks into the files of a broker that is stopped, or into a copy of them,
without changing anything. PATH is a data directory, the folder of a partition,
or one file in it.

  teralog log dump ./teralog-data/topics/orders/partition-0000
  teralog log dump ./teralog-data/topics/orders/partition-0000 --records -o jsonl
  teralog log verify ./teralog-data

dump prints batches, with --records every record too; -o is text or jsonl.
verify reads everything and checks it; it ends with 1 if anything is damaged.
`

// Log is the command `teralog log`.
func Log(_ context.Context, args []string, _ io.Reader, out, _ io.Writer) error {
	if len(args) == 0 {
		return &exitError{exitUsage, errors.New("dump or verify? see teralog log --help")}
	}
	if args[0] == "-h" || args[0] == "--help" || args[0] == "help" {
		fmt.Fprint(out, logHelp)
		return nil
	}
	if args[0] != "dump" && args[0] != "verify" {
		return &exitError{exitUsage, fmt.Errorf("unknown subcommand %q; it is dump or verify", args[0])}
	}
	f := flag.NewFlagSet("log", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	records := f.Bool("records", false, "")
	format := f.String("o", "text", "")
	path := ""
	for rest := args[1:]; ; {
		if err := f.Parse(rest); errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(out, logHelp)
			return nil
		} else if err != nil {
			return &exitError{exitUsage, err}
		}
		if f.NArg() == 0 {
			break
		}
		if path != "" {
			return &exitError{exitUsage, fmt.Errorf("two paths, %s and %s", path, f.Arg(0))}
		}
		path, rest = f.Arg(0), f.Args()[1:]
	}
	if path == "" || *format != "text" && *format != "jsonl" {
		return &exitError{exitUsage, errors.New("see teralog log --help")}
	}
	if args[0] == "dump" {
		return storage.Dump(out, storage.OS(), path, storage.DumpOptions{Records: *records, JSON: *format == "jsonl"})
	}
	damaged, err := storage.VerifyPath(out, storage.OS(), path)
	if err == nil && damaged > 0 {
		err = fmt.Errorf("%d damaged places", damaged)
	}
	return err
}
