package coord

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"math"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A mark is a small file that remembers an index over starts.
//
//	| magic "TLD" 0x01 | index u64 | CRC u32 of what precedes |
//
// damaged: entries up to that index were durable here once and cannot be read,
// until a leader has replaced them. The log may be cut where they stood, and is
// then no witness any more.
//
// restart: the log is being made to begin behind the snapshot at that index,
// and nothing in it counts, if there is that snapshot.
type mark struct {
	name  string
	index raft.Index // 0: there is no file
}

const (
	damagedName = "damaged"
	restartName = "restart"
	markMagic   = "TLD\x01"
	markSize    = 4 + 8 + 4
)

// unknownIndex stands for more than there is.
const unknownIndex raft.Index = math.MaxInt64

// open reads the mark, and writes it again: its name may be in memory only. One
// that cannot be read stands for more than there is.
func (d *mark) open(disk storage.FS, dir, name string) error {
	d.name = dir + "/" + name
	f, err := disk.Open(d.name, storage.Read)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	b := make([]byte, markSize+1)
	n, err := f.ReadAt(b, 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("%s: %w", d.name, err)
	}
	index, err := readMark(b[:n])
	if err != nil {
		index = unknownIndex
	}
	return d.set(disk, index)
}

// set makes the mark stand for i, durably.
func (d *mark) set(disk storage.FS, i raft.Index) error {
	if i == d.index {
		return nil
	}
	if err := storage.ReplaceFile(disk, d.name, appendMark(nil, i)); err != nil {
		return err
	}
	d.index = i
	return nil
}

// remove takes the mark away, durably.
func (d *mark) remove(disk storage.FS, dir string) error {
	if d.index == 0 {
		return nil
	}
	if err := disk.Remove(d.name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.SyncDir(dir); err != nil {
		return fmt.Errorf("remove %s: %w: %w", d.name, storage.ErrSync, err)
	}
	d.index = 0
	return nil
}

func appendMark(dst []byte, i raft.Index) []byte {
	start := len(dst)
	dst = wire.Append64(append(dst, markMagic...), uint64(i))
	return wire.Append32(dst, crc32.Checksum(dst[start:], castagnoli))
}

func readMark(b []byte) (raft.Index, error) {
	r := wire.NewReader(b)
	magic, i, crc := r.Raw(4), raft.Index(r.U64()), r.U32()
	if err := r.Finish(); err != nil {
		return 0, err
	}
	if string(magic) != markMagic || crc != crc32.Checksum(b[:markSize-4], castagnoli) || i == 0 || i > unknownIndex {
		return 0, fmt.Errorf("%w: not a mark", wire.ErrCorrupt)
	}
	return i, nil
}
