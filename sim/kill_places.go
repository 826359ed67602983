package sim

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/teralog/teralog/storage"
)

// A place is a kind of disk operation at which a broker's process is made to
// die: what op does to a file whose path fits.
type place struct {
	name    string
	op      string // create write truncate sync rename remove removeall mkdir syncdir
	path    *regexp.Regexp
	holding string // what a write must contain
	spread  int    // dies at the first to at most this one since the start
	way     way
}

// A way is how a broker gets to a place.
type way uint8

const (
	working  way = iota // by starting and working
	mending             // by starting after one that died amid an append, so that there is a tail to cut
	resuming            // by starting after one that stopped in order
	stopping            // by being told to stop
)

func at(name, op, path, holding string, spread int) place {
	return place{name, op, regexp.MustCompile(path), holding, spread, working}
}

func by(w way, p place) place {
	p.way = w
	return p
}

// places are where a log is between two states. Each must be met in every long
// run.
var places = []place{
	at("append", "write", `/topics/.*\.log$`, "", 300),
	at("flush", "sync", `/topics/.*\.log$`, "", 40),
	at("roll: new segment", "create", `/topics/.*[1-9]\d*\.log$`, "", 4),
	at("roll: index sealed", "write", `/topics/.*\.index$`, "TLOFFIDX", 4),
	at("roll: time index sealed", "write", `/topics/.*\.timeindex$`, "TLTIMIDX", 4),
	at("folder fsync", "syncdir", `/topics/`, "", 12),
	at("recovery points written", "write", `/recovery-points\.tmp$`, "", 2),
	at("recovery points renamed", "rename", `/recovery-points$`, "", 2),
	at("epoch checkpoint renamed", "rename", `/leader-epoch-checkpoint$`, "", 2),
	at("producer snapshot written", "write", `\.producers\.tmp$`, "", 3),
	at("producer snapshot renamed", "rename", `\.producers$`, "", 3),
	at("retention: segment removed", "remove", `/topics/.*\.log$`, "", 3),
	at("retention: index removed", "remove", `/topics/.*\.index$`, "", 3),
	at("topic create: folder", "mkdir", `/topics/`, "", 4),
	at("topic create: first segment", "create", `/topics/.*/0+\.log$`, "", 3),
	at("topic create: manifest", "rename", `/partition-manifest$`, "", 3),
	at("topic delete: moved", "rename", `/deleted/`, "", 3),
	at("topic delete: unlinked", "removeall", `/deleted/`, "", 1),
	at("metadata append", "write", `/metadata/.*\.log$`, "", 8),
	at("metadata fsync", "sync", `/metadata/.*\.log$`, "", 8),
	at("metadata vote written", "write", `/metadata/vote$`, "", 1),
	at("metadata vote synced", "sync", `/metadata/vote$`, "", 1),
	at("metadata snapshot written", "write", `/metadata/.*\.snapshot\.tmp$`, "", 1),
	at("metadata snapshot renamed", "rename", `/metadata/.*\.snapshot$`, "", 1),
	at("start mark renamed", "rename", `/running$`, "", 1),
	by(mending, at("recovery: tail kept", "write", `/quarantine/`, "", 1)),
	by(mending, at("recovery: tail cut", "truncate", `/topics/.*\.log$`, "", 1)),
	by(mending, at("recovery: fsync", "sync", `/topics/.*\.log$`, "", 6)),
	by(mending, at("recovery: index replaced", "rename", `/topics/.*index$`, "", 6)),
	by(resuming, at("clean mark removed", "remove", `/clean$`, "", 1)),
	by(stopping, at("clean mark renamed", "rename", `/clean$`, "", 1)),
}

// The moments of an operation at which a process dies. What is no write has no
// middle and dies before.
var moments = []string{"before", "amid", "after"}

// A death is one operation of a process, and the process ends there.
type death struct {
	place  place
	moment string
	left   atomic.Int64 // such operations until then
}

// parseDeath reads PLACE@NTH@MOMENT.
func parseDeath(s string) (*death, error) {
	fields := strings.Split(s, "@")
	if len(fields) != 3 || !slices.Contains(moments, fields[2]) {
		return nil, fmt.Errorf("%q is not of the form PLACE@NTH@before|amid|after", s)
	}
	n := slices.IndexFunc(places, func(p place) bool { return p.name == fields[0] })
	nth, err := strconv.Atoi(fields[1])
	if n < 0 || err != nil || nth < 1 {
		return nil, fmt.Errorf("%q names no place, or no operation from 1", s)
	}
	d := &death{place: places[n], moment: fields[2]}
	d.left.Store(int64(nth))
	return d, nil
}

// due counts an operation and reports whether it is the one.
func (d *death) due(op, path string, b []byte) bool {
	p := &d.place
	return op == p.op && p.path.MatchString(path) && (p.holding == "" || strings.Contains(string(b), p.holding)) && d.left.Add(-1) == 0
}

// die ends this process as kill -9 does.
func die() {
	syscall.Kill(syscall.Getpid(), syscall.SIGKILL)
	select {}
}

// around does an operation, or dies before or after it.
func (d *death) around(op, path string, do func() error) error {
	due := d.due(op, path, nil)
	if due && d.moment != "after" {
		die()
	}
	err := do()
	if due {
		die()
	}
	return err
}

// A deadlyFS is the machine's disk, but for one operation, which is the end of
// the process.
type deadlyFS struct {
	storage.FS
	death *death
}

func (d deadlyFS) Open(name string, mode storage.Mode) (f storage.File, err error) {
	open := func() error {
		f, err = d.FS.Open(name, mode)
		return err
	}
	if mode == storage.Create || mode == storage.CreateNew {
		d.death.around("create", name, open)
	} else {
		open()
	}
	if err != nil {
		return nil, err
	}
	return deadlyFile{f, d.death, name}, nil
}

func (d deadlyFS) Mkdir(name string) error {
	return d.death.around("mkdir", name, func() error { return d.FS.Mkdir(name) })
}

func (d deadlyFS) Rename(old, new string) error {
	return d.death.around("rename", new, func() error { return d.FS.Rename(old, new) })
}

func (d deadlyFS) Remove(name string) error {
	return d.death.around("remove", name, func() error { return d.FS.Remove(name) })
}

func (d deadlyFS) RemoveAll(name string) error {
	return d.death.around("removeall", name, func() error { return d.FS.RemoveAll(name) })
}

func (d deadlyFS) SyncDir(name string) error {
	return d.death.around("syncdir", name, func() error { return d.FS.SyncDir(name) })
}

type deadlyFile struct {
	storage.File
	death *death
	name  string
}

// SysFd keeps sendfile at work.
func (f deadlyFile) SysFd() uintptr { return f.File.(interface{ SysFd() uintptr }).SysFd() }

func (f deadlyFile) Truncate(n int64) error {
	return f.death.around("truncate", f.name, func() error { return f.File.Truncate(n) })
}

func (f deadlyFile) Sync() error { return f.death.around("sync", f.name, f.File.Sync) }

func (f deadlyFile) WriteAt(p []byte, off int64) (int, error) {
	if !f.death.due("write", f.name, p) {
		return f.File.WriteAt(p, off)
	}
	switch f.death.moment {
	case "amid":
		f.File.WriteAt(p[:len(p)/2], off)
	case "after":
		f.File.WriteAt(p, off)
	}
	die()
	return 0, nil
}

func (f deadlyFile) WriteParts(parts [][]byte, off int64) (int, error) {
	if !f.death.due("write", f.name, parts[0]) {
		return f.File.WriteParts(parts, off)
	}
	switch f.death.moment {
	case "amid":
		f.File.WriteParts(parts[:(len(parts)+1)/2], off)
	case "after":
		f.File.WriteParts(parts, off)
	}
	die()
	return 0, nil
}
