package storage

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/teralog/teralog/wire"
)

// An epochStart says from which offset on a leader epoch wrote. Epochs rise
// strictly, starts never fall: two equal ones belong to a leader that wrote nothing.
type epochStart struct {
	epoch wire.Epoch
	start wire.Offset
}

// epochs is the history of leader epochs. list is shared with views: it is
// appended to, or replaced.
type epochs struct {
	home    *home
	list    []epochStart
	dirty   bool // list says other than the file
	trimmed bool // the file has older epochs than list, no more
}

const epochsName = "leader-epoch-checkpoint"

// 64 KiB is room for some 5,000 changes of leader inside the retained log.
var epochsFile = smallFile{magic: "TLle", version: 1, max: 64 << 10}

func (h *epochs) last() wire.Epoch {
	if len(h.list) == 0 {
		return wire.NoEpoch
	}
	return h.list[len(h.list)-1].epoch
}

// note takes in that a batch of epoch e stands at offset at.
func (h *epochs) note(e wire.Epoch, at wire.Offset) {
	if e > h.last() {
		h.list = append(h.list, epochStart{e, at})
		h.dirty = true
	}
}

// truncate forgets epochs that start at or behind end: also one that starts
// right there and wrote nothing, since whoever asked for the cut has another
// history from there on.
func (h *epochs) truncate(end wire.Offset) {
	n := len(h.list)
	for n > 0 && h.list[n-1].start >= end {
		n--
	}
	if n < len(h.list) {
		h.list = append([]epochStart(nil), h.list[:n]...)
		h.dirty = true
	}
}

// clamp moves epochs that start behind end, which the disk lost, to end. All but
// the newest are dropped: that one was promised and must not be given out again.
func (h *epochs) clamp(end wire.Offset) {
	last := h.last()
	h.truncate(end + 1)
	h.note(last, end)
}

// trim forgets epochs that ended at or before start, but not the newest. The
// start is durable: an older one must not come back to a log without its epochs.
func (h *epochs) trim(start wire.Offset) {
	n := 0
	for n+1 < len(h.list) && h.list[n+1].start <= start {
		n++
	}
	if n > 0 {
		h.list = append([]epochStart(nil), h.list[n:]...)
		h.trimmed = true
	}
}

// save makes the list durable.
func (h *epochs) save() error {
	if err := saveEpochs(h.home, h.list); err != nil {
		return err
	}
	h.dirty, h.trimmed = false, false
	return nil
}

// saveEpochs writes one entry a leader epoch:
//
//	| topicID u64 | partition u32 | for each: epoch i32 | start i64 |
func saveEpochs(h *home, list []epochStart) error {
	b := wire.Append64(nil, h.id.Topic)
	b = wire.Append32(b, h.id.Partition)
	for _, x := range list {
		b = wire.Append32(b, x.epoch)
		b = wire.Append64(b, x.start)
	}
	return epochsFile.write(h.fs, path.Join(h.path, epochsName), b)
}

// load reads the file. One that is absent is empty; ErrCorrupt means that list
// is empty and must be made again from the batches.
func (h *epochs) load() error {
	b, err := epochsFile.read(h.home.fs, path.Join(h.home.path, epochsName))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	h.list, err = decodeEpochs(b, h.home.id)
	return err
}

func decodeEpochs(b []byte, want wire.PartitionID) ([]epochStart, error) {
	r := wire.NewReader(b)
	if id := readPartition(r); r.Err() == nil && id != want {
		r.Failf("epochs of partition %v, not %v", id, want)
	}
	list := make([]epochStart, 0, len(b)/12)
	last := epochStart{wire.NoEpoch, 0}
	for r.Left() > 0 {
		x := epochStart{wire.Epoch(r.I32()), wire.Offset(r.I64())}
		if r.Err() == nil && (x.epoch <= last.epoch || x.start < last.start) {
			r.Failf("epoch %d from offset %d after epoch %d from offset %d", x.epoch, x.start, last.epoch, last.start)
		}
		list, last = append(list, x), x
	}
	if err := r.Finish(); err != nil {
		return nil, fmt.Errorf("%s: %w", epochsName, err)
	}
	return list, nil
}

// SetEpoch records that leader epoch e writes from the log's end on. It is
// durable when SetEpoch returns. An epoch below the newest is FENCED_EPOCH, the
// newest again changes nothing.
func (l *Log) SetEpoch(e wire.Epoch) error {
	last := l.epochs.last()
	if e < last {
		return wire.Errorf(wire.CodeFencedEpoch, "leader epoch %d after %d", e, last)
	}
	if e == last && !l.epochs.dirty {
		return nil
	}
	l.epochs.note(e, l.tail.end)
	l.epochs.trim(l.durableStart)
	if err := l.epochs.save(); err != nil {
		return fmt.Errorf("record leader epoch %d: %w", e, err)
	}
	l.publish()
	return nil
}

// NoteEpoch is SetEpoch for a disk that has no room: the epoch is recorded with the
// next recovery point. If the power goes before that, batches written under it
// tell of it at the next start, and if there are none nobody needs to know.
func (l *Log) NoteEpoch(e wire.Epoch) {
	l.epochs.note(e, l.tail.end)
	l.dirty = true
	l.publish()
}
