package coord

import (
	"bytes"
	"fmt"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/wire"
)

// A machine is a Coord as Raft sees it: what is committed changes its image.
type machine struct{ *Coord }

// Apply is of raft.Machine. The draft that the entry was made with, if it was
// made here, is what replaying it gives.
func (m machine) Apply(e raft.Entry) {
	c, at := m.Coord, offsetOf(e.Index)
	if c.loop.err != nil {
		return
	}
	if own := c.loop.own; own != nil && c.loop.next == nil && own.draft.version == at && bytes.Equal(own.value, e.Data) {
		c.loop.next = own.draft
		return
	}
	if c.loop.next == nil {
		c.loop.next = c.Image().edit()
	}
	if e.Kind == raft.Command {
		if err := c.loop.next.replayValue(at, e.Data); err != nil {
			c.loop.err = err
			return
		}
	}
	c.loop.next.version = at
}

func (d *draft) replayValue(at wire.Offset, value []byte) error {
	e, err := readEntry(value)
	if err == nil {
		err = d.replay(at, e)
	}
	if err != nil {
		return fmt.Errorf("metadata entry at offset %d: %w", at, err)
	}
	return nil
}

// publish shows what was applied.
func (c *Coord) publish() {
	if c.loop.next != nil {
		c.image.Store(&c.loop.next.Image)
		c.loop.next = nil
	}
}

// Snapshot is of raft.Machine. The state is
//
//	| version i64 | as appendState lays it out |
func (m machine) Snapshot() ([]byte, error) {
	m.publish()
	i := m.Image()
	return appendState(wire.Append64(nil, i.version), i), nil
}

// Restore is of raft.Machine.
func (m machine) Restore(state []byte) error {
	i, err := readImage(state)
	if err != nil {
		return err
	}
	m.loop.next = nil
	m.image.Store(i)
	return nil
}

func readImage(state []byte) (*Image, error) {
	r := wire.NewReader(state)
	version := wire.Offset(r.I64())
	if version < 0 {
		r.Failf("metadata of version %d", version)
	}
	i, err := readState(r, version)
	if err == nil {
		err = r.Finish()
	}
	return i, err
}
