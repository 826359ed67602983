package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// A Setting is a key as it is in force. The value of a secret is hidden.
type Setting struct {
	Name, Value string
	From        string // the line of a file, a variable, a flag, or "default"
}

// hidden stands for a secret that is set.
const hidden = "***"

// InForce returns every setting of c, in the order of Keys.
func (c *Config) InForce() []Setting { return inForce(Keys, c) }

func inForce(keys []Key, c *Config) []Setting {
	all := make([]Setting, len(keys))
	for i, k := range keys {
		all[i] = Setting{Name: k.Name, Value: k.get(c), From: "default"}
		if from := c.From[k.Name]; from != "" {
			all[i].From = from
		}
		if k.Secret && all[i].Value != "" {
			all[i].Value = hidden
		}
	}
	return all
}

// writeSettings writes settings as a configuration file, with where each comes
// from behind it.
func writeSettings(w io.Writer, all []Setting) error {
	width := 0
	for _, s := range all {
		width = max(width, len(s.Name)+len(s.Value))
	}
	for _, s := range all {
		if _, err := fmt.Fprintf(w, "%s = %-*s  # %s\n", s.Name, width-len(s.Name), s.Value, s.From); err != nil {
			return err
		}
	}
	return nil
}

const configHelp = `Usage: teralog config check FILE [flags]

Reads a configuration as teralog serve --config FILE would do, from here and now:
the file, this environment, and flags of serve if there are any. It prints what
would be in force, as a configuration file, and where each value comes from.

  teralog config check /etc/teralog/teralog.conf
  teralog config check teralog.conf --listen 0.0.0.0:7400

It ends with 0 if a broker would take it, and with 78 if not: an unknown or
repeated key, a value that cannot be, settings that do not fit together, or a
certificate that is of no use (credentials of systemd are not there to be read). A
broker that runs shows what is in force at /config of its --http address.
`

// ConfigCommand is the command `teralog config`.
func ConfigCommand(_ context.Context, args []string, _ io.Reader, out, _ io.Writer) error {
	for _, a := range args {
		if a == "-h" || a == "--help" || a == "-help" {
			fmt.Fprint(out, configHelp)
			return nil
		}
	}
	switch {
	case len(args) == 0:
		return &exitError{exitUsage, errors.New("check what? see teralog config --help")}
	case args[0] != "check":
		return &exitError{exitUsage, fmt.Errorf("unknown subcommand %q; it is check", args[0])}
	case len(args) == 1 || args[1] == "" || args[1][0] == '-':
		return &exitError{exitUsage, errors.New("which file? see teralog config --help")}
	}
	c, err := readServe(append([]string{"--config", args[1]}, args[2:]...), os.Environ())
	if err == nil && c.keyFiles().there() {
		_, err = openSecure(c)
	}
	if err != nil {
		return err
	}
	return writeSettings(out, c.InForce())
}
