package storage

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// spareFiles is how many descriptors are kept for the files of the log. Enough
// that whoever takes those given up for a moment, a client that connects, say,
// does not take all of them.
const spareFiles = 16

// Descriptors returns how many files so many data directories, with so many
// partitions in all, keep open at most, those held back included. What readers
// hold for as long as an answer takes comes on top.
func Descriptors(dirs, partitions int) int {
	return partitions + dirs*(2+3*defaultOpenFiles) + spareFiles
}

// spares are descriptors that do nothing but keep their numbers taken. When
// the process has no other left they make room for one file more, so that a
// log can go on to its next segment and a directory be synced: to fail at
// that would be taken for a failure of the disk.
var spares struct {
	mu    sync.Mutex
	files []*os.File
}

// openFile is os.OpenFile, by a spare descriptor if there is no other.
func openFile(name string, flag int, mode os.FileMode) (*os.File, error) {
	f, err := os.OpenFile(name, flag, mode)
	if errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		return openBySpare(name, flag, mode)
	}
	return f, err
}

func openBySpare(name string, flag int, mode os.FileMode) (*os.File, error) {
	spares.mu.Lock()
	defer spares.mu.Unlock()
	for _, s := range spares.files {
		s.Close()
	}
	spares.files = spares.files[:0]
	f, err := os.OpenFile(name, flag, mode)
	fillSpares()
	return f, err
}

// keepSpares takes the descriptors, or those that went for files and are to
// be had again.
func keepSpares() {
	spares.mu.Lock()
	defer spares.mu.Unlock()
	fillSpares()
}

func fillSpares() {
	for len(spares.files) < spareFiles {
		f, err := os.Open(os.DevNull)
		if err != nil {
			return
		}
		spares.files = append(spares.files, f)
	}
}
