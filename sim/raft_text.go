package sim

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A scenario is written as lines of words, then of key=value, or of a key alone
// that is true:
//
//	cluster appends=1 callers=5 propose=2ms seed=42 until=1.5s voters=3 window=1
//	network loss=30 ordered
//	at 231ms cut 2 shape=deaf
//	at 240ms crash leader lasts=80ms power
//	election 3 + 1.2ms whisper leader every=20ms lasts=60ms to=2
//
// What is not said is zero. Empty lines, and those that begin with #, say
// nothing.

// slots is a list of nodes as a flag: "1,3".
type slots []int

func (s *slots) String() string {
	return strings.Trim(strings.ReplaceAll(fmt.Sprint([]int(*s)), " ", ","), "[]")
}

func (s *slots) Set(list string) error {
	*s = nil
	for word := range strings.SplitSeq(list, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 0 || n > 1000 {
			return fmt.Errorf("%q is no number of this kind", word)
		}
		*s = append(*s, n)
	}
	return nil
}

// keys binds keys to what they stand for, which they do not change.
func keys(bind func(f *flag.FlagSet)) *flag.FlagSet {
	f := flag.NewFlagSet("", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Usage = func() {}
	bind(f)
	return f
}

func (s *scenario) clusterKeys(f *flag.FlagSet) {
	f.Uint64Var(&s.seed, "seed", s.seed, "")
	f.IntVar(&s.voters, "voters", s.voters, "")
	f.IntVar(&s.learners, "learners", s.learners, "")
	f.IntVar(&s.spares, "spares", s.spares, "")
	f.BoolVar(&s.wild, "wild", s.wild, "")
	f.Var((*slots)(&s.skew), "skew", "")
	f.DurationVar(&s.fsync, "fsync", s.fsync, "")
	f.BoolVar(&s.disks, "disks", s.disks, "")
	f.IntVar(&s.window, "window", s.window, "")
	f.IntVar(&s.appendBytes, "appends", s.appendBytes, "")
	f.IntVar(&s.snapshotBytes, "snapshots", s.snapshotBytes, "")
	f.IntVar(&s.callers, "callers", s.callers, "")
	f.DurationVar(&s.propose, "propose", s.propose, "")
	f.DurationVar(&s.until, "until", s.until, "")
	f.Var((*slots)(&s.left), "left", "")
}

func (s *scenario) networkKeys(f *flag.FlagSet) {
	f.IntVar(&s.loss, "loss", s.loss, "")
	f.IntVar(&s.repeat, "repeat", s.repeat, "")
	f.IntVar(&s.late, "late", s.late, "")
	f.IntVar(&s.foreign, "foreign", s.foreign, "")
	f.BoolVar(&s.ordered, "ordered", s.ordered, "")
}

func (x *fault) keys(f *flag.FlagSet) {
	f.IntVar(&x.to, "to", x.to, "")
	f.StringVar(&x.shape, "shape", x.shape, "")
	f.Var((*slots)(&x.half), "half", "")
	f.BoolVar(&x.power, "power", x.power, "")
	f.BoolVar(&x.done, "done", x.done, "")
	f.IntVar(&x.n, "n", x.n, "")
	f.DurationVar(&x.every, "every", x.every, "")
	f.DurationVar(&x.lasts, "lasts", x.lasts, "")
	f.Var((*slots)(&x.voters), "voters", "")
	f.Var((*slots)(&x.learners), "learners", "")
}

// write appends what is not zero.
func write(b *strings.Builder, f *flag.FlagSet) {
	f.VisitAll(func(k *flag.Flag) {
		v := k.Value.String()
		_, list := k.Value.(*slots)
		switch {
		case v == "" || v == "false" || v == "0s" || v == "0" && !list:
		case v == "true":
			fmt.Fprintf(b, " %s", k.Name)
		default:
			fmt.Fprintf(b, " %s=%s", k.Name, v)
		}
	})
}

func (x *fault) String() string {
	var b strings.Builder
	if x.election > 0 {
		fmt.Fprintf(&b, "election %d + %v %s", x.election, x.at, x.kind)
	} else {
		fmt.Fprintf(&b, "at %v %s", x.at, x.kind)
	}
	switch {
	case x.kind == "mend":
	case x.who == 0:
		b.WriteString(" leader")
	default:
		fmt.Fprintf(&b, " %d", x.who)
	}
	write(&b, keys(x.keys))
	return b.String()
}

func (s *scenario) String() string {
	var b strings.Builder
	b.WriteString("cluster")
	write(&b, keys(s.clusterKeys))
	b.WriteString("\nnetwork")
	write(&b, keys(s.networkKeys))
	b.WriteByte('\n')
	for i := range s.faults {
		fmt.Fprintln(&b, &s.faults[i])
	}
	return b.String()
}

// readScenario reads what String wrote.
func readScenario(r io.Reader) (*scenario, error) {
	s := &scenario{}
	lines := bufio.NewScanner(r)
	for n := 1; lines.Scan(); n++ {
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := s.readLine(words); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return s, errors.Join(lines.Err(), s.check())
}

func (s *scenario) readLine(words []string) error {
	switch words[0] {
	case "cluster":
		return parseKeys(words[1:], s.clusterKeys)
	case "network":
		return parseKeys(words[1:], s.networkKeys)
	}
	var x fault
	var err error
	switch {
	case words[0] == "at" && len(words) >= 3:
		x.at, err = time.ParseDuration(words[1])
		words = words[2:]
	case words[0] == "election" && len(words) >= 5 && words[2] == "+":
		x.election, err = strconv.Atoi(words[1])
		if err == nil {
			x.at, err = time.ParseDuration(words[3])
		}
		words = words[4:]
	default:
		err = errors.New("neither cluster, network, at nor election")
	}
	if err != nil {
		return err
	}
	x.kind, words = words[0], words[1:]
	if x.kind != "mend" && len(words) > 0 && words[0] != "leader" {
		if x.who, err = strconv.Atoi(words[0]); err != nil {
			return err
		}
	}
	if x.kind != "mend" && len(words) > 0 {
		words = words[1:]
	}
	s.faults = append(s.faults, x)
	return parseKeys(words, s.faults[len(s.faults)-1].keys)
}

func parseKeys(words []string, bind func(*flag.FlagSet)) error {
	args := make([]string, len(words))
	for i, w := range words {
		args[i] = "-" + w
	}
	f := keys(bind)
	if err := f.Parse(args); err != nil {
		return err
	}
	if f.NArg() > 0 {
		return fmt.Errorf("%q is neither a key nor key=value", f.Arg(0))
	}
	return nil
}

// check says why a scenario cannot be played.
func (s *scenario) check() error {
	n := s.nodes()
	switch {
	case s.voters < 1 || s.learners < 0 || s.spares < 0 || n > maxMembers:
		return fmt.Errorf("a cluster has 1 to %d nodes, one voter among them", maxMembers)
	case s.callers < 0 || s.callers > maxCallers || s.callers > 0 && s.propose < time.Microsecond:
		return fmt.Errorf("a cluster has up to %d callers, which wait a microsecond at least", maxCallers)
	case len(s.skew) > 0 && (len(s.skew) < n || slices.Min(s.skew) < 1):
		return errors.New("each node has a skew, or none")
	case s.fsync < 0 || s.until < 0:
		return errors.New("a time is negative")
	}
	for i := range s.faults {
		if x := &s.faults[i]; !x.possible(n) {
			return fmt.Errorf("%v: no fault of %d nodes", x, n)
		}
	}
	return nil
}

func (x *fault) possible(nodes int) bool {
	for _, who := range slices.Concat([]int{x.who, x.to}, x.half, x.voters, x.learners) {
		if who < 0 || who > nodes {
			return false
		}
	}
	switch {
	case x.at < 0 || x.lasts < 0 || x.every < 0 || x.election < 0 || x.n < 0 || !slices.Contains(faultKinds, x.kind):
		return false
	case x.kind == "cut":
		return slices.Contains(shapes, x.shape)
	case x.kind == "flap" || x.kind == "transfer":
		return x.to > 0 && x.shape == "" && (x.kind == "transfer" || x.every > 0)
	}
	return x.shape == ""
}
