package wire

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/mem"
)

// fragment bounds what one system call sends of a file, so that one reader of
// bulk data does not hold a processor for long. copyBuf is the same for ranges
// that have to be copied.
const (
	fragment = 1 << 20
	copyBuf  = 256 << 10
)

// maxJoin is the greatest response that is copied behind another one waiting
// to be sent: below it a copy is cheaper than one more part of a write.
const maxJoin = 4 << 10

// maxParts is the number of buffers one write gathers.
const maxParts = 8

// errShortRange says that a file range ended before its length. The frame has
// promised that length already, so the connection must end: padding would be
// taken for data.
var errShortRange = errors.New("file range ends early")

// A parcel is what one frame, or several small ones, still have to send.
type parcel struct {
	buf   *mem.Buf
	tail  []*mem.Buf  // of a request: follow buf
	files []FileRange // of an answer: follow buf; they lie in answer
	calls int         // answers in it

	answer  *Call         // of a server: kept while its ranges are sent
	given   time.Duration // of a server: when the answer was given, see Times; 0: not timed
	request *exchange     // of a client: whose request it is,
	id      uint32        // and its number, which shows when request serves another call
	silent  bool          // it gets no response
}

// release frees what the parcel holds.
func (p *parcel) release() {
	p.buf.Release()
	for _, b := range p.tail {
		b.Release()
	}
	for i := range p.files {
		p.files[i].done()
	}
	if p.answer != nil {
		p.answer.unref()
	}
	*p = parcel{}
}

// A sender is told about its parcels by the outbox. Neither method is called
// with the outbox's mutex held.
type sender interface {
	parcelSent(p *parcel)
	sendFailed(err error) // once; the outbox is closed by now
}

// piece returns the bytes that come i-th: buf's, then the tail's.
func (p *parcel) piece(i int) []byte {
	if i == 0 {
		return p.buf.B
	}
	return p.tail[i-1].B
}

// An outbox sends parcels on one connection in the order they were pushed.
//
// Who sends is decided by a turn, as in a partition's mailbox: push gives it
// to a pusher that finds it free. The holder ends it with flush, which sends
// what the socket takes at once and leaves the rest to a goroutine, or with
// start, which leaves all of it. That goroutine exists only while there is
// something to send. A server's reader takes the turn while it works on
// requests, so their answers go out together when it is about to read again.
type outbox struct {
	sock   *socket
	pool   *mem.Pool
	owner  sender
	count  *traffic
	writer func() // write, made once: starting the goroutine allocates nothing

	mu    sync.Mutex
	queue []parcel
	turn  bool  // somebody sends or has promised to
	err   error // closed

	// The fields below belong to the holder of the turn.
	sending []parcel
	next    int   // first parcel of sending that is not done
	piece   int   // pieces of it sent
	off     int   // bytes of the next piece sent
	file    int   // ranges of it sent
	fileOff int64 // bytes of the next range sent
	one     [1][]byte
	several [][]byte // made when first more than one part goes out at once
}

// traffic counts the bytes that went out, by how, and the goroutines it took.
type traffic struct {
	plain, file, copied, writers atomic.Int64
}

func (o *outbox) init(s *socket, p *mem.Pool, owner sender, count *traffic) {
	o.sock, o.pool, o.owner, o.count = s, p, owner, count
	o.writer = o.write
}

// push queues p. mine says that the caller now holds the turn. On a closed
// outbox p is released and the reason for the closing returned.
func (o *outbox) push(p parcel) (mine bool, err error) {
	o.mu.Lock()
	if o.err != nil {
		err = o.err
		o.mu.Unlock()
		p.release()
		return false, err
	}
	mine = o.pushLocked(p)
	o.mu.Unlock()
	return mine, nil
}

// pushLocked is push on an outbox that is open; o.mu is held.
func (o *outbox) pushLocked(p parcel) (mine bool) {
	if !o.join(&p) {
		o.queue = append(o.queue, p)
	}
	mine = !o.turn
	o.turn = true
	return mine
}

// join copies a small answer behind the last one in the queue.
func (o *outbox) join(p *parcel) bool {
	if len(o.queue) == 0 || p.request != nil || len(p.files) > 0 || len(p.buf.B) > maxJoin {
		return false
	}
	last := &o.queue[len(o.queue)-1]
	if len(last.files) > 0 || cap(last.buf.B)-len(last.buf.B) < len(p.buf.B) {
		return false
	}
	last.buf.B = append(last.buf.B, p.buf.B...)
	last.calls += p.calls
	if last.given == 0 {
		last.given = p.given
	}
	p.buf.Release()
	return true
}

// unqueue takes back the parcel of a request that is not being sent yet; ok is
// false if it is not in the queue. o.mu is held.
func (o *outbox) unqueue(x *exchange) (p parcel, ok bool) {
	for i := range o.queue {
		if o.queue[i].request == x {
			p = o.queue[i]
			o.queue = slices.Delete(o.queue, i, i+1)
			return p, true
		}
	}
	return parcel{}, false
}

// take takes the turn if it is free.
func (o *outbox) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	mine := !o.turn && o.err == nil
	o.turn = o.turn || mine
	return mine
}

// start leaves everything to a goroutine of its own. Holder only.
func (o *outbox) start() {
	o.count.writers.Add(1)
	go o.writer()
}

// flush sends what can be sent without waiting. Holder only.
func (o *outbox) flush() { o.work(false) }

// write sends everything, waiting where it must. Holder only.
func (o *outbox) write() { o.work(true) }

// maxLoads bounds how often flush looks for more: others may answer as fast as it
// sends, and its caller has more to do.
const maxLoads = 8

func (o *outbox) work(block bool) {
	for n := 0; o.load(); n++ {
		if n == maxLoads && !block {
			o.start()
			return
		}
		ok, err := o.send(block)
		if err != nil {
			o.fail(err)
			return
		}
		if !ok {
			o.start()
			return
		}
	}
}

// load makes sure there is something to send; without anything the turn is free.
func (o *outbox) load() bool {
	if o.next < len(o.sending) {
		return true
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		o.turn = false
		return false
	}
	o.sending, o.queue, o.next = o.queue, o.sending[:0], 0
	for i := range o.sending {
		if x := o.sending[i].request; x != nil {
			x.left = true // from now on some of its bytes may have been sent
		}
	}
	return true
}

// send sends what was loaded. Without block it may stop early, with ok false.
func (o *outbox) send(block bool) (ok bool, err error) {
	for o.next < len(o.sending) {
		p := &o.sending[o.next]
		switch {
		case o.piece <= len(p.tail):
			n, err := o.sendPlain(block)
			if err != nil || n == 0 {
				return false, err
			}
		case o.file < len(p.files):
			if ok, err := o.sendRange(&p.files[o.file], block); err != nil || !ok {
				return false, err
			}
		default:
			o.finish(p)
		}
	}
	return true, nil
}

// sendPlain writes pieces, up to the first parcel with file ranges.
func (o *outbox) sendPlain(block bool) (int, error) {
	parts, more := o.one[:0], false
	if len(o.sending)-o.next > 1 || o.piece < len(o.sending[o.next].tail) {
		if o.several == nil {
			o.several = make([][]byte, 0, maxParts)
		}
		parts = o.several
	}
	piece, off := o.piece, o.off
	for i := o.next; i < len(o.sending) && !more; i++ {
		p := &o.sending[i]
		for ; piece <= len(p.tail) && len(parts) < maxParts; piece++ {
			parts = append(parts, p.piece(piece)[off:])
			off = 0
		}
		if len(parts) == maxParts {
			break
		}
		piece, more = 0, p.hasRange()
		if len(p.files) > 0 && !more {
			break // its ranges are empty; finish them in order
		}
	}
	sent, err := o.sock.write(parts, more, block)
	clear(parts)
	o.count.plain.Add(int64(sent))
	o.sent(sent)
	return sent, err
}

// sent counts n bytes off the pieces, and ends the parcels that hold no more.
func (o *outbox) sent(n int) {
	for n > 0 {
		p := &o.sending[o.next]
		step := min(n, len(p.piece(o.piece))-o.off)
		o.off += step
		n -= step
		if o.off < len(p.piece(o.piece)) {
			return
		}
		o.piece, o.off = o.piece+1, 0
		if o.piece > len(p.tail) && len(p.files) == 0 {
			o.finish(p)
		}
	}
}

// hasRange reports whether file bytes follow the parcel's buffer.
func (p *parcel) hasRange() bool {
	for i := range p.files {
		if p.files[i].Len > 0 {
			return true
		}
	}
	return false
}

// maxInline is the greatest file range that is sent without block: as long as a
// copy of it takes, whoever sends can be kept. Whoever answers with ranges has
// seen to it that they are in memory.
const maxInline = 64 << 10

// sendRange sends one fragment of f, or ends it. ok is false if that has to wait
// and may not.
func (o *outbox) sendRange(f *FileRange, block bool) (ok bool, err error) {
	left := f.Len - o.fileOff
	if left <= 0 {
		o.file, o.fileOff = o.file+1, 0
		f.done()
		return true, nil
	}
	if !block && left > maxInline {
		return false, nil
	}
	n, ok, wait, err := o.sock.sendFile(f, o.fileOff, int(min(left, fragment)), block)
	switch {
	case ok:
		o.count.file.Add(int64(n))
	case o.sock.tls != nil:
		n, err = o.sock.tls.writeRange(f, o.fileOff, left, block)
		o.count.copied.Add(int64(n))
		wait = n == 0 && err == nil
	case block:
		n, err = o.copyRange(f, int(min(left, copyBuf)))
	default:
		wait = true
	}
	if wait {
		return false, nil
	}
	if n == 0 && err == nil {
		err = errShortRange
	}
	if err != nil {
		return false, fmt.Errorf("%d bytes at offset %d, %d sent: %w", f.Len, f.Off, o.fileOff, err)
	}
	o.fileOff += int64(n)
	return true, nil
}

// copyRange sends the next n bytes of f through memory.
func (o *outbox) copyRange(f *FileRange, n int) (int, error) {
	b := o.pool.Get(n)
	defer b.Release()
	if err := readRange(f, o.fileOff, b.B); err != nil {
		return 0, err
	}
	for sent := 0; sent < n; {
		o.one[0] = b.B[sent:]
		m, err := o.sock.write(o.one[:], false, true)
		o.one[0] = nil
		o.count.copied.Add(int64(m))
		if err != nil {
			return 0, err
		}
		sent += m
	}
	return n, nil
}

// readRange fills p with the bytes of f from the byte at off on.
func readRange(f *FileRange, off int64, p []byte) error {
	n, err := f.R.ReadAt(p, f.Off+off)
	switch {
	case n == len(p):
		return nil
	case err == nil || err == io.EOF:
		return errShortRange
	}
	return err
}

// finish ends the parcel at the front; all of it has been sent.
func (o *outbox) finish(p *parcel) {
	o.owner.parcelSent(p)
	p.release()
	o.next++
	o.piece, o.off, o.file, o.fileOff = 0, 0, 0, 0
}

// fail ends the outbox after a failed send. Holder only, who keeps the turn.
func (o *outbox) fail(err error) {
	parted := o.sock.tls != nil && o.sock.tls.parted // more may have left than was counted
	o.mu.Lock()
	for i, p := range o.sending[o.next:] {
		if x := p.request; x != nil && x.id == p.id && !parted && (i > 0 || o.piece == 0 && o.off == 0) {
			x.left = false // no byte of it has
		}
	}
	o.mu.Unlock()
	if o.close(err) {
		o.owner.sendFailed(err)
	}
	o.abandon()
}

// close makes later pushes fail with err and drops the queue. What is being
// sent is the holder's, who will find the socket closed. It returns false if
// the outbox was closed before.
func (o *outbox) close(err error) bool {
	o.mu.Lock()
	if o.err != nil {
		o.mu.Unlock()
		return false
	}
	o.err = err
	queue := o.queue
	o.queue = nil
	mine := !o.turn
	o.turn = true
	o.mu.Unlock()
	for i := range queue {
		queue[i].release()
	}
	if mine {
		o.abandon()
	}
	return true
}

// abandon releases what was being sent. Holder only.
func (o *outbox) abandon() {
	for i := range o.sending[o.next:] {
		o.sending[o.next+i].release()
	}
	o.sending, o.next = nil, 0
}
