package sim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"time"
)

// How long a broker lives: any time up to the first, or, where it is to die at
// a place, until it comes there, at most the second once it serves. Retention
// needs two rounds of the janitor, a second each.
const (
	lifetime   = 1200 * time.Millisecond
	placeLimit = 4 * time.Second
)

// round starts the broker once and sees it die.
func (k *killing) round(ctx context.Context, n int) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if n%2 == 1 {
		return k.visit(ctx, n, k.due[0])
	}
	p, err := launch(k.log(), "serve", "--data-dir", k.data(), "--listen", k.addr, "--reserve", "1MiB")
	if err != nil {
		return err
	}
	at := "at work"
	switch k.rnd.IntN(8) {
	case 0: // while it starts, perhaps
		at = "at its start"
		time.Sleep(k.upTo(60 * time.Millisecond))
	case 1: // while it stops, perhaps
		at = "at its stop"
		if err := p.serving(ctx); err != nil {
			return errors.Join(err, p.kill())
		}
		time.Sleep(k.upTo(lifetime))
		p.cmd.Process.Signal(os.Interrupt)
		time.Sleep(k.upTo(30 * time.Millisecond))
		p.cmd.Process.Kill()
		<-p.ended
		if p.err == nil {
			at = "not: it stopped in time"
		} else if !p.killed() {
			return fmt.Errorf("stop: %w", p.err)
		}
		k.died(n, at)
		return nil
	default:
		if err := p.serving(ctx); err != nil {
			return errors.Join(err, p.kill())
		}
		time.Sleep(k.upTo(lifetime))
	}
	k.died(n, at)
	return p.kill()
}

func (k *killing) died(n int, at string) {
	k.kills[at]++
	if k.verbose {
		fmt.Fprintf(k.notes, "round %d: killed %s\n", n, at)
	}
}

// visit lets a broker die at a place. If it does not come there, it is killed
// and the place is due again.
func (k *killing) visit(ctx context.Context, n int, v *visit) error {
	k.due = k.due[1:]
	if err := k.approach(ctx, v.place.way); err != nil {
		return fmt.Errorf("on the way to %s: %w", v.place.name, err)
	}
	spec := fmt.Sprintf("%s@%d@%s", v.place.name, 1+k.rnd.IntN(v.place.spread), v.moment)
	p, err := k.tortured(spec)
	if err != nil {
		return err
	}
	if v.place.way == stopping {
		if err := p.serving(ctx); err != nil {
			return errors.Join(err, p.kill())
		}
		time.Sleep(k.upTo(lifetime / 4))
		p.cmd.Process.Signal(syscall.SIGTERM)
	}
	met := p.dies(placeLimit)
	switch {
	case met && !p.killed():
		return fmt.Errorf("%s: the broker ended by itself: %w", spec, p.err)
	case met:
		v.met++
	default:
		v.missed++
		k.due = slices.Insert(k.due, min(3, len(k.due)), v)
		if err := p.kill(); err != nil {
			return err
		}
	}
	if len(k.due) == 0 {
		k.due = slices.Clone(k.all)
	}
	if k.verbose {
		fmt.Fprintf(k.notes, "round %d: killed at %s, met %v\n", n, spec, met)
	}
	return nil
}

// tortured starts a broker that dies at a place.
func (k *killing) tortured(spec string) (*process, error) {
	return launch(k.log(), "sim", "broker", "-data-dir", k.data(), "-listen", k.addr, "-reserve", fmt.Sprint(1<<20), "-die", spec)
}

// approach has another broker leave the files as one on its way to a place must
// find them.
func (k *killing) approach(ctx context.Context, w way) error {
	switch w {
	case mending:
		p, err := k.tortured(fmt.Sprintf("append@%d@amid", 1+k.rnd.IntN(100)))
		if err != nil {
			return err
		}
		if !p.dies(placeLimit) {
			return p.kill() // the load stands still; the place will be missed
		}
		if !p.killed() {
			return fmt.Errorf("the broker ended by itself: %w", p.err)
		}
	case resuming:
		p, err := k.serve(ctx, k.addr)
		if err != nil {
			return err
		}
		time.Sleep(k.upTo(lifetime / 4))
		return p.stop()
	}
	return nil
}
