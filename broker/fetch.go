package broker

import (
	"errors"
	"fmt"
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

	files  []wire.FileRange // found by the last look, in the order of resp
	total  int64            // their bytes
	news   bool             // some partition has to say something else than records
	within time.Duration    // the deadline, on the monotonic clock

	waiters []*repl.Waiter // one a partition; their number never falls
	cancel  func()         // of the timer
	state   atomic.Int32   // one of the three below
	refused error          // why a partition does not let it wait
}

// The states of a fetch. Whoever moves it from parked to ready owns it.
const (
	looking int32 = iota
	parked
	woken // while it was about to park
)

var fetches = sync.Pool{New: func() any { return new(fetch) }}

const (
	maxFetchBytes = 64 << 20         // an answer's batches, whatever the request says
	maxPlainBytes = 16 << 20         // an answer's decoded batches
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
		c.ReplyError(err)
		f.recycle()
		return
	}
	c.DropBody()
	f.within = b.time().Mono + min(time.Duration(f.req.MaxWaitMillis)*time.Millisecond, maxFetchWait)
	f.serve()
}

// serve looks, and answers or parks.
func (f *fetch) serve() {
	f.look()
	wait := f.within - f.b.time().Mono
	if f.news || f.total >= int64(f.req.MinBytes) && f.total > 0 || wait <= 0 || len(f.req.Partitions) == 0 {
		f.answer()
		return
	}
	f.park(wait)
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
	if q.Offset >= v.Committed || room <= 0 && f.total > 0 {
		return nil
	}
	found, err := v.Log.Find(q.Offset, v.Committed, int(min(int64(q.MaxBytes), max(room, 1))))
	if err != nil {
		var bad *storage.CorruptRange
		if errors.As(err, &bad) {
			r.CorruptFrom, r.CorruptTo = bad.From, bad.To
		}
		return err
	}
	if found.Len == 0 {
		return nil
	}
	if f.total > 0 && found.Len > room {
		found.Done()
		return nil // its first batch does not fit behind the others; the next fetch takes it
	}
	r.Next, r.Bytes = found.Next, uint32(found.Len)
	f.files = append(f.files, found.FileRange)
	f.total += found.Len
	return nil
}

// answer sends what the last look found.
func (f *fetch) answer() {
	if f.req.Plain && f.total > 0 {
		if f.b.submit(f.answerPlain) {
			return
		}
		f.drop()
		f.call.ReplyError(errBusy)
		f.recycle()
		return
	}
	f.call.ReplyFiles(&f.resp, f.files)
	clear(f.files)
	f.files, f.total = f.files[:0], 0
	f.recycle()
}

// answerPlain decodes what the last look found. It may stop in the middle of a
// range, so that an answer stays within maxPlainBytes; Next says where. Runs
// on a worker.
func (f *fetch) answerPlain() {
	decoder := wire.Decoder{MaxRecords: wire.DefaultMaxRecords}
	defer decoder.Release()
	var out []byte
	files := f.files
	for i := range f.resp.Partitions {
		r := &f.resp.Partitions[i]
		if r.Bytes == 0 {
			continue
		}
		from := len(out)
		r.Next = f.req.Partitions[i].Offset
		var err error
		if out, err = appendPlain(out, &files[0], r, &decoder); err != nil {
			r.Code = wire.CodeOf(err)
		}
		r.Bytes = uint32(len(out) - from)
		files = files[1:]
	}
	for i, from := 0, 0; i < len(f.resp.Partitions); i++ {
		r := &f.resp.Partitions[i]
		r.Data = out[from : from+int(r.Bytes)]
		from += int(r.Bytes)
	}
	f.call.Reply(&f.resp)
	f.drop()
	f.recycle()
}

// appendPlain appends the batches of one range, decoded, as far as they fit and
// are sound, and corrects r.Next. The error is that of the first batch.
func appendPlain(out []byte, file *wire.FileRange, r *wire.FetchResult, d *wire.Decoder) ([]byte, error) {
	stored := plainPool.Get(int(file.Len))
	defer stored.Release()
	if _, err := file.R.ReadAt(stored.B, file.Off); err != nil {
		return out, fmt.Errorf("%w: read %d bytes at %d: %w", wire.CodeStorageError, file.Len, file.Off, err)
	}
	from := len(out)
	for batch, err := range wire.Batches(stored.B) {
		if err == nil {
			err = batch.Verify()
		}
		fits := err != nil || len(out) == 0 || len(out)+wire.HeaderSize+batch.RecordsLength() <= maxPlainBytes
		if err == nil && fits {
			out, err = batch.AppendPlain(out, d)
		}
		switch {
		case err != nil && len(out) == from:
			return out, fmt.Errorf("%w: %w", wire.CodeCorrupt, err)
		case err != nil || !fits:
			return out, nil
		}
		r.Next = batch.NextOffset()
	}
	return out, nil
}

var plainPool = mem.NewPool("plain")

// drop lets go of the ranges found.
func (f *fetch) drop() {
	for i := range f.files {
		f.files[i].Done()
	}
	clear(f.files)
	f.files, f.total, f.news = f.files[:0], 0, false
}

// recycle keeps f for another request.
func (f *fetch) recycle() {
	if cap(f.resp.Partitions) > maxKept {
		return
	}
	clear(f.resp.Partitions)
	f.call, f.cancel, f.refused = nil, nil, nil
	fetches.Put(f)
}
