package broker

import "github.com/teralog/teralog/repl"

// A Step is one thing that may happen next in a manual broker. A simulator
// draws one from Steps; in production they happen at once, on goroutines.
type Step struct {
	Kind StepKind
	Set  repl.Step // of StepSet
}

// A StepKind says what a Step does.
type StepKind uint8

// The kinds of steps.
const (
	StepCoord StepKind = iota // the metadata: decide and append, or make durable and answer
	StepSet                   // a partition, a flush, or a directory's janitor
	StepHosts                 // the files of one topic become what the metadata says
	StepReady                 // a parked fetch that was woken looks again
	StepWork                  // a look-up by time, or decoding
)

// Steps appends to dst what may happen now, in an order that depends on
// nothing but the broker's history. StepCoord may turn out to do nothing.
func (b *Broker) Steps(dst []Step) []Step {
	now := b.time()
	b.wheel.Advance(now.Mono)
	dst = append(dst, Step{Kind: StepCoord})
	for _, s := range b.set.Steps(nil, now) {
		dst = append(dst, Step{Kind: StepSet, Set: s})
	}
	if len(b.hosts.queue) > 0 {
		dst = append(dst, Step{Kind: StepHosts})
	}
	if len(b.ready) > 0 {
		dst = append(dst, Step{Kind: StepReady})
	}
	if b.busyWorkers() {
		dst = append(dst, Step{Kind: StepWork})
	}
	return dst
}

// Step lets s happen, which Steps returned at the same time. It returns whether
// there was anything to do.
func (b *Broker) Step(s Step) (worked bool) {
	now := b.time()
	switch s.Kind {
	case StepCoord:
		worked, err := b.coord.Turn(now)
		b.report(err)
		return worked
	case StepSet:
		b.set.Step(s.Set, now)
	case StepHosts:
		b.settle(<-b.hosts.queue)
	case StepReady:
		b.resume(<-b.ready)
	case StepWork:
		if j, ok := b.nextJob(); ok {
			b.run(j)
		}
	}
	return true
}
