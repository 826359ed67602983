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

// A damageMark remembers over starts that entries up to an index were durable
// here once and cannot be read, until a leader has replaced them: the log may
// be cut where they stood, and is then no witness any more.
//
//	damaged   | magic "TLD" 0x01 | index u64 | CRC u32 of what precedes |
type damageMark struct{ index raft.Index } // 0: none

// unknownIndex stands for more than there is.
const unknownIndex raft.Index = math.MaxInt64

const (
	markName  = "damaged"
	markMagic = "TLD\x01"
	markSize  = 4 + 8 + 4
)

// open reads the mark, and writes it again: its name may be in memory only. One
// that cannot be read stands for more than there is, so only a leader of a newer
// term ends it.
func (d *damageMark) open(disk storage.FS, dir string) error {
	f, err := disk.Open(dir+"/"+markName, storage.Read)
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
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	index, err := readMark(b[:n])
	if err != nil {
		index = unknownIndex
	}
	return d.raise(disk, dir, index)
}

// raise makes the mark stand for all up to i, durably.
func (d *damageMark) raise(disk storage.FS, dir string, i raft.Index) error {
	if i <= d.index {
		return nil
	}
	if err := storage.ReplaceFile(disk, dir+"/"+markName, appendMark(nil, i)); err != nil {
		return err
	}
	d.index = i
	return nil
}

// remove takes the mark away, durably.
func (d *damageMark) remove(disk storage.FS, dir string) error {
	if d.index == 0 {
		return nil
	}
	if err := disk.Remove(dir + "/" + markName); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := disk.SyncDir(dir); err != nil {
		return fmt.Errorf("remove %s/%s: %w: %w", dir, markName, storage.ErrSync, err)
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
		return 0, fmt.Errorf("%w: not a mark of damage", wire.ErrCorrupt)
	}
	return i, nil
}
