package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

var quiet = slog.New(slog.DiscardHandler)

// managerAt stands for a service manager: it hears at a socket.
func managerAt(t *testing.T, name string) (hear func() string) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return func() string {
		t.Helper()
		b := make([]byte, 4096)
		n, err := c.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
}

// TestNotifySocket sends to a socket at a path and to an abstract one.
func TestNotifySocket(t *testing.T) {
	f := func(name string) {
		t.Helper()
		n, err := openNotifier(func(key string) (string, bool) { return name, key == "NOTIFY_SOCKET" }, 7, quiet)
		if err != nil {
			t.Fatal(err)
		}
		if err := n.send("READY=1"); err == nil {
			t.Fatal("sent to a socket that is not there")
		}
		n.say("READY=1") // which is no reason to end
		hear := managerAt(t, name)
		n.say("READY=1\nSTATUS=here")
		n.say("WATCHDOG=1")
		if a, b := hear(), hear(); a != "READY=1\nSTATUS=here" || b != "WATCHDOG=1" {
			t.Fatalf("%q, %q", a, b)
		}
	}
	f(filepath.Join(t.TempDir(), "n"))
	f(fmt.Sprintf("@teralog-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
}

// TestNotifyEnv reads what a manager leaves in the environment.
func TestNotifyEnv(t *testing.T) {
	f := func(every time.Duration, want string, env ...string) {
		t.Helper()
		n, err := openNotifier(func(key string) (string, bool) {
			for _, v := range env {
				if value, ok := strings.CutPrefix(v, key+"="); ok {
					return value, true
				}
			}
			return "", false
		}, 7, quiet)
		switch {
		case want == "nobody" && n == nil && err == nil:
		case want == "" && n != nil && err == nil && n.every == every:
		case want != "" && err != nil && strings.Contains(err.Error(), want):
		default:
			t.Fatalf("%q: %+v, %v", env, n, err)
		}
	}
	f(0, "nobody")
	f(0, "nobody", "WATCHDOG_USEC=1000000")
	f(0, "nobody", "NOTIFY_SOCKET=")
	f(0, "", "NOTIFY_SOCKET=/run/n")
	f(0, "NOTIFY_SOCKET", "NOTIFY_SOCKET=run/n")
	f(0, "NOTIFY_SOCKET", "NOTIFY_SOCKET=vsock:2:1")
	f(500*time.Millisecond, "", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=1000000")
	f(500*time.Millisecond, "", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=1000000", "WATCHDOG_PID=7")
	f(0, "", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=1000000", "WATCHDOG_PID=8")
	f(0, "WATCHDOG_USEC", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=1s")
	f(0, "WATCHDOG_USEC", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=0")
	f(0, "WATCHDOG_USEC", "NOTIFY_SOCKET=@n", "WATCHDOG_USEC=9223372036854775807")
}

// TestServeNotify runs the command under a manager, from ready to stop.
func TestServeNotify(t *testing.T) {
	name := filepath.Join(t.TempDir(), "n")
	hear := managerAt(t, name)
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "100000")
	_, stop := serving(t, t.TempDir())
	if got := hear(); !strings.HasPrefix(got, "READY=1\nSTATUS=listen 127.0.0.1:") {
		t.Fatalf("%q", got)
	}
	for range 3 {
		if got := hear(); got != "WATCHDOG=1" {
			t.Fatalf("%q", got)
		}
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	got := hear()
	for got == "WATCHDOG=1" {
		got = hear()
	}
	if got != "STOPPING=1\nSTATUS=stopping" {
		t.Fatalf("%q", got)
	}
}

// A ward is a broker in a bubble under a manager that counts its beats.
type ward struct {
	*live
	mu    sync.Mutex
	beats int
	said  []string // all else
}

// beatEvery is half of what the manager of a ward allows.
const beatEvery = 10 * time.Second

func (w *ward) hear(state string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if state == "WATCHDOG=1" {
		w.beats++
	} else {
		w.said = append(w.said, state)
	}
	return nil
}

// after returns how many beats there are in d.
func (w *ward) after(d time.Duration) int {
	w.mu.Lock()
	was := w.beats
	w.mu.Unlock()
	time.Sleep(d)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.beats - was
}

// guarded runs f with a ward on fs, in a bubble.
func guarded(t *testing.T, dirs string, f func(w *ward, fs *storage.MemFS, network *wire.MemNet)) *ward {
	w := &ward{}
	synctest.Test(t, func(t *testing.T) {
		fs, network := storage.NewMemFS(1), wire.NewMemNet()
		ln, err := network.Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		env, err := NewEnv(quiet)
		if err != nil {
			t.Fatal(err)
		}
		env.FS = fs
		c := DefaultConfig()
		c.DataDirs, c.Reserve = strings.Split(dirs, ","), 0
		b, err := New(c, env)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		n := &notifier{send: w.hear, every: beatEvery, log: quiet}
		go func() { ended <- b.Run(ctx, n.attend(b, ln, "here")) }()
		w.live = &live{t, b, ended, func() error { cancel(); return <-ended }}
		f(w, fs, network)
	})
	return w
}

// TestWatchdogBeats counts beats of a broker in health, and none after it has
// said that it stops.
func TestWatchdogBeats(t *testing.T) {
	w := guarded(t, "data", func(w *ward, _ *storage.MemFS, network *wire.MemNet) {
		c := dial(w.t, network, "broker:1")
		createOn(w.t, c, "t", 4)
		c.Close()
		if n := w.after(100 * beatEvery); n < 99 || n > 101 {
			w.t.Fatalf("%d beats in the time of 100", n)
		}
		if err := w.stop(); err != nil {
			w.t.Fatal(err)
		}
		if n := w.after(10 * beatEvery); n != 0 {
			w.t.Fatalf("%d beats after the stop", n)
		}
	})
	if fmt.Sprint(w.said) != "[READY=1\nSTATUS=here STOPPING=1\nSTATUS=stopping]" {
		t.Fatalf("%q", w.said)
	}
}

// TestWatchdogStuck keeps the loop of the timers from its work: the beats stop,
// and come again with it.
func TestWatchdogStuck(t *testing.T) {
	guarded(t, "data", func(w *ward, _ *storage.MemFS, _ *wire.MemNet) {
		w.after(3 * beatEvery)
		free := make(chan struct{})
		w.b.wheel.At(0, func() { <-free })
		w.after(2 * beatEvery) // the last beats
		if n := w.after(100 * beatEvery); n != 0 {
			w.t.Fatalf("%d beats with a loop stuck", n)
		}
		close(free)
		if n := w.after(beatEvery); n == 0 {
			w.t.Fatal("no beat after the loop turned again")
		}
		if err := w.stop(); err != nil {
			w.t.Fatal(err)
		}
	})
}

// TestWatchdogDisk has a disk hang that does not hold the metadata. Its directory
// ends, and the process does not: no beat is missed.
func TestWatchdogDisk(t *testing.T) {
	guarded(t, "data,other", func(w *ward, fs *storage.MemFS, network *wire.MemNet) {
		c := dial(w.t, network, "broker:1")
		id := createOn(w.t, c, "t", 4)
		open := make(chan struct{})
		var hangs atomic.Int32
		fs.BeforeOp(func(op storage.Op) error {
			if (op.Kind == storage.OpSync || op.Kind == storage.OpSyncDir) && strings.Contains(op.Name, "other/") {
				hangs.Add(1)
				<-open
			}
			return nil
		})
		for p := range int32(4) {
			sendOn(w.t, c, batchOf(w.t, wire.BuilderOptions{Topic: id, Partition: p}, "v"))
		}
		c.Close()
		if n := w.after(2 * janitorPatience); n < int(2*janitorPatience/beatEvery)-1 {
			w.t.Errorf("%d beats", n)
		}
		if failed := w.b.dirs[1].Failed(); failed == nil || hangs.Load() == 0 {
			w.t.Errorf("%d flushes hang; the directory: %v", hangs.Load(), failed)
		}
		if err := w.stop(); err == nil {
			w.t.Error("a stop without one of its disks is a clean one")
		}
		close(open)
	})
}

// TestWatchdogPatience checks who is called stuck, and when.
func TestWatchdogPatience(t *testing.T) {
	w := &watchdog{loops: []*pulse{{name: "a", patience: 10}, {name: "b", patience: 100}}}
	f := func(a, b int64, now time.Duration, want string) {
		t.Helper()
		w.loops[0].came.Store(a)
		w.loops[1].came.Store(b)
		if got := strings.Join(w.stuck(now), " "); got != want {
			t.Fatalf("at %d stuck are %q, want %q", now, got, want)
		}
	}
	f(0, 0, 10, "")
	f(0, 0, 11, "a")
	f(5, 0, 15, "")
	f(0, 0, 100, "a")
	f(0, 0, 101, "a b")
	f(200, 0, 101, "b")
}

// TestDoor asks whether somebody accepts.
func TestDoor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ln, err := wire.NewMemNet().Listen("broker:1")
		if err != nil {
			t.Fatal(err)
		}
		closes := 0
		d := &door{Listener: ln, onClose: func() { closes++ }}
		within := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			return d.turns(ctx)
		}
		if err := within(); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("nobody is there: %v", err)
		}
		go func() {
			time.Sleep(30 * time.Second)
			d.Accept()
		}()
		if err := within(); err != nil {
			t.Fatalf("somebody came: %v", err)
		}
		if err := within(); err != nil {
			t.Fatalf("somebody waits: %v", err)
		}
		d.Close()
		d.Close()
		synctest.Wait()
		if err := within(); !errors.Is(err, context.DeadlineExceeded) || closes != 1 {
			t.Fatalf("after %d closes: %v", closes, err)
		}
	})
}
