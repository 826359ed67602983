package coord

import (
	"fmt"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// An entry is the value of one batch of the metadata log: what the commands of
// one turn changed. The changes become durable together, and each applies as a
// whole.
//
//	| version u8 | changes: count, { request UUID | sum u32 | records: count, record … } … |
type entry []change

// A change is what one command did.
type change struct {
	request wire.UUID // zero: not remembered
	sum     uint32    // checksum of the command
	records []record
}

const entryVersion = 1

// joinEntry returns an entry of n changes, which are encoded in changes.
func joinEntry(n int, changes []byte) []byte {
	return append(wire.AppendCount([]byte{entryVersion}, n), changes...)
}

func appendChange(dst []byte, c change) []byte {
	dst = wire.Append32(append(dst, c.request[:]...), c.sum)
	dst = wire.AppendCount(dst, len(c.records))
	for _, r := range c.records {
		dst = appendRecord(dst, r)
	}
	return dst
}

func readEntry(b []byte) (entry, error) {
	r := wire.NewReader(b)
	if v := r.U8(); r.Err() == nil && v != entryVersion {
		return nil, fmt.Errorf("metadata entry of version %d: %w", v, storage.ErrNewer)
	}
	e := make(entry, r.Count(21))
	for i := range e {
		e[i] = change{request: r.UUID(), sum: r.U32()}
		for range r.Count(2) {
			rec, err := readRecord(r)
			if err != nil {
				return nil, err
			}
			e[i].records = append(e[i].records, rec)
		}
	}
	return e, r.Finish()
}

// replay applies the entry at offset at.
func (d *draft) replay(at wire.Offset, e entry) error {
	d.version = at
	for _, c := range e {
		if err := d.replayChange(c); err != nil {
			return fmt.Errorf("metadata entry at offset %d: %w", at, err)
		}
	}
	return nil
}

// replayChange applies one change of the entry at d.version.
func (d *draft) replayChange(c change) error {
	done := request{id: c.request, sum: c.sum, offset: d.version}
	for _, r := range c.records {
		if err := r.replay(d); err != nil {
			return err
		}
		switch r := r.(type) {
		case topicCreated:
			done.topic = r.topic.ID
		case topicDeleted:
			done.topic = r.id
		}
	}
	d.remember(done)
	return nil
}
