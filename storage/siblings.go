package storage

import (
	"fmt"
	"slices"

	"github.com/teralog/teralog/wire"
)

// siblingsFile keeps, in a node's first data directory, the ids of all that the
// node has used: whether an empty one is new, or the place of a disk that is not
// mounted, cannot be told from itself.
//
//	| count u16 | id 16 | id 16 | …
var siblingsFile = smallFile{magic: "TLsi", version: 1, max: 64 << 10}

func encodeSiblings(ids []wire.UUID) []byte {
	b := wire.Append16(nil, uint16(len(ids)))
	for _, id := range ids {
		b = append(b, id[:]...)
	}
	return b
}

func decodeSiblings(b []byte) ([]wire.UUID, error) {
	r := wire.NewReader(b)
	n := int(r.U16())
	if len(b) != 2+16*n {
		return nil, fmt.Errorf("%w: %d bytes for %d ids", wire.ErrCorrupt, len(b), n)
	}
	ids := make([]wire.UUID, n)
	for i := range ids {
		ids[i] = r.UUID()
	}
	return ids, r.Finish()
}

// Siblings returns the ids of the node's data directories as the last
// SetSiblings noted them; none if it never was called.
func (d *Dir) Siblings() ([]wire.UUID, error) {
	ids, err := readSmall(d, siblingsFile, siblingsName, decodeSiblings)
	if notExist(err) {
		return nil, nil
	}
	return ids, err
}

// SetSiblings notes them, durably, if they differ from those noted. At most
// 4,000; they are sorted in place.
func (d *Dir) SetSiblings(ids []wire.UUID) error {
	if err := d.usable(); err != nil {
		return err
	}
	slices.SortFunc(ids, func(a, b wire.UUID) int { return slices.Compare(a[:], b[:]) })
	noted, err := d.Siblings()
	if err == nil && slices.Equal(noted, ids) {
		return nil
	}
	return d.settle(d.writeSmall(siblingsFile, siblingsName, encodeSiblings(ids)))
}
