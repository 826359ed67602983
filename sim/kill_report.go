package sim

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/teralog/teralog/storage"
)

// judge says whether all was well.
func (k *killing) judge() error {
	var errs []error
	for _, w := range k.h.violations() {
		errs = append(errs, errors.New(w))
	}
	found, counts := k.h.checker.Finish()
	for i, a := range found {
		if i == 0 || a.Kind != found[i-1].Kind {
			errs = append(errs, fmt.Errorf("%d times %v", counts[a.Kind], a))
		}
	}
	if k.h.counts.acked == 0 {
		errs = append(errs, errors.New("no record was acknowledged"))
	}
	tried := 0
	for _, v := range k.all {
		tried += v.met + v.missed
	}
	for i := range places {
		met, missed := k.visits(&places[i])
		// A short run need not come everywhere, but where it tried it must.
		if met == 0 && (missed > 1 || tried >= len(places)*5/4) {
			errs = append(errs, fmt.Errorf("no broker died at %q, in %d tries", places[i].name, missed))
		}
	}
	bad, err := suspicious(k.log())
	if err != nil {
		return err
	}
	errs = append(errs, bad...)
	var said strings.Builder
	damaged, err := storage.VerifyPath(&said, storage.OS(), k.data())
	if damaged > 0 {
		err = fmt.Errorf("%d damaged places\n%s", damaged, &said)
	}
	return errors.Join(append(errs, err)...)
}

// visits counts how often brokers died at a place, and were to but did not.
func (k *killing) visits(p *place) (met, missed int) {
	for _, v := range k.all {
		if v.place == p {
			met += v.met
			missed += v.missed
		}
	}
	return met, missed
}

// suspicious returns the lines of a broker's log that speak of a fault of the
// program or of a partition that was not served, the first few. Those that hold
// one of the excuses are not among them.
func suspicious(log string, excuses ...string) (found []error, err error) {
	f, err := os.Open(log)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() && len(found) < 8 {
		text := lines.Text()
		holds := func(part string) bool { return strings.Contains(text, part) }
		if slices.ContainsFunc([]string{"BUG", "panic", "DATA RACE", "level=ERROR", "orphan"}, holds) && !slices.ContainsFunc(excuses, holds) {
			found = append(found, fmt.Errorf("the broker's log: %s", text))
		}
	}
	return found, lines.Err()
}

func (k *killing) report(out io.Writer) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "KILLED\tBEFORE\tAMID\tAFTER\tMISSED")
	for i := range places {
		counts := map[string]int{}
		missed := 0
		for _, v := range k.all {
			if v.place == &places[i] {
				counts[v.moment] += v.met
				missed += v.missed
			}
		}
		amid := "-"
		if places[i].op == "write" {
			amid = fmt.Sprint(counts["amid"])
		}
		fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%d\n", places[i].name, counts["before"], amid, counts["after"], missed)
	}
	w.Flush()
	for _, at := range []string{"at work", "at its start", "at its stop", "not: it stopped in time"} {
		fmt.Fprintf(out, "killed %s: %d\n", at, k.kills[at])
	}
	if k.h == nil {
		return
	}
	k.h.mu.Lock()
	defer k.h.mu.Unlock()
	c := &k.h.counts
	fmt.Fprintf(out, "%.1f s; records: %d sent (%.0f MB), %d acknowledged, %d failed, %d in doubt; %d read by followers, %d jumps over what retention deleted\n",
		k.took.Seconds(), c.sent, float64(c.bytes)/1e6, c.acked, c.failed, c.doubtful, c.read, c.outOfRange)
	fmt.Fprintf(out, "topics: %d created, %d deleted; %d look-ups by time as a walk finds them\n", c.created, c.deleted, k.ups)
}
