package bench

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/teralog/teralog/wire"
)

// An Anomaly is something a log must not do, found in a history.
type Anomaly struct {
	Kind      string // A1 to A9
	Partition wire.PartitionID
	Text      string
}

func (a Anomaly) String() string { return fmt.Sprintf("%s in %v: %s", a.Kind, a.Partition, a.Text) }

// maxWitnesses bounds the anomalies of one kind that are kept; all are counted.
const maxWitnesses = 32

// A Checker looks for anomalies in a history, event by event, in time linear
// in its length. It holds some 40 bytes a record sent and 16 an offset read.
//
//	A1  two records at one offset
//	A2  one record at two offsets
//	A3  a record nobody sent: unknown, of another run or partition, or damaged
//	A4  a record whose send failed definitely
//	A5  an acknowledged record is gone, though later ones are there
//	A6  an acknowledged record at the end is gone
//	A7  a poll skips, repeats or goes back within itself
//	A8  a poll does not begin where the one before it ended
//	A9  records of a producer lie in another order than they were sent
//
// A crash that may lose records (see Lossy) takes a suffix: what it takes must
// not be followed by anything that it left.
type Checker struct {
	run       uint32
	producers map[uint32]*sender
	parts     map[wire.PartitionID]*observed
	positions map[follower]wire.Offset // where the consumer's next poll begins
	found     []Anomaly
	counts    map[string]int
	allowed   int
}

// A sender is a producer's records, by counter.
type sender struct{ sends pages[send] }

type send struct {
	part    *observed
	offset  wire.Offset // acknowledged, -1 if not or not known
	seen    wire.Offset // first read at, -1: not yet
	epoch   wire.Epoch  // of the acknowledgement
	at      wire.Epoch  // of the read
	before  int32       // lossy crashes of the partition that were known when it was decided
	outcome Outcome
	idem    bool
	decided bool
	drained bool
}

// An observed partition is what anybody ever read of it.
type observed struct {
	id      wire.PartitionID
	slots   pages[slot] // by offset
	lossy   []Lossy
	gaps    []gap
	start   wire.Offset
	end     wire.Offset // one past the last offset of the drain
	drained bool
}

type slot struct {
	producer uint32
	epoch    int32 // plus 1; 0: nothing was read here
	counter  uint64
}

// A gap is a range of offsets that a consumer passed over. It is an anomaly if
// somebody else has read something there.
type gap struct {
	from, to wire.Offset
	kind     string
	text     string
}

type follower struct {
	consumer  uint32
	partition wire.PartitionID
}

// maxOffset bounds the offsets a checker keeps, so that a wrong one cannot ask
// for all memory.
const maxOffset = 1 << 31

// NewChecker returns a checker of the run's history.
func NewChecker(run uint32) *Checker {
	return &Checker{run: run, producers: map[uint32]*sender{}, parts: map[wire.PartitionID]*observed{},
		positions: map[follower]wire.Offset{}, counts: map[string]int{}}
}

func (c *Checker) anomaly(kind string, p wire.PartitionID, format string, args ...any) {
	if c.counts[kind]++; c.counts[kind] <= maxWitnesses {
		c.found = append(c.found, Anomaly{kind, p, fmt.Sprintf(format, args...)})
	}
}

func (c *Checker) part(id wire.PartitionID) *observed {
	o := c.parts[id]
	if o == nil {
		o = &observed{id: id}
		c.parts[id] = o
	}
	return o
}

func (c *Checker) send(id ID) *send {
	if p := c.producers[id.Producer]; id.Run == c.run && p != nil && id.Counter < uint64(p.sends.len()) {
		return p.sends.at(int(id.Counter))
	}
	return nil
}

// Apply takes the next event. A history that contradicts itself, which is the
// test's fault and not the log's, panics.
func (c *Checker) Apply(e Event) {
	switch e := e.(type) {
	case *Sent:
		c.sent(e)
	case *Decided:
		c.decided(e)
	case *Polled:
		c.polled(e)
	case *Sought:
		delete(c.positions, follower{e.Consumer, e.Partition})
	case *Lossy:
		o := c.part(e.Partition)
		o.lossy = append(o.lossy, *e)
	case *Drained:
		c.drain(e)
	}
}

func (c *Checker) sent(e *Sent) {
	p := c.producers[e.ID.Producer]
	if p == nil {
		p = &sender{}
		c.producers[e.ID.Producer] = p
	}
	if e.ID.Run != c.run || e.ID.Counter != uint64(p.sends.len()) {
		panic(fmt.Sprintf("BUG: record %+v sent after %d of run %d", e.ID, p.sends.len(), c.run))
	}
	n := p.sends.len()
	p.sends.grow(n + 1)
	*p.sends.at(n) = send{part: c.part(e.Partition), offset: -1, seen: -1, epoch: wire.NoEpoch, idem: e.Idempotent}
}

func (c *Checker) decided(e *Decided) {
	s := c.send(e.ID)
	if s == nil || s.decided {
		panic(fmt.Sprintf("BUG: record %+v decided twice, or never sent", e.ID))
	}
	s.decided, s.outcome, s.offset, s.epoch = true, e.Outcome, e.Offset, e.Epoch
	if e.Outcome != OK {
		s.offset = -1
	}
	s.before = int32(len(s.part.lossy))
	if s.outcome == Fail && s.seen >= 0 {
		c.anomaly("A4", s.part.id, "record %+v was read at offset %d and failed definitely later", e.ID, s.seen)
	}
}

func (c *Checker) polled(e *Polled) {
	o := c.part(e.Partition)
	key := follower{e.Consumer, e.Partition}
	if at, known := c.positions[key]; known && at != e.Position {
		c.anomaly("A8", o.id, "consumer %d ended a poll at %d and began the next at %d", e.Consumer, at, e.Position)
	}
	c.positions[key] = e.Next
	at, kind := e.Position, "A8"
	for _, r := range e.Reads {
		switch {
		case r.Offset < at:
			c.anomaly("A7", o.id, "consumer %d got offset %d when it was at %d", e.Consumer, r.Offset, at)
		case r.Offset > at:
			o.gaps = append(o.gaps, gap{at, r.Offset, kind, fmt.Sprintf("consumer %d skipped offsets %d to %d", e.Consumer, at, r.Offset-1)})
		}
		at, kind = r.Offset+1, "A7"
		c.read(o, r)
	}
	switch {
	case e.Next < at:
		c.anomaly("A7", o.id, "consumer %d is at %d after a poll that read %d", e.Consumer, e.Next, at-1)
	case e.Next > at:
		o.gaps = append(o.gaps, gap{at, e.Next, "A8", fmt.Sprintf("consumer %d skipped offsets %d to %d", e.Consumer, at, e.Next-1)})
	}
}

// read takes in that a record was read at an offset.
func (c *Checker) read(o *observed, r Read) {
	s := c.send(r.ID)
	switch {
	case !r.Sound:
		c.anomaly("A3", o.id, "the value at offset %d is damaged", r.Offset)
		return
	case s == nil:
		c.anomaly("A3", o.id, "offset %d holds %+v, which nobody sent", r.Offset, r.ID)
		return
	case s.part != o:
		c.anomaly("A3", o.id, "offset %d holds %+v, which was sent to %v", r.Offset, r.ID, s.part.id)
		return
	case r.Offset < 0 || r.Offset >= maxOffset:
		c.anomaly("A3", o.id, "%+v at offset %d", r.ID, r.Offset)
		return
	}
	if s.decided && s.outcome == Fail {
		c.anomaly("A4", o.id, "offset %d holds %+v, which failed definitely", r.Offset, r.ID)
	}
	c.place(o, r)
	if s.seen >= 0 && s.seen != r.Offset && s.idem && !o.apart(s.seen, s.at, r.Offset, r.Epoch) {
		c.anomaly("A2", o.id, "%+v lies at offset %d and at %d", r.ID, s.seen, r.Offset)
	}
	if s.outcome == OK && s.decided && s.offset >= 0 && s.offset != r.Offset && s.idem && !o.apart(s.offset, s.epoch, r.Offset, r.Epoch) {
		c.anomaly("A2", o.id, "%+v was acknowledged at offset %d and lies at %d", r.ID, s.offset, r.Offset)
	}
	if s.seen < 0 || r.Epoch >= s.at {
		s.seen, s.at = r.Offset, r.Epoch
	}
}

// place compares what an offset holds with what it held.
func (c *Checker) place(o *observed, r Read) {
	o.slots.grow(int(r.Offset) + 1)
	have := o.slots.at(int(r.Offset))
	now := slot{r.ID.Producer, int32(r.Epoch) + 1, r.ID.Counter}
	switch {
	case have.epoch == 0:
		*have = now
	case have.producer == now.producer && have.counter == now.counter:
	case o.apart(r.Offset, wire.Epoch(have.epoch-1), r.Offset, r.Epoch):
		if now.epoch > have.epoch { // else it was read before the crash, and is told of late
			*have = now
		}
	default:
		c.anomaly("A1", o.id, "offset %d held producer %d record %d in epoch %d and holds producer %d record %d in epoch %d", r.Offset,
			have.producer, have.counter, have.epoch-1, now.producer, now.counter, now.epoch-1)
	}
}

// apart reports whether a crash lies between what was at offset a under epoch
// ea and what was at b under eb, and may have taken the older of the two.
func (o *observed) apart(a wire.Offset, ea wire.Epoch, b wire.Offset, eb wire.Epoch) bool {
	return o.replaced(a, ea, eb) || o.replaced(b, eb, ea)
}

// replaced reports whether what lay at an offset under one epoch may have been
// lost, so that something else may lie there under a later one.
func (o *observed) replaced(at wire.Offset, then, now wire.Epoch) bool {
	for _, l := range o.lossy {
		if at >= l.Keep && then < l.Epoch && l.Epoch <= now {
			return true
		}
	}
	return false
}

func (c *Checker) drain(e *Drained) {
	o := c.part(e.Partition)
	if o.drained {
		panic(fmt.Sprintf("BUG: partition %v drained twice", o.id))
	}
	o.drained, o.start, o.end = true, e.Start, e.Start
	at := e.Start
	for _, r := range e.Reads {
		if r.Offset < at {
			c.anomaly("A7", o.id, "the log goes back from offset %d to %d", at-1, r.Offset)
		}
		at = r.Offset + 1
		c.read(o, r)
		if s := c.send(r.ID); r.Sound && s != nil && s.part == o {
			s.drained = true
		}
	}
	o.end = at
}

// Finish ends the history and returns what was found, at most 32 of a kind,
// and how often each kind occurred.
func (c *Checker) Finish() ([]Anomaly, map[string]int) {
	for _, o := range c.parts {
		for _, g := range o.gaps {
			for at := max(g.from, 0); at < g.to && int(at) < o.slots.len(); at++ {
				if s := o.slots.at(int(at)); s.epoch != 0 && !o.replaced(at, wire.Epoch(s.epoch-1), 1<<30) {
					c.anomaly(g.kind, o.id, "%s, and something is there", g.text)
					break
				}
			}
		}
	}
	order := []uint32{}
	for id := range c.producers {
		order = append(order, id)
	}
	slices.Sort(order)
	for _, id := range order {
		c.finishSender(id, c.producers[id])
	}
	c.finishLosses(order)
	slices.SortStableFunc(c.found, func(a, b Anomaly) int { return cmp.Compare(a.Kind, b.Kind) })
	return c.found, c.counts
}

// Allowed returns how many acknowledged records are gone as their flush mode
// allows. It is known after Finish.
func (c *Checker) Allowed() int { return c.allowed }

// finishSender checks the order of a producer's acknowledged records (A9) and
// that none of them is gone (A5, A6).
func (c *Checker) finishSender(id uint32, p *sender) {
	type last struct {
		offset  wire.Offset
		epoch   wire.Epoch
		counter int
	}
	lasts := map[*observed]last{}
	for n := range p.sends.len() {
		s := p.sends.at(n)
		if !s.decided || s.outcome != OK {
			continue
		}
		if s.offset >= 0 {
			l, ok := lasts[s.part]
			if ok && s.offset <= l.offset && s.idem && !s.part.apart(l.offset, l.epoch, s.offset, s.epoch) {
				c.anomaly("A9", s.part.id, "producer %d: record %d at offset %d, record %d, sent after it, at %d", id, l.counter, l.offset, n, s.offset)
			}
			lasts[s.part] = last{s.offset, s.epoch, n}
		}
		if s.drained || !s.part.drained || s.trimmed() {
			continue
		}
		if s.mayBeLost() {
			c.allowed++
			continue
		}
		kind, where := "A5", "though later records are there"
		if s.offset >= s.part.end {
			kind, where = "A6", "at the end of the log"
		}
		c.anomaly(kind, s.part.id, "producer %d: record %d was acknowledged at offset %d and is gone, %s", id, n, s.offset, where)
	}
}

// trimmed reports whether the record lay, or may have lain, below the start to
// which retention or a trim has moved the log. Where the broker no longer knew its
// offset somebody may have read it, but a crash may have taken what he read: then
// the record that was sent again lies who knows where.
func (s *send) trimmed() bool {
	at := s.offset
	if at < 0 && !s.part.replaced(s.seen, s.at, math.MaxInt32) {
		at = s.seen
	}
	return max(at, 0) < s.part.start
}

// era returns how many lossy crashes the record was appended after. Its epoch
// tells; the acknowledgement may have been on its way during a crash, so when
// it came says less.
func (s *send) era() int {
	if s.epoch == wire.NoEpoch {
		return int(s.before)
	}
	n := 0
	for n < len(s.part.lossy) && s.part.lossy[n].Epoch <= s.epoch {
		n++
	}
	return n
}

// mayBeLost reports whether a crash since it was appended may have taken the
// record.
func (s *send) mayBeLost() bool {
	for _, l := range s.part.lossy[s.era():] {
		if s.offset < 0 || s.offset >= l.Keep {
			return true
		}
	}
	return false
}

// finishLosses checks that each lossy crash took a suffix: no acknowledged
// record that it left lies behind one that it took.
func (c *Checker) finishLosses(order []uint32) {
	type era struct {
		part  *observed
		crash int
	}
	lost := map[era]wire.Offset{} // the least offset each crash may have taken
	each := func(f func(id uint32, n int, s *send)) {
		for _, id := range order {
			sends := &c.producers[id].sends
			for n := range sends.len() {
				s := sends.at(n)
				if s.decided && s.outcome == OK && s.offset >= 0 && s.era() < len(s.part.lossy) && s.part.drained && s.offset >= s.part.start {
					f(id, n, s)
				}
			}
		}
	}
	// A record acknowledged before several crashes may have been taken by any of
	// them; only those between the last two tell which one it was.
	single := func(s *send) bool { return s.era() == len(s.part.lossy)-1 }
	each(func(_ uint32, _ int, s *send) {
		key := era{s.part, s.era()}
		if least, ok := lost[key]; !s.drained && single(s) && (!ok || s.offset < least) {
			lost[key] = s.offset
		}
	})
	each(func(id uint32, n int, s *send) {
		least, ok := lost[era{s.part, s.era()}]
		if ok && s.drained && single(s) && s.seen == s.offset && s.offset > least {
			c.anomaly("A5", s.part.id, "producer %d: record %d at offset %d survived a crash that took offset %d before it", id, n, s.offset, least)
		}
	})
}
