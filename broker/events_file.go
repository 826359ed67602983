package broker

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/teralog/teralog/storage"
)

// An eventFile takes events over a restart: the lines of /events one behind the
// other. It is written soon after each event and never synced, so the death of
// the process costs at most the last moment, that of the machine what the
// kernel had not written by itself. What cannot be written, for want of room or
// by a fault of the disk, is tried again with the next event and else lost: the
// file matters to nobody who serves.
//
// A stop in order ends it with a line that says which number is next. Without
// one, nobody knows which numbers were given away, and unknownEvents of them are
// left out, as if that many events had been lost. One goroutine.
type eventFile struct {
	fs    storage.FS
	name  string
	f     storage.File // nil: none yet
	size  int64        // of what is good in f
	saved uint64       // number of the newest event in it, or of the last that it will never hold
}

const (
	eventsName    = "events.jsonl"
	maxEventFile  = 2 << 20 // bytes, inclusive; then what is in memory stays, an eighth of that
	unknownEvents = 256
)

// A savedLine is what is read back of a line; one of both.
type savedLine struct {
	Seq  uint64
	Next uint64 // nothing came before it that is not in the file
}

// load takes what the last process left into e, which is new. Whatever is wrong
// with the file, what stands before that is taken.
func (f *eventFile) load(e *events) error {
	text, err := f.read()
	if err != nil {
		return err
	}
	newest, next := uint64(0), uint64(1)
	for len(text) > 0 {
		line, rest, whole := bytes.Cut(text, []byte{'\n'})
		var v savedLine
		if !whole || len(line) > maxLines || json.Unmarshal(line, &v) != nil || v.Next == 0 && v.Seq <= newest {
			break
		}
		if v.Next > 0 {
			next = v.Next
			break
		}
		e.put(event{seq: v.Seq, line: string(line)})
		f.size += int64(len(line)) + 1
		newest, next = v.Seq, v.Seq+1+unknownEvents
		text = rest
	}
	e.last = next - 1
	f.saved, e.logged.seq = e.last, e.last
	return f.f.Truncate(f.size) // else the last line would say what is true no longer
}

// read opens the file, or makes it, and returns what it holds.
func (f *eventFile) read() (text []byte, err error) {
	if f.f, err = f.fs.Open(f.name, storage.Create); err != nil {
		return nil, err
	}
	n, err := f.f.Size()
	if err != nil {
		return nil, err
	}
	text = make([]byte, min(n, maxEventFile))
	if n, err := f.f.ReadAt(text, 0); err != nil && err != io.EOF {
		return text[:n], err
	}
	return text, nil
}

// save writes the events that are not in the file yet and returns what is
// closed with the next one.
func (f *eventFile) save(e *events) (wake <-chan struct{}, err error) {
	for {
		found, _, wake := e.after(f.saved, 64)
		if wake != nil {
			return wake, nil
		}
		var text []byte
		for _, v := range found {
			text = append(append(text, v.line...), '\n')
		}
		if f.f == nil || f.size+int64(len(text)) > maxEventFile {
			err = f.renew(e)
		} else if _, err = f.f.WriteAt(text, f.size); err == nil {
			f.size += int64(len(text))
			f.saved = found[len(found)-1].seq
		}
		if err != nil {
			return nil, err
		}
	}
}

// renew replaces the file by one that holds the newest events. It leaves the
// old one as it is if that fails.
func (f *eventFile) renew(e *events) error {
	text, newest := e.newest(maxEventFile)
	if err := storage.ReplaceFile(f.fs, f.name, text); err != nil {
		return err
	}
	renewed, err := f.fs.Open(f.name, storage.ReadWrite)
	if err != nil {
		return err
	}
	if f.f != nil {
		f.f.Close()
	}
	f.f, f.size, f.saved = renewed, int64(len(text)), newest
	return nil
}

// close saves what is left, says that nothing is missing, and closes the file.
// There must be no events after it.
func (f *eventFile) close(e *events) error {
	_, err := f.save(e)
	if f.f == nil {
		return err
	}
	if err == nil {
		_, err = f.f.WriteAt(fmt.Appendf(nil, "{\"next\":%d}\n", f.saved+1), f.size)
	}
	return errors.Join(err, f.f.Close())
}

// newest returns the lines of the newest events, as many as fit into max bytes,
// and the number of the last.
func (e *events) newest(max int) (text []byte, last uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	from := e.added
	for n := 0; from > e.first; from-- {
		if n += e.slot(from-1).len + 1; n > max {
			break
		}
	}
	for ; from < e.added; from++ {
		text = append(e.appendLine(text, from), '\n')
	}
	return text, e.last
}

// saveAgain is how long after a failure the events are saved again, if no other
// comes before. patience is how long a stop waits for what takes events away.
const (
	saveAgain = time.Second
	patience  = time.Second
)

// keepEvents reads the events of the last process and saves those of this one
// until the returned function is called. What comes after that is logged only,
// and its number given again.
func (b *Broker) keepEvents() (end func()) {
	f := &eventFile{fs: b.env.FS, name: b.dirs[0].Path() + "/" + eventsName}
	if err := f.load(&b.events); err != nil {
		b.log.Warn("the events of the last start cannot be read in full", "file", f.name, "err", err)
	}
	quit, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		b.saveEvents(f, quit)
	}()
	return func() {
		close(quit)
		await(ended)
	}
}

// saveEvents saves events until quit is closed.
func (b *Broker) saveEvents(f *eventFile, quit <-chan struct{}) {
	again := time.NewTimer(saveAgain)
	defer again.Stop()
	failing := false
	for {
		wake, err := f.save(&b.events)
		switch {
		case err != nil && !failing:
			b.log.Warn("events will not outlive a restart", "file", f.name, "err", err)
		case err == nil && failing:
			b.log.Info("events outlive a restart again", "file", f.name)
		}
		if failing = err != nil; failing {
			again.Reset(saveAgain)
		}
		select {
		case <-wake:
		case <-again.C:
		case <-quit:
			if err := f.close(&b.events); err != nil {
				b.log.Warn("the last events are not saved", "file", f.name, "err", err)
			}
			return
		}
	}
}

// await waits for done to be closed, no longer than patience.
func await(done <-chan struct{}) {
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
}
