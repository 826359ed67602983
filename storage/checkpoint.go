package storage

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"path"
	"strings"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/wire"
)

// ErrSync says that an fsync failed. What it was to make durable may be on the
// disk or not, no later fsync can tell, and the data directory must fail.
var ErrSync = errors.New("fsync failed")

// ErrNewer says that a file was written by a newer version of this program.
var ErrNewer = errors.New("written by a newer version")

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A smallFile is one kind of file that is replaced whole:
//
//	| magic 4 | version u16 | 0 u16 | length u32 | CRC u32 | body |
//	                                               \_ over all other bytes
//
// One that is not exactly so is not believed in any part.
type smallFile struct {
	magic   string // 4 bytes
	version uint16
	max     int64 // bytes, header included
}

const (
	smallHeader = 16
	tempSuffix  = ".tmp"
)

func (k smallFile) encode(body []byte) []byte {
	b := make([]byte, 0, smallHeader+len(body))
	b = append(b, k.magic...)
	b = wire.Append16(b, k.version)
	b = wire.Append16(b, uint16(0))
	b = wire.Append32(b, uint32(len(body)))
	sum := crc32.Update(crc32.Checksum(b, castagnoli), castagnoli, body)
	return append(wire.Append32(b, sum), body...)
}

// decode returns the body, which aliases b.
func (k smallFile) decode(b []byte) ([]byte, error) {
	if len(b) < smallHeader || string(b[:4]) != k.magic {
		return nil, fmt.Errorf("%w: no %q header in %d bytes", wire.ErrCorrupt, k.magic, len(b))
	}
	head, body := b[:12], b[smallHeader:]
	if n := binary.LittleEndian.Uint32(b[8:]); int64(n) != int64(len(body)) {
		return nil, fmt.Errorf("%w: %q says %d bytes follow its header, %d do", wire.ErrCorrupt, k.magic, n, len(body))
	}
	sum := crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, body)
	if want := binary.LittleEndian.Uint32(b[12:]); sum != want {
		return nil, fmt.Errorf("%w: %q has CRC %08x, its bytes %08x", wire.ErrCorrupt, k.magic, want, sum)
	}
	if v := binary.LittleEndian.Uint16(b[4:]); v != k.version {
		return nil, fmt.Errorf("%q has version %d, known is %d: %w", k.magic, v, k.version, ErrNewer)
	}
	return body, nil
}

// write is ReplaceFile with a header before the body.
func (k smallFile) write(fs FS, name string, body []byte) error {
	if n := int64(smallHeader + len(body)); n > k.max {
		return fmt.Errorf("%s would have %d bytes, the limit is %d", name, n, k.max)
	}
	return ReplaceFile(fs, name, k.encode(body))
}

// overwrite writes over the file in place, which takes no new space. A crash may
// leave what read calls damaged.
func (k smallFile) overwrite(fs FS, name string, body []byte) error {
	return writeSynced(fs, name, ReadWrite, k.encode(body))
}

// ReplaceFile makes b the whole content of the file name, which may be absent.
// When it returns nil that is durable; else the old content stands, or either
// one if the error wraps ErrSync. What a crash leaves under name and ".tmp" the
// next start of the data directory removes.
//
// The temporary is synced before the rename, since a name may reach the disk
// before the bytes it names; the directory after it, since the name may not
// reach it at all.
func ReplaceFile(fs FS, name string, b []byte) error {
	temp := name + tempSuffix
	if err := writeSynced(fs, temp, Create, b); err != nil {
		fs.Remove(temp) // the next write and the next start do not need this to work
		return err
	}
	if err := fs.Rename(temp, name); err != nil {
		fs.Remove(temp)
		return err
	}
	return syncDir(fs, path.Dir(name))
}

func writeSynced(fs FS, name string, m Mode, b []byte) (err error) {
	f, err := fs.Open(name, m)
	if err != nil {
		return err
	}
	defer func() {
		if e := f.Close(); err == nil {
			err = e
		}
	}()
	if _, err := f.WriteAt(b, 0); err != nil {
		return err
	}
	if err := f.Truncate(int64(len(b))); err != nil { // a longer one may have lain there
		return err
	}
	return syncFile(f)
}

func syncFile(f File) error {
	err := f.Sync()
	if err != nil && mem.Mutant("fsync retried") {
		err = f.Sync()
	}
	if err != nil {
		return fmt.Errorf("%w: %w", ErrSync, err)
	}
	return nil
}

func syncDir(fs FS, name string) error {
	if err := fs.SyncDir(name); err != nil {
		return fmt.Errorf("%w: %w", ErrSync, err)
	}
	return nil
}

// read returns the body of the file name. The error wraps fs.ErrNotExist,
// wire.ErrCorrupt or ErrNewer, or is the disk's.
func (k smallFile) read(fs FS, name string) ([]byte, error) {
	f, err := fs.Open(name, Read)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	n, err := f.Size()
	if err != nil {
		return nil, err
	}
	if n > k.max {
		return nil, fmt.Errorf("%s: %w: %d bytes, the limit is %d", name, wire.ErrCorrupt, n, k.max)
	}
	b := make([]byte, n)
	if _, err := f.ReadAt(b, 0); err != nil {
		return nil, fmt.Errorf("read %s: %w", name, err)
	}
	body, err := k.decode(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return body, nil
}

// removeTemps removes what an interrupted write left among the entries of dir.
// It need not be durable: a temporary that comes back is removed again.
func removeTemps(fs FS, dir string, es []Entry) error {
	for _, e := range es {
		if e.Dir || !strings.HasSuffix(e.Name, tempSuffix) {
			continue
		}
		if err := fs.Remove(path.Join(dir, e.Name)); err != nil && !notExist(err) {
			return err
		}
	}
	return nil
}
