//go:build linux

package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// TestPowerCuts cuts the power of a real file system: the broker runs on an
// ext4 image, is frozen under load, the image is copied as it is without what
// the page cache holds, and the next broker starts on the copy. It needs root
// and changes a setting of the whole machine while it runs, so it has to be
// asked for: TERALOG_BOX=1, or the number of cuts.
func TestPowerCuts(t *testing.T) {
	cuts := asked(t)
	if cuts == 1 {
		cuts = 24
	}
	b := newBox(t, 256<<20)
	b.keepUnwritten(t)
	b.start(t)
	b.makeTopics(t)
	for n := range cuts {
		b.cut(t, n)
	}
	b.end(t)
}

// asked returns how much of a box test is wanted, and skips it if none is.
func asked(t *testing.T) int {
	n, _ := strconv.Atoi(os.Getenv("TERALOG_BOX"))
	if n == 0 {
		t.Skip("needs root and a loop-mounted image; set TERALOG_BOX=1, or to the number of power cuts")
	}
	return n
}

// A box is a machine that can lose its power.
type box struct {
	dir   string
	seed  uint64
	rnd   *rand.Rand
	boots int
	image string // the disk

	p      *process
	h      *history
	c      *client.Client
	topics []loadTopic

	ends      map[wire.PartitionID]wire.Offset // after the last start
	acked     map[wire.PartitionID][]stamped   // since the last start
	positions []position
	lost      map[string]int // acknowledged records, by flush mode
	told      map[string]int // positions answered TRUNCATED
	found     map[string]int // lines of recovery reports, by what they tell
}

// A position is where a reader stood when the power went: it had read the
// record before next, of that epoch.
type position struct {
	partition wire.PartitionID
	mode      string
	next      wire.Offset
	epoch     wire.Epoch
	keep      wire.Offset // what the first start after it still had; -1: not known yet
}

// The bounds of the topics with interval flush, which are promises.
const (
	boxFlushBytes = 64 << 10
	boxFlushEvery = 200 // ms
)

// Mounts that forget in different ways: with or without allocation delayed, and
// with file sizes that may be durable before the bytes are. None makes renames
// wait for data, as ext4 does to help careless programs, and none writes by
// itself within a test.
var mounts = []string{
	"data=ordered,noauto_da_alloc,commit=300",
	"data=writeback,noauto_da_alloc,commit=300",
	"data=writeback,nodelalloc,noauto_da_alloc,commit=300",
}

func newBox(t *testing.T, size int64) *box { return newBoxOn(t, t.TempDir(), size) }

// newBoxOn makes a box whose disk lies in a folder of its own.
func newBoxOn(t *testing.T, disks string, size int64) *box {
	if os.Getuid() != 0 {
		t.Skip("needs root to mount an image")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "cp"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s: %v", tool, err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	if s, err := strconv.ParseUint(os.Getenv("TERALOG_SEED"), 10, 64); err == nil {
		seed = s
	}
	t.Logf("seed %d", seed)
	b := &box{dir: t.TempDir(), seed: seed, rnd: rand.New(rand.NewPCG(seed, 0xB0C5)), h: newHistory(uint32(seed) | 1),
		ends: map[wire.PartitionID]wire.Offset{}, acked: map[wire.PartitionID][]stamped{}, lost: map[string]int{}, told: map[string]int{}, found: map[string]int{}}
	b.image = filepath.Join(disks, "disk-0")
	if err := os.WriteFile(b.image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(b.image, size); err != nil {
		t.Fatal(err)
	}
	command(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", b.image)
	if err := os.Mkdir(b.mountpoint(), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if b.p != nil {
			b.p.kill()
		}
		syscall.Unmount(b.mountpoint(), 0)
	})
	if !b.mount(t) {
		t.Skip("needs loop devices and ext4")
	}
	return b
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

// keepUnwritten stops the kernel from writing dirty pages by itself until the
// test is over.
func (b *box) keepUnwritten(t *testing.T) {
	const setting = "/proc/sys/vm/dirty_writeback_centisecs"
	old, err := os.ReadFile(setting)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() {
		if err := os.WriteFile(setting, old, 0o644); err != nil {
			t.Errorf("%s stays at 0, it was %s: %v", setting, old, err)
		}
	})
	if err := os.WriteFile(setting, []byte("0"), 0o644); err != nil {
		t.Skip(err)
	}
}

func (b *box) mountpoint() string { return filepath.Join(b.dir, "mnt") }
func (b *box) data() string       { return filepath.Join(b.mountpoint(), "data") }
func (b *box) log() string        { return filepath.Join(b.dir, "broker.log") }

func (b *box) mount(t *testing.T) bool {
	options := "loop," + mounts[b.boots%len(mounts)]
	out, err := exec.Command("mount", "-t", "ext4", "-o", options, b.image, b.mountpoint()).CombinedOutput()
	if err != nil {
		t.Logf("mount -o %s: %v\n%s", options, err, out)
	}
	return err == nil
}

// launch starts a broker on a machine that was just switched on.
func (b *box) launch(t *testing.T) {
	t.Helper()
	b.boots++
	var err error
	b.p, err = launch(b.log(), "sim", "broker", "-data-dir", b.data(), "-listen", "127.0.0.1:0", "-reserve", fmt.Sprint(1<<20),
		"-boot", fmt.Sprintf("boot-%d", b.boots))
	if err != nil {
		t.Fatal(err)
	}
}

// start starts a broker and waits until it serves.
func (b *box) start(t *testing.T) {
	t.Helper()
	b.launch(t)
	if err := b.p.serving(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, lastLines(b.log(), 20))
	}
	b.dial(t)
}

func (b *box) dial(t *testing.T) {
	t.Helper()
	var err error
	if b.c, err = dial(b.p.addr); err != nil {
		t.Fatal(err)
	}
}

// serve starts the broker that users start, on the machine as it is.
func (b *box) serve(t *testing.T, listen string) {
	t.Helper()
	b.boots++
	var err error
	if b.p, err = launch(b.log(), "serve", "--data-dir", b.data(), "--listen", listen, "--reserve", "1MiB"); err != nil {
		t.Fatal(err)
	}
	if err := b.p.serving(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, lastLines(b.log(), 20))
	}
}

func lastLines(name string, n int) string {
	text, _ := os.ReadFile(name)
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

func (b *box) makeTopics(t *testing.T) {
	for _, mode := range []string{"async", "interval", "sync"} {
		topic := loadTopic{name: "kept-" + mode, partitions: 2, flush: mode}
		settings := []wire.Setting{{Key: "flush", Value: mode}, {Key: "segment.bytes", Value: "1MiB"}, {Key: "retention.bytes", Value: "4MiB"},
			{Key: "flush.bytes", Value: fmt.Sprint(boxFlushBytes)}, {Key: "flush.interval", Value: fmt.Sprintf("%dms", boxFlushEvery)}}
		if mode == "async" {
			settings = settings[:3] // its background flush comes seldom enough to lose much
		}
		var err error
		if topic.id, err = b.c.CreateTopic(t.Context(), client.TopicSpec{Name: topic.name, Partitions: topic.partitions, Settings: settings}); err != nil {
			t.Fatal(err)
		}
		b.topics = append(b.topics, topic)
	}
}

// note keeps an acknowledgement; see load.
func (b *box) note(p wire.PartitionID, a client.Ack, size int) {
	b.acked[p] = append(b.acked[p], stamped{a.Offset, a.Epoch, a.Time, int64(size)})
}

// stood notes where a reader stands; see load.
func (b *box) stood(id wire.PartitionID, next wire.Offset, epoch wire.Epoch) {
	b.h.mu.Lock()
	defer b.h.mu.Unlock()
	for _, topic := range b.topics {
		if topic.id == id.Topic && epoch != wire.NoEpoch {
			b.positions = append(b.positions, position{id, topic.flush, next, epoch, -1})
		}
	}
}

// cut works for a while, cuts the power, starts again and looks at what is left.
func (b *box) cut(t *testing.T, n int) {
	l := &load{h: b.h, seed: b.seed + uint64(n), c: b.c, topics: b.topics, passing: []string{"sync"}, prefix: fmt.Sprintf("%d-", n)}
	l.acked = b.note
	l.stopped = b.stood
	if err := l.begin(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(50*time.Millisecond + time.Duration(b.rnd.Int64N(int64(2500*time.Millisecond))))
	b.power(t)
	l.abort()
	// Sometimes it goes again while the broker recovers.
	for b.rnd.IntN(3) == 0 {
		b.launch(t)
		time.Sleep(time.Duration(b.rnd.Int64N(int64(120 * time.Millisecond))))
		b.power(t)
	}
	b.start(t)
	b.look(t, n, l.standing)
	if bad := b.h.violations(); len(bad) > 0 {
		t.Fatalf("cut %d: %s", n, strings.Join(bad, "\n"))
	}
}

// power freezes the broker, copies the disk as it is, and goes on with the copy.
func (b *box) power(t *testing.T) {
	t.Helper()
	pid := b.p.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	for !frozen(pid) {
		time.Sleep(time.Millisecond)
	}
	b.scatter(t)
	next := filepath.Join(b.dir, fmt.Sprintf("disk-%d", b.boots))
	command(t, "cp", "--sparse=always", b.image, next)
	if err := b.p.kill(); err != nil {
		t.Fatal(err)
	}
	command(t, "umount", b.mountpoint())
	if err := os.Remove(b.image); err != nil {
		t.Fatal(err)
	}
	b.image = next
	if !b.mount(t) {
		t.Fatal("the copy cannot be mounted")
	}
}

// frozen reports whether every thread of a process has stopped, so that no call
// of it is still at work on the disk.
func frozen(pid int) bool {
	stats, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	for _, name := range stats {
		text, err := os.ReadFile(name)
		if err != nil {
			return false
		}
		_, state, _ := strings.Cut(string(text), ") ")
		if !strings.HasPrefix(state, "T") && !strings.HasPrefix(state, "Z") {
			return false
		}
	}
	return len(stats) > 0
}

// scatter writes some dirty pages of some files, as a kernel may at any time, so
// that later bytes can be on the disk and earlier ones not.
func (b *box) scatter(t *testing.T) {
	const writeAndWait = 2 | 4 // SYNC_FILE_RANGE_WRITE and _WAIT_AFTER
	names, _ := filepath.Glob(filepath.Join(b.data(), "topics/*/*/*"))
	for _, name := range names {
		if b.rnd.IntN(3) > 0 {
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		st, err := f.Stat()
		if err == nil && st.Mode().IsRegular() && st.Size() > 4096 {
			from := b.rnd.Int64N(st.Size()) &^ 4095
			err = syscall.SyncFileRange(int(f.Fd()), from, 4096*(1+b.rnd.Int64N(32)), writeAndWait)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Close()
	}
}
