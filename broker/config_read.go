package broker

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/teralog/teralog/wire"
)

// envPrefix is how every variable of the environment that is ours begins.
const envPrefix = "TERALOG_"

// otherEnv are the variables with our prefix that set no key.
var otherEnv = []string{"TERALOG_CONFIG", "TERALOG_SERVERS", "TERALOG_CLIENT_TLS", "TERALOG_CLIENT_TLS_CA",
	"TERALOG_CLIENT_TLS_CERT", "TERALOG_CLIENT_TLS_KEY", "TERALOG_CLIENT_TLS_SERVER_NAME"}

// A reading takes settings over from one source after the other. A source
// outdoes those before it.
type reading struct {
	keys []Key
	into *Config
}

// Set gives the named setting a value; an unknown name or a bad value is an
// error that says what would be right.
func (c *Config) Set(name, value string) error { return reading{Keys, c}.set(name, value, "set") }

// Read applies a configuration file: lines `key = value`, empty lines, and
// comments, which begin with a # that stands first or after a space. An unknown
// or repeated key is an error that names the file, the line and the nearest
// known key; nothing is applied after it.
func (c *Config) Read(name string, r io.Reader) error {
	return reading{Keys, c}.file(name, r)
}

// ReadFile applies the configuration file at path, see Read.
func (c *Config) ReadFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return c.Read(path, f)
}

// ReadEnv applies the variables that Key.Env names out of environ, which is
// like os.Environ's. Another one with their prefix is an error if its name is
// so near to one of theirs that it is likely a slip; else it is somebody
// else's: orchestrators make variables of the names of services.
func (c *Config) ReadEnv(environ []string) error {
	return reading{Keys, c}.env(environ)
}

func (r reading) set(name, value, from string) error {
	k, err := r.find(name)
	if err != nil {
		return err
	}
	if err := r.apply(k, value, from); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// apply sets one key. Its error does not name the key.
func (r reading) apply(k Key, value, from string) error {
	if err := k.set(r.into, value); err != nil {
		if k.Secret {
			return errors.New("its value cannot be used; it is a secret, and so not shown")
		}
		return err
	}
	if r.into.From == nil {
		r.into.From = map[string]string{}
	}
	r.into.From[k.Name] = from
	return nil
}

// errExposed refuses a secret outside of a file.
var errExposed = errors.New("a secret stands in the configuration file only, never in the environment or on a command line")

func (r reading) find(name string) (Key, error) {
	i := slices.IndexFunc(r.keys, func(k Key) bool { return k.Name == name })
	if i >= 0 {
		return r.keys[i], nil
	}
	names := make([]string, len(r.keys))
	for i, k := range r.keys {
		names[i] = k.Name
	}
	if near := wire.Nearest(name, names); near != "" {
		return Key{}, fmt.Errorf("unknown setting %q; did you mean %q?", name, near)
	}
	return Key{}, fmt.Errorf("unknown setting %q; known are %s", name, strings.Join(names, ", "))
}

func (r reading) file(name string, from io.Reader) error {
	first := map[string]int{} // line of each key
	lines := bufio.NewScanner(from)
	n := 1
	for ; lines.Scan(); n++ {
		text := uncommented(lines.Text())
		if text == "" {
			continue
		}
		word, value, ok := strings.Cut(text, "=")
		word, value = strings.TrimSpace(word), strings.TrimSpace(value)
		if !ok { // what stands behind the first word may be a secret
			return fmt.Errorf("%s:%d: %q is not of the form key = value", name, n, strings.Fields(text)[0])
		}
		if first[word] != 0 {
			return fmt.Errorf("%s:%d: %s is set twice, first in line %d", name, n, word, first[word])
		}
		first[word] = n
		at := fmt.Sprintf("%s:%d", name, n)
		if err := r.set(word, value, at); err != nil {
			return fmt.Errorf("%s: %w", at, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", name, n, err)
	}
	return nil
}

// uncommented returns a line without its comment and the space around it. A #
// inside a value is part of it.
func uncommented(line string) string {
	for i := range len(line) {
		if line[i] == '#' && (i == 0 || line[i-1] == ' ' || line[i-1] == '\t') {
			line = line[:i]
			break
		}
	}
	return strings.TrimSpace(line)
}

func (r reading) env(environ []string) error {
	known := slices.Clone(otherEnv)
	for _, k := range r.keys {
		known = append(known, k.Env())
	}
	for i := range known {
		known[i] = strings.TrimPrefix(known[i], envPrefix) // what all share must not make names near
	}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		short, ours := strings.CutPrefix(name, envPrefix)
		if !ours || slices.Contains(otherEnv, name) {
			continue
		}
		i := slices.IndexFunc(r.keys, func(k Key) bool { return k.Env() == name })
		if i < 0 {
			if near := wire.Nearest(short, known); near != "" {
				return fmt.Errorf("%s is no setting; did you mean %s%s?", name, envPrefix, near)
			}
			continue
		}
		if r.keys[i].Secret {
			return fmt.Errorf("%s: %w", name, errExposed)
		}
		if err := r.apply(r.keys[i], value, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// flags applies what given holds by key.
func (r reading) flags(given map[string]string) error {
	for _, k := range r.keys {
		value, ok := given[k.Name]
		if !ok {
			continue
		}
		if k.Secret {
			return fmt.Errorf("--%s: %w", k.Name, errExposed)
		}
		if err := r.apply(k, value, "--"+k.Name); err != nil {
			return fmt.Errorf("--%s: %w", k.Name, err)
		}
	}
	return nil
}

// readServe puts the configuration of `teralog serve ARGS` together: defaults,
// file, environment, flags.
func readServe(args, environ []string) (Config, error) {
	c := DefaultConfig()
	flags := flag.NewFlagSet("serve", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	given := map[string]string{}
	take := func(name string) {
		flags.Func(name, "", func(v string) error {
			if _, twice := given[name]; twice {
				return errors.New("the flag is given twice")
			}
			given[name] = v
			return nil
		})
	}
	take("config")
	for _, k := range Keys {
		take(k.Name)
	}
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return c, err
	case err != nil:
		return c, &exitError{exitUsage, fmt.Errorf("%w; %s", err, hint(err))}
	case flags.NArg() > 0:
		return c, &exitError{exitUsage, fmt.Errorf("unexpected argument %q; see teralog serve --help", flags.Arg(0))}
	}
	if err := c.readAll(given, environ); err != nil {
		return c, &exitError{exitConfig, err}
	}
	return c, nil
}

func (c *Config) readAll(given map[string]string, environ []string) error {
	path := given["config"]
	for _, variable := range environ {
		if named, ok := strings.CutPrefix(variable, "TERALOG_CONFIG="); ok && path == "" {
			path = named
		}
	}
	if path != "" {
		if err := c.ReadFile(path); err != nil {
			return err
		}
	}
	if err := c.ReadEnv(environ); err != nil {
		return err
	}
	if err := (reading{Keys, c}).flags(given); err != nil {
		return err
	}
	return c.Check()
}

// hint names the flag that was probably meant.
func hint(err error) string {
	known := []string{"config"}
	for _, k := range Keys {
		known = append(known, k.Name)
	}
	if _, name, ok := strings.Cut(err.Error(), "not defined: -"); ok {
		if near := wire.Nearest(strings.TrimPrefix(name, "-"), known); near != "" {
			return fmt.Sprintf("did you mean --%s?", near)
		}
	}
	return "teralog serve --help lists the flags"
}
