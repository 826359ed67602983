package broker

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A pulse is a main loop that is asked again and again to come round.
type pulse struct {
	name     string
	patience time.Duration // how long it may rightly be away
	turns    func(context.Context) error

	came atomic.Int64 // when it last did, in nanoseconds of the watchdog's clock
}

// A watchdog gives a beat while every main loop turns. A loop that is stuck, or
// a process that is, gives none, and the manager kills and starts it again.
//
// Left out are those that may rightly wait for a disk for as long as it takes,
// where an end of the process would harm the other disks: who makes and removes
// the files of topics, and the workers. A disk that hangs ends its directory
// instead, which is decided by a loop that is asked here. So a flush needs no
// pulse of its own either.
type watchdog struct {
	loops []*pulse
	every time.Duration // between two beats
	beat  func()
	log   *slog.Logger
	start time.Time
}

// janitorPatience covers the unlinking of terabytes.
const janitorPatience = 30 * time.Minute

func newWatchdog(b *Broker, doors []*door, n *notifier) *watchdog {
	janitors := max(janitorPatience, 2*b.config.FlushLost, n.every)
	w := &watchdog{every: n.every, log: n.log, beat: func() { n.say("WATCHDOG=1") }, loops: []*pulse{
		{name: "timers of fetches", patience: n.every, turns: b.wheel.Round},
		{name: "timers of partitions", patience: n.every, turns: b.set.TimersTurn},
		{name: "janitors", patience: janitors, turns: b.set.JanitorsTurn},
	}}
	for _, d := range doors {
		w.loops = append(w.loops, &pulse{name: "accept", patience: n.every, turns: d.turns})
	}
	return w
}

// run gives beats until ctx ends. It is called once.
func (w *watchdog) run(ctx context.Context) {
	w.start = time.Now()
	var asking sync.WaitGroup
	defer asking.Wait()
	for _, p := range w.loops {
		asking.Go(func() { w.ask(ctx, p) })
	}
	was := ""
	for {
		wait := w.every
		stuck := strings.Join(w.stuck(w.mono()), ", ")
		if stuck == "" {
			w.beat()
		} else {
			wait = w.every / 8 // it may come back before the manager has lost patience
		}
		if stuck != was {
			w.tell(stuck)
		}
		was = stuck
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return
		}
	}
}

func (w *watchdog) mono() time.Duration { return time.Since(w.start) }

// ask asks one loop to come round, four times as often as there are beats.
func (w *watchdog) ask(ctx context.Context, p *pulse) {
	for p.turns(ctx) == nil {
		p.came.Store(int64(w.mono()))
		select {
		case <-time.After(w.every / 4):
		case <-ctx.Done():
			return
		}
	}
}

// stuck names the loops that have been away for longer than they may be.
func (w *watchdog) stuck(mono time.Duration) (names []string) {
	for _, p := range w.loops {
		if mono-time.Duration(p.came.Load()) > p.patience {
			names = append(names, p.name)
		}
	}
	return names
}

func (w *watchdog) tell(stuck string) {
	if stuck == "" {
		w.log.Info("every main loop turns again")
		return
	}
	w.log.Error("a main loop is stuck; the service manager gets no beat", "loops", stuck)
}
