package broker

import (
	"errors"
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
	total  int64           // their bytes
	news   bool            // some partition has to say something else than records
	full   bool            // more is there already than the answer may carry
	within time.Duration   // the deadline, on the monotonic clock
	files  []wire.FileRange

	waiters []*repl.Waiter // one a partition; their number never falls
	timer   mem.Timer      // its F is wake
	state   atomic.Int32   // one of the three below
	refused error          // why a partition does not let it wait
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
	f.serve()
}

// serve looks, and answers or parks.
func (f *fetch) serve() {
	f.look()
	if f.news || f.full || f.total >= int64(f.req.MinBytes) || f.within <= f.b.time().Mono || len(f.req.Partitions) == 0 {
		f.answer()
		return
	}
	f.park()
}

// look asks every partition for what it has.
func (f *fetch) look() {
	f.drop()
	f.resp.Partitions = f.resp.Partitions[:0]
	room := min(int64(f.req.MaxBytes), maxFetchBytes)
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
		}
	}
}

// find takes up to room bytes of one partition; nothing if the answer already
// has records and room is used up.
func (f *fetch) find(q *wire.FetchPartition, r *wire.FetchResult, room int64) error {
	id := wire.PartitionID{Topic: q.Topic, Partition: q.Partition}
	p, err := f.b.leader(id)
	if err != nil {
		if _, gone := f.b.coord.Image().Resolve(id); gone != nil {
			return gone
		}
		return err
	}
	v := p.View()
	if v.Err != nil {
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
	if q.Offset >= v.Committed {
		return nil
	}
	if room <= 0 && f.total > 0 {
		f.full = true
		return nil
	}
	found, err := v.Log.Find(q.Offset, v.Committed, int(min(int64(q.MaxBytes), max(room, 1))))
	if err != nil {
		noteDamage(r, err)
		return err
	}
	if found.Len == 0 {
		return nil
	}
	f.full = f.full || found.Next < v.Committed
	if f.total > 0 && found.Len > room {
		found.Done()
		return nil // its first batch does not fit behind the others; the next fetch takes it
	}
	r.Next, r.Bytes = found.Next, uint32(found.Len)
	f.ranges = append(f.ranges, found)
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

// answer sends what the last look found.
func (f *fetch) answer() {
	if f.req.Plain && f.total > 0 {
		if !f.b.submit(f.answerPlain) {
			f.refuse(errBusy)
		}
		return
	}
	for i := range f.ranges {
		f.files = append(f.files, f.ranges[i].FileRange)
	}
	f.send()
}

// send answers with resp and files. The ranges, whose files they may be, are
// let go of by their Done.
func (f *fetch) send() {
	f.call.ReplyFiles(&f.resp, f.files)
	clear(f.files)
	clear(f.ranges)
	f.files, f.ranges, f.total = f.files[:0], f.ranges[:0], 0
	f.recycle()
}

// refuse answers with err alone.
func (f *fetch) refuse(err error) {
	f.drop()
	f.call.ReplyError(err)
	f.recycle()
}

// drop lets go of the ranges found.
func (f *fetch) drop() {
	for i := range f.ranges {
		f.ranges[i].Done()
	}
	clear(f.ranges)
	f.ranges, f.total, f.news, f.full = f.ranges[:0], 0, false, false
}

// recycle keeps f for another request.
func (f *fetch) recycle() {
	if cap(f.resp.Partitions) > maxKept {
		return
	}
	clear(f.resp.Partitions)
	f.call, f.refused = nil, nil
	fetches.Put(f)
}
