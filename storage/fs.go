package storage

import (
	"errors"
	"io"
)

// ErrLocked says that another process, or another holder in this one, has the
// lock asked for.
var ErrLocked = errors.New("locked by another process")

// A Mode says how FS.Open opens a file.
type Mode uint8

// The modes of FS.Open. Only Read refuses writes.
const (
	Read      Mode = iota // an existing file, for reading only
	ReadWrite             // an existing file
	Create                // made empty if it is absent, kept if it is there
	CreateNew             // fails with fs.ErrExist if it is there
)

// An Entry is one name in a directory.
type Entry struct {
	Name string // last element only
	Dir  bool
	Size int64 // bytes; 0 for a directory
}

// FS is the disk as storage sees it: OS over the machine's, MemFS over memory.
//
// Names are slash-separated paths. What a call did is durable only after the
// file's Sync (bytes and length) and the directory's SyncDir (names); a power
// cut between may keep any part of it. Errors wrap the fs package's ErrNotExist
// and ErrExist and the system's error numbers. All methods are safe for
// concurrent use.
type FS interface {
	Open(name string, mode Mode) (File, error)
	// Mkdir makes the directory and its missing parents; one that is there is fine.
	Mkdir(name string) error
	// Rename replaces a file that stands at new; a directory there is refused.
	// Both directories must be synced for the move to be durable.
	Rename(old, new string) error
	// Remove unlinks a file or an empty directory.
	Remove(name string) error
	// RemoveAll unlinks a tree; one that is absent is fine.
	RemoveAll(name string) error
	// ReadDir lists a directory, sorted by name.
	ReadDir(name string) ([]Entry, error)
	Stat(name string) (Entry, error)
	// SyncDir makes the names in one directory durable, not what they point to.
	SyncDir(name string) error
	// Lock makes the file if need be and locks it for this process until the
	// closer is closed or the process ends. It fails at once with ErrLocked.
	Lock(name string) (io.Closer, error)
	// Space returns the bytes of the file system that holds name, and those an
	// unprivileged process may still take. What is kept back from such a process
	// is in neither, so that a share in use is the one df shows.
	Space(name string) (total, free int64, err error)
	// Volume opens the file system that holds name. The error is
	// errors.ErrUnsupported where its Sync could not be believed.
	Volume(name string) (Volume, error)
}

// A Volume is a file system, all of which can be made durable at once.
type Volume interface {
	// Sync makes durable what was written to any file and directory before it,
	// by whomever. An error stands for any of them since the volume was opened or
	// the last error: File.Sync and FS.SyncDir tell for which.
	Sync() error
	Close() error
}

// A File is an open file. Reads and writes give their own position; any of
// them may run at once. A File over the real disk also has SysFd() uintptr.
type File interface {
	io.ReaderAt
	// WriteAt writes all of p or returns how much it wrote before the error.
	io.WriterAt
	// WriteParts is WriteAt of parts one behind the other, by one call.
	WriteParts(parts [][]byte, off int64) (n int, err error)
	Size() (int64, error)
	Truncate(n int64) error
	// Sync makes bytes and length durable (fdatasync). After an error nothing
	// written since the last success may be believed, whatever a later Sync says.
	Sync() error
	// Allocate takes disk space for the range and keeps the length. The error
	// is errors.ErrUnsupported where the file system has no such call.
	Allocate(off, n int64) error
	// DropCache makes later reads of the range come from the disk, as far as
	// its pages are clean: sync first. n = 0 means to the end.
	DropCache(off, n int64) error
	// Prefetch asks that the range be read into memory soon.
	Prefetch(off, n int64) error
	// Scattered says that a read through this File brings in what it asks for
	// and nothing behind it.
	Scattered() error
	// WriteBack has the disk begin to write the range's dirty pages; with wait it
	// returns once they are written. It makes nothing durable. With wait an error
	// is as final as Sync's, which may not say it again.
	WriteBack(off, n int64, wait bool) error
	// Map maps the first n bytes for reading. Writes to the file show in it.
	// Beyond the file's length it may not be read.
	Map(n int64) (Mapping, error)
	Name() string
	Close() error
}

// A Mapping is a part of a file mapped into memory, to be read only. Its bytes
// are gone after Close. Over the real disk, reading a page that the disk cannot
// deliver faults: read under debug.SetPanicOnFault.
type Mapping interface {
	Bytes() []byte
	Close() error
}
