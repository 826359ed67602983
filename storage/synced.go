package storage

import (
	"encoding/binary"
	"errors"
	"math"

	"github.com/teralog/teralog/wire"
)

// In an always-synced log a good batch behind bad bytes proves that they were
// durable once, and so are damaged, not torn: nothing is appended before what
// came earlier is flushed. Of several batches that wait for one flush a power
// cut may keep a later one without an earlier one; so each but the first of
// them says how many offsets before it were not flushed yet.

// unsyncedKey is the key of the header that says so.
const unsyncedKey = "unsynced"

// Unsynced returns the header that the first record of a batch in an
// always-synced log bears if n offsets before the batch, at least 1, were not
// flushed when it was appended.
func Unsynced(n int64) wire.Header {
	return wire.Header{Key: []byte(unsyncedKey), Value: binary.AppendUvarint(nil, uint64(n))}
}

// unsynced returns how many offsets before b were not flushed when it was
// appended. One too large to be looked at whole stands first in its flush.
func unsynced(b wire.Batch) wire.Offset {
	if len(b) < b.Len() || b.Count() == 0 {
		return 0
	}
	var d wire.Decoder
	defer d.Release()
	if d.Open(b) != nil {
		return 0
	}
	r, err := d.Next()
	if err != nil {
		return 0
	}
	for _, h := range r.Headers {
		if string(h.Key) == unsyncedKey {
			if n, size := binary.Uvarint(h.Value); size == len(h.Value) && n <= uint64(b.BaseOffset()) {
				return wire.Offset(n)
			}
		}
	}
	return 0
}

// proves reports whether a good batch at or behind w shows that what lay at
// offset from was durable. It moves w.
func (w *walker) proves(from wire.Offset) bool {
	for {
		switch b, err := w.batch(); {
		case err == nil && b.BaseOffset()-unsynced(b) > from:
			return true
		case err == nil:
			w.skip(b)
		case !errors.Is(err, wire.ErrCorrupt) || !w.resync(math.MaxInt64):
			return false
		}
	}
}

// proven reports whether a good batch in the files found from number i on shows
// that what lay at offset from was durable.
func (r *recovery) proven(i int, from wire.Offset) bool {
	for _, f := range r.found[i:] {
		file, err := r.home.fs.Open(segmentName(r.home.path, f.base, logSuffix), Read)
		if err != nil {
			return false
		}
		w := newWalker(file, r.home.id, 0, f.base, f.size, scanBytes)
		yes := w.proves(from)
		w.close()
		file.Close()
		if yes {
			return true
		}
	}
	return false
}
