package sim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"slices"
	"strings"
)

// A journal knows which bytes of a broker's files a power cut would leave. It is
// a file itself, written before the disk is and read again by the next process,
// so that kill -9 at any moment can be made a power cut afterwards.
//
// It is content to know less than all: names that were moved or removed, and
// lengths that were cut, count as durable at once. That is what a disk may do,
// too, and the crash tests of storage do the rest.
type journal struct {
	file  *os.File
	fates map[string]*fate // of files that may not be as durable as they look
}

// A fate is what a power cut would leave of one file.
type fate struct {
	synced  int64   // its length
	unnamed bool    // not even its name: its directory was not synced since it was made
	failed  bool    // an fsync failed, so that nothing written since the last good one ever is durable
	covered []patch // what was overwritten below synced since the last good fsync, oldest first
}

// A patch is bytes as they were.
type patch struct {
	Off int64
	Old []byte
}

// A line of a journal is a step that changes fates.
type line struct {
	Do   step
	Name string
	N    int64   `json:",omitempty"` // of synced and cut: the length
	Was  []patch `json:",omitempty"` // of covered
}

type step string

const (
	synced  step = "synced"  // an fsync; or a file was opened that has no fate yet
	covered step = "covered" // durable bytes are about to be overwritten
	made    step = "made"    // a file was made
	named   step = "named"   // its directory was synced
	cut     step = "cut"     // a file is about to become shorter
	gone    step = "gone"    // a file or a folder is about to be moved or removed
	failed  step = "failed"  // an fsync failed
)

// openJournal reads the journal that an earlier process left, if one did.
func openJournal(name string) (*journal, error) {
	l := &journal{fates: map[string]*fate{}}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	in := bufio.NewReader(f)
	for {
		text, err := in.ReadBytes('\n')
		if err == io.EOF { // what follows the last line is of a step that was not taken
			break
		}
		var next line
		if err == nil {
			err = json.Unmarshal(text, &next)
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("journal %s: %w", name, err), f.Close())
		}
		l.apply(next)
	}
	return l, f.Close()
}

// begin starts a new file with the fates as they are; note adds to it.
func (l *journal) begin(name string) (err error) {
	if l.file, err = os.Create(name + ".new"); err != nil {
		return err
	}
	out := bufio.NewWriter(l.file)
	write := func(next line) { out.Write(next.text()) }
	for name, f := range l.fates {
		if f.unnamed {
			write(line{Do: made, Name: name})
		}
		write(line{Do: synced, Name: name, N: f.synced})
		if len(f.covered) > 0 {
			write(line{Do: covered, Name: name, Was: f.covered})
		}
		if f.failed {
			write(line{Do: failed, Name: name})
		}
	}
	if err := out.Flush(); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func (n line) text() []byte {
	b, err := json.Marshal(n)
	if err != nil {
		panic(fmt.Sprintf("BUG: %+v: %v", n, err))
	}
	return append(b, '\n')
}

// note takes a step. Without its journal a run proves nothing, so it ends.
func (l *journal) note(n line) {
	if _, err := l.file.Write(n.text()); err != nil {
		panic(fmt.Sprintf("the journal of the disk cannot be written: %v", err))
	}
	l.apply(n)
}

func (l *journal) apply(n line) {
	f := l.fates[n.Name]
	if f == nil && (n.Do == synced || n.Do == made) {
		f = &fate{}
		l.fates[n.Name] = f
	}
	switch {
	case n.Do == named:
		for name, f := range l.fates {
			if path.Dir(name) == n.Name {
				f.unnamed = false
			}
		}
	case n.Do == gone:
		delete(l.fates, n.Name)
		maps.DeleteFunc(l.fates, func(name string, _ *fate) bool { return strings.HasPrefix(name, n.Name+"/") })
	case f == nil: // all of it is durable, for all that is known
	case n.Do == made:
		*f = fate{unnamed: true}
	case n.Do == cut:
		f.synced = min(f.synced, n.N)
	case f.failed:
	case n.Do == synced:
		// Of two at once the one that began first, with less, may end last.
		f.synced, f.covered = max(f.synced, n.N), nil
	case n.Do == covered:
		f.covered = append(f.covered, n.Was...)
	case n.Do == failed:
		f.failed = true
	}
}

// lose makes files what a power cut may have left of them; without power only
// those whose fsync failed, as a page cache forgets its clean pages. What is
// left is durable.
func (l *journal) lose(power bool, rnd *rand.Rand) error {
	namesToo := rnd.IntN(2) == 0
	for _, name := range slices.Sorted(maps.Keys(l.fates)) {
		f := l.fates[name]
		if !power && !f.failed {
			continue
		}
		err := f.befall(name, power && namesToo, rnd)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(l.fates, name)
	}
	return nil
}

// befall does so to one file. Of bytes that were overwritten any may be back. Of
// those at the end that are not durable the disk may have none, some, or some
// and then zeros.
func (f *fate) befall(name string, nameToo bool, rnd *rand.Rand) (err error) {
	if f.unnamed && nameToo {
		return os.Remove(name)
	}
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	st, err := file.Stat()
	if err != nil {
		return err
	}
	for _, p := range slices.Backward(f.covered) {
		old := p.Old[:max(0, min(int64(len(p.Old)), f.synced-p.Off))]
		if rnd.IntN(2) == 0 {
			continue
		}
		if _, err := file.WriteAt(old, p.Off); err != nil {
			return err
		}
	}
	size := st.Size()
	if size <= f.synced {
		return nil
	}
	keep := f.synced
	how := rnd.IntN(3)
	if how > 0 {
		keep += rnd.Int64N(size - keep + 1)
	}
	if err := file.Truncate(keep); err != nil || how < 2 {
		return err
	}
	return file.Truncate(size)
}
