package broker

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A fetch is one request for records, from its arrival to its answer. It looks
// at its partitions; if there is too little it parks until one of them wakes
// it or its time is up, and looks again.
type fetch struct {
	b    *Broker
	call *wire.Call
	req  wire.FetchRequest
	resp wire.FetchResponse

	ranges []storage.Range // found by the last look, in the order of resp
	lanes  []*lane         // of their disks
	cold   *lane           // where to look for what the last look could not without the disk; nil: it could
	onLane bool            // it may wait for the disk
	total  int64           // their bytes
	news   bool            // some partition has to say something else than records
	full   bool            // more is there already than the answer may carry
	within time.Duration   // the deadline, on the monotonic clock
	files  []wire.FileRange

	waiters []*repl.Waiter // one a partition; their number never falls
	timer   mem.Timer      // its F is wake
	state   atomic.Int32   // one of the three below
	refused error          // why a partition does not let it wait
	why     error          // what the last look was refused with last
}

// The states of a fetch. Whoever moves it from parked to ready owns it.
const (
	looking int32 = iota
	parked
	woken // while it was about to park
)

var fetches = sync.Pool{New: func() any {
	f := new(fetch)
	f.timer.F = f.wake
	return f
}}

const (
	maxFetchBytes = 64 << 20         // an answer's batches, whatever the request says
	maxFetchWait  = 60 * time.Second // longer waits are cut to it
)

func (b *Broker) fetch(c *wire.Call) {
	f := fetches.Get().(*fetch)
	f.b, f.call = b, c
	err := c.Decode(&f.req)
	if err == nil && f.req.Replica != wire.NoNode {
		err = wire.Errorf(wire.CodeUnsupported, "this listener serves consumers, not replicas")
	}
	if err != nil {
		f.refuse(err)
		return
	}
	c.DropBody()
	f.within = b.time().Mono + min(time.Duration(f.req.MaxWaitMillis)*time.Millisecond, maxFetchWait)
	if !b.guard("a fetch", f.serve) {
		f.fail()
	}
}

// serve looks, and answers or parks. What cannot be found without the disk is
// looked for in its lane: here a connection waits, or all parked fetches do.
func (f *fetch) serve() {
	f.onLane = false
	f.look()
	if f.cold == nil {
		f.settle()
	} else if !f.cold.submit(f.serveCold, f.fail) {
		f.refuse(errBusy)
	}
}

// serveCold is serve where the disk may be waited for. Runs in a lane.
func (f *fetch) serveCold() {
	f.onLane = true
	f.look()
	f.settle()
}

// settle answers with what the last look found, or parks.
func (f *fetch) settle() {
	if f.throttled() {
		f.turnAway(f.why)
		return
	}
	if f.news || f.full || f.total >= int64(f.req.MinBytes) || f.within <= f.b.time().Mono || len(f.req.Partitions) == 0 || f.gone() {
		f.answer()
		return
	}
	f.park()
}

// throttled reports whether all its partitions are over their quota. Then one
// error says so, and which; else each result says that it is.
func (f *fetch) throttled() bool {
	for i := range f.resp.Partitions {
		if f.resp.Partitions[i].Code != wire.CodeQuota {
			return false
		}
	}
	return len(f.resp.Partitions) > 0
}

// gone reports whether nobody waits for the answer any more.
func (f *fetch) gone() bool {
	select {
	case <-f.call.Cancelled():
		return true
	default:
		return false
	}
}

// look asks every partition for what it has.
func (f *fetch) look() {
	f.drop()
	f.cold = nil
	f.resp.Partitions = f.resp.Partitions[:0]
	room := sessionOf(f.call).room(min(int64(f.req.MaxBytes), maxFetchBytes))
	if f.req.Plain {
		room = min(room, maxPlainBytes)
	}
	for i := range f.req.Partitions {
		q := &f.req.Partitions[i]
		f.resp.Partitions = append(f.resp.Partitions, wire.FetchResult{
			Topic: q.Topic, Partition: q.Partition, Epoch: wire.NoEpoch,
			LogStart: -1, Committed: -1, End: -1, Next: q.Offset,
			Diverge: wire.NoEpoch, DivergeEnd: -1, CorruptFrom: -1, CorruptTo: -1,
		})
		r := &f.resp.Partitions[i]
		if err := f.find(q, r, room-f.total); err != nil {
			r.Code = wire.CodeOf(err)
			f.news = true
			f.why = err
			f.b.noteRefusal(f.call, err)
			f.call.RetryAfter(retryAfter(err))
		}
	}
}

// find takes up to room bytes of one partition; nothing if the answer already
// has records and room is used up.
func (f *fetch) find(q *wire.FetchPartition, r *wire.FetchResult, room int64) error {
	id := wire.PartitionID{Topic: q.Topic, Partition: q.Partition}
	v, at, err := f.b.reader(id)
	if err != nil {
		if _, gone := f.b.coord.Image().Resolve(id); gone != nil {
			return gone
		}
		return err
	}
	bound := v.Bound()
	if v.Err != nil && q.Offset >= bound {
		return v.Err
	}
	r.Epoch, r.LogStart, r.Committed, r.End = v.Epoch, v.Start, v.Committed, v.End
	if err := checkEpoch(q.Epoch, v.Epoch); err != nil {
		return err
	}
	if q.LastEpoch != wire.NoEpoch {
		// The reader's last batch must be of the log as it is now: of an epoch
		// that reached as far as the reader did. An epoch older than all that
		// are known here ended where the log starts, or before.
		e, end := v.Log.EpochEnd(q.LastEpoch)
		if end < q.Offset || e != q.LastEpoch && e != wire.NoEpoch {
			r.Diverge, r.DivergeEnd = e, end
			return wire.CodeTruncated
		}
	}
	if q.Offset < v.Start || q.Offset > v.End {
		return wire.CodeOutOfRange
	}
	if q.Offset >= bound {
		return nil
	}
	f.news = f.news || v.Err != nil // nothing will come that it could wait for
	if room <= 0 && f.total > 0 {
		f.full = true
		return nil
	}
	quota := f.b.readQuota(id)
	if quota != nil {
		if err := quota.wait(f.b.time(), true); err != nil {
			return err
		}
	}
	most := int(quota.room(min(int64(q.MaxBytes), max(room, 1))))
	found, err := v.Log.FindCached(q.Offset, bound, most)
	if err == storage.ErrNotCached && f.onLane {
		found, err = v.Log.Find(q.Offset, bound, most)
	}
	if err == storage.ErrNotCached {
		f.cold = at
		return nil
	}
	if err != nil {
		noteDamage(r, err)
		return err
	}
	if found.Len == 0 {
		return nil
	}
	f.full = f.full || found.Next < bound
	if f.total > 0 && found.Len > room {
		found.Done()
		return nil // its first batch does not fit behind the others; the next fetch takes it
	}
	r.Next, r.Bytes = found.Next, uint32(found.Len)
	f.ranges, f.lanes = append(f.ranges, found), append(f.lanes, at)
	f.total += found.Len
	return nil
}

// noteDamage tells the reader how far the damage goes, if err is damage.
func noteDamage(r *wire.FetchResult, err error) {
	var bad *storage.CorruptRange
	if errors.As(err, &bad) {
		r.CorruptFrom, r.CorruptTo = bad.From, bad.To
	}
}

// answer sends what the last look found. What has to be read from the disk is
// looked into in its lane first, what is to be decoded goes by a worker.
func (f *fetch) answer() {
	ok := true
	plain := f.req.Plain && f.total > 0
	if !plain && f.total <= maxCopied && f.sendCopied() {
		return
	}
	switch at := f.unsound(); {
	case at != nil && f.onLane:
		f.answerCold()
	case at != nil:
		ok = at.submit(f.answerCold, f.fail)
	case plain:
		ok = f.b.work.submit(f.answerPlain, f.fail)
	default:
		f.sendStored()
	}
	if !ok {
		f.refuse(errBusy)
	}
}

// maxCopied is how many bytes are sent as a part of the answer: up to about
// here a read and a write cost less than a write and a sendfile.
const maxCopied = 16 << 10

// sendCopied answers with what was found if it is at hand.
func (f *fetch) sendCopied() bool {
	total := f.total
	if !f.call.ReplyFilled(&f.resp, int(total), f) {
		return false
	}
	f.b.count.fetched.Add(total)
	f.drop()
	f.call = nil
	f.recycle()
	return true
}

// Fill implements wire.Filler by what was found.
func (f *fetch) Fill(p []byte) bool {
	for i := range f.ranges {
		n := f.ranges[i].Len
		if !f.ranges[i].ReadNow(p[:n]) {
			return false
		}
		p = p[n:]
	}
	f.handOver()
	return true
}

// unsound returns the lane of what must not go out unread, nil if all may.
func (f *fetch) unsound() *lane {
	for i := range f.ranges {
		if !f.ranges[i].Sound() {
			return f.lanes[i]
		}
	}
	return nil
}

// answerCold checks what was found on the disk and sends what is sound: bytes
// that the disk has changed are not passed on. The log remembers damage, so the
// next look stops before it. Runs in a lane.
func (f *fetch) answerCold() {
	f.onLane = true
	for looks := 1; !f.check(); looks++ {
		if looks == maxLooks {
			f.refuse(wire.Errorf(wire.CodeStorageError, "damage wherever the log is read"))
			return
		}
		f.look()
	}
	switch {
	case !f.req.Plain || f.total == 0:
		f.sendStored()
	case !f.b.work.submit(f.answerPlain, f.fail):
		f.refuse(errBusy)
	}
}

// maxLooks bounds how often one fetch is held up by new damage.
const maxLooks = 16

// check reports whether all that was found is sound. A partition that cannot be
// read has its error answered and does not hold up the others.
func (f *fetch) check() bool {
	n := 0
	for i := range f.resp.Partitions {
		r := &f.resp.Partitions[i]
		if r.Bytes == 0 {
			continue
		}
		found := &f.ranges[n]
		n++
		if found.Sound() {
			continue
		}
		l := f.lanes[n-1]
		f.b.rest(l, found.Len)
		err := found.Check()
		l.yield()
		if errors.Is(err, wire.CodeCorrupt) {
			return false
		}
		if err != nil {
			r.Code, r.Bytes, r.Next = wire.CodeOf(err), 0, f.req.Partitions[i].Offset
			n--
			found.Done()
			f.ranges, f.lanes = slices.Delete(f.ranges, n, n+1), slices.Delete(f.lanes, n, n+1)
		}
	}
	return true
}

func (f *fetch) sendStored() {
	f.handOver()
	for i := range f.ranges {
		f.files = append(f.files, f.ranges[i].FileRange)
		f.ranges[i].Done = nil
	}
	f.send()
}

// send answers with resp and files. The ranges, whose files they may be, are
// let go of by their Done.
func (f *fetch) send() {
	bytes := int64(0)
	for i := range f.files {
		bytes += f.files[i].Len
	}
	f.b.count.fetched.Add(bytes)
	f.pay(bytes)
	files := f.files
	f.files = nil // they are the call's now
	f.call.ReplyFiles(&f.resp, files)
	f.call = nil
	clear(files)
	clear(f.ranges)
	f.files, f.ranges, f.lanes, f.total = files[:0], f.ranges[:0], f.lanes[:0], 0
	f.recycle()
}

// pay uses up what the answer takes from the quotas of connection and tenant,
// and of the topics in it.
func (f *fetch) pay(bytes int64) {
	if s := sessionOf(f.call); s != nil {
		s.read(f.b.time(), bytes)
	}
	for i := range f.resp.Partitions {
		r := &f.resp.Partitions[i]
		if r.Bytes == 0 {
			continue
		}
		if q := f.b.readQuota(wire.PartitionID{Topic: r.Topic, Partition: r.Partition}); q != nil {
			q.take(f.b.time(), int64(r.Bytes), 1)
		}
	}
}

// refuse answers with err alone.
func (f *fetch) refuse(err error) {
	f.b.noteRefusal(f.call, err)
	f.turnAway(err)
}

// turnAway is refuse for what has been noted.
func (f *fetch) turnAway(err error) {
	f.drop()
	f.call.ReplyError(err)
	f.call = nil
	f.recycle()
}

// fail ends a fetch that panicked. It is not used again.
func (f *fetch) fail() {
	f.b.lot.leave(f)
	f.b.wheel.Stop(&f.timer)
	for _, w := range f.waiters {
		w.Cancel()
	}
	f.drop()
	for i := range f.files {
		letGo(&f.files[i])
	}
	if f.call != nil {
		f.call.Fail()
	}
}

// letGo ends the use of a range, once.
func letGo(r *wire.FileRange) {
	if done := r.Done; done != nil {
		r.Done = nil
		done()
	}
}

// drop lets go of the ranges found.
func (f *fetch) drop() {
	for i := range f.ranges {
		letGo(&f.ranges[i].FileRange)
	}
	clear(f.ranges)
	f.ranges, f.lanes, f.total, f.news, f.full = f.ranges[:0], f.lanes[:0], 0, false, false
}

// recycle keeps f for another request.
func (f *fetch) recycle() {
	if cap(f.resp.Partitions) > maxKept {
		return
	}
	clear(f.resp.Partitions)
	f.call, f.refused, f.why = nil, nil, nil
	fetches.Put(f)
}
