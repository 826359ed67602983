package client

import (
	"slices"
	"time"

	"github.com/teralog/teralog/wire"
)

// nudge has tend look at what there is to do.
func (p *Producer) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// tendBy has tend look at the latest at the given time; p.mu is held. Under load
// lanes fall idle and have something again thousands of times a second.
func (p *Producer) tendBy(at time.Duration) {
	if p.tendsAt == 0 || at < p.tendsAt {
		p.tendsAt = at
		p.nudge()
	}
}

// tend is the producer's housekeeping: it gives up what is too old, and has
// metadata and producer ids fetched when lanes need them.
func (p *Producer) tend() {
	defer p.loops.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if wait := p.chores(); wait > 0 {
			timer.Reset(wait)
			due = timer.C
		}
		select {
		case <-p.wake:
		case <-due:
		case <-p.ctx.Done():
			return
		}
	}
}

// chores looks at every lane once and returns when to do so again, 0 if none has
// had anything lately: when the next record gets too old or, without any, could.
func (p *Producer) chores() (wait time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return 0
	}
	now, wantID := p.c.now(), false
	if len(p.lanes) > 0 {
		wait = p.o.DeliveryTimeout
	}
	busy := p.lanes[:0]
	for _, l := range p.lanes {
		next := l.expire(now, p.o.DeliveryTimeout, p.giveUp)
		wantID = p.identify(l) || wantID
		p.reap(l)
		if l.idle() {
			l.tended = false
			continue
		}
		busy = append(busy, l)
		if next > 0 {
			wait = min(wait, next-now)
		}
		p.doubtful = p.doubtful || l.link == nil
	}
	clear(p.lanes[len(busy):])
	p.lanes = busy
	if p.doubtful && !p.refreshing {
		p.doubtful, p.refreshing = false, true
		p.loops.Add(1)
		go p.refresh(p.topicNames())
	}
	if wantID && !p.supplying {
		p.supplying = true
		p.loops.Add(1)
		go p.supply()
	}
	p.tendsAt = 0
	if wait > 0 {
		p.tendsAt = now + wait
	}
	p.deliver(nil)
	return wait
}

// identify gives a lane that needs one the newest producer id, and reports
// whether a newer one must be fetched first.
func (p *Producer) identify(l *lane) (fetch bool) {
	switch {
	case !l.needsID() || l.flying > 0 || l.idle():
		return false
	case p.producer == wire.NoProducer || p.producer == l.producer:
		return true
	}
	l.adopt(p.producer, p.epoch)
	if l.link != nil {
		l.link.list(l)
		l.link.nudge()
	}
	return false
}

// giveUp reports a batch in flight as failed while its place in the lane
// stays taken.
func (p *Producer) giveUp(b *batch) {
	ghost := &batch{lane: b.lane, done: b.done, state: refused, attempts: b.attempts, doubt: true, err: ErrTimeout}
	b.done, b.told = receipts{}, true
	p.finished = append(p.finished, ghost)
}

func (p *Producer) topicNames() []string {
	names := make([]string, 0, len(p.topics))
	for name := range p.topics {
		names = append(names, name)
	}
	return names
}

// refresh fetches metadata once and puts lanes on the links of their leaders.
// It ends not before a back-off has passed, which spaces the questions: longer
// each time the answer helps nothing.
func (p *Producer) refresh(names []string) {
	defer p.loops.Done()
	ctx, cancel := p.c.bounded(p.ctx)
	err := p.c.meta.refresh(ctx, names...)
	cancel()

	p.mu.Lock()
	for _, name := range names { // an answer about some may be good though that about another is not
		if out := p.topics[name]; out != nil {
			p.redirect(out, p.c.meta.cached(name))
		}
	}
	p.deliver(nil)
	p.futile++
	if err == nil && !slices.ContainsFunc(p.lanes, func(l *lane) bool { return l.link == nil && l.dead == nil }) {
		p.futile = 0
	}
	pause := p.wait(p.futile+1, 0)
	p.mu.Unlock()

	sleep(p.ctx, pause)
	p.mu.Lock()
	p.refreshing = false
	p.doubtful = p.doubtful || err != nil
	p.mu.Unlock()
	p.nudge()
}

// redirect takes what the cluster says now about a topic; nil: that there is
// none. Records meant for a topic that was deleted fail: they must not enter
// another one that has its name.
func (p *Producer) redirect(out *outTopic, t *topic) {
	if t == nil || t.id != out.id || len(t.parts) < len(out.lanes) {
		err := wire.Errorf(wire.CodeTopicRecreated, "topic %q with id %d was deleted", out.name, out.id)
		for _, l := range out.lanes {
			l.kill(err)
			p.reap(l)
		}
		delete(p.topics, out.name)
		p.recent = nil
		p.producer = wire.NoProducer // lanes made anew must not count from 0 under it
		return
	}
	for i, l := range out.lanes {
		k := p.link(t.parts[i].leader)
		if k == l.link {
			continue
		}
		l.link, l.listed = k, false
		if k != nil && !l.idle() {
			k.list(l)
			k.nudge()
		}
	}
}

// supply fetches a producer id.
func (p *Producer) supply() {
	defer p.loops.Done()
	ctx, cancel := p.c.bounded(p.ctx)
	var resp wire.InitProducerResponse
	err := p.c.meta.ask(ctx, &wire.InitProducerRequest{}, &resp)
	cancel()
	good := err == nil && resp.Producer > 0 && resp.Epoch >= 0
	if !good {
		sleep(p.ctx, p.c.back.max)
	}
	p.mu.Lock()
	p.supplying = false
	if good {
		p.producer, p.epoch = resp.Producer, resp.Epoch
	}
	p.mu.Unlock()
	p.nudge()
}

// reap moves batches that have their outcome from the lane to those whose
// callbacks are to be called; p.mu is held.
func (p *Producer) reap(l *lane) {
	for b := l.pop(); b != nil; b = l.pop() {
		p.finished = append(p.finished, b)
	}
}

// deliver calls the callbacks of finished batches. One goroutine at a time
// does so, in order; whoever comes meanwhile leaves its batches to it. by is the
// connection whose reader calls it, nil if none does. p.mu is held, but not during
// the callbacks.
func (p *Producer) deliver(by *wire.Conn) {
	if p.delivering {
		return
	}
	p.delivering = true
	for len(p.finished) > 0 {
		list := p.finished
		p.finished = p.spare.list[:0]
		p.mu.Unlock()
		for _, b := range list {
			b.report()
		}
		p.mu.Lock()
		for i, b := range list {
			p.used -= b.cost
			p.spare.putBatch(b)
			list[i] = nil
		}
		p.spare.list = list
		if p.freed != nil {
			close(p.freed)
			p.freed = nil
			if p.attended != nil && p.attended != by {
				p.attended.Interrupt() // whoever reads there waits for this
			}
		}
	}
	p.delivering = false
	if p.used == 0 && p.emptied != nil {
		close(p.emptied)
		p.emptied = nil
	}
}

// deliverSoon has the callbacks of finished batches called on another stack than
// this one, which may be that of whoever gave a record, with locks that they
// take; p.mu is held.
func (p *Producer) deliverSoon() {
	if len(p.finished) > 0 && !p.delivering {
		go p.deliverLater()
	}
}

// deliverLater is deliver on a goroutine of its own.
func (p *Producer) deliverLater() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deliver(nil)
}

// bury ends what is left when the loops have ended and the connections are
// closed, and waits for requests that are about to land.
func (p *Producer) bury() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.lanes {
		l.kill(ErrClosed)
		p.reap(l)
	}
	p.deliver(nil)
	for p.used > 0 || p.delivering {
		if p.emptied == nil {
			p.emptied = make(chan struct{})
		}
		emptied := p.emptied
		p.mu.Unlock()
		<-emptied
		p.mu.Lock()
	}
}
