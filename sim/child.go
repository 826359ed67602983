package sim

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/storage"
)

// startLimit is how long a broker may take to be ready. It recovers a few
// megabytes, so this says that it hangs.
const startLimit = time.Minute

// serveTortured runs a broker as `serve` does, in a world that differs: its
// process dies at a disk operation, the machine seems to have been started anew
// since, or its disk is a frail one that does what in says.
func serveTortured(ctx context.Context, args []string, in io.Reader, out, notes io.Writer) error {
	f := flag.NewFlagSet("sim broker", flag.ContinueOnError)
	f.SetOutput(notes)
	c := broker.DefaultConfig()
	f.StringVar(&c.DataDirs[0], "data-dir", "", "")
	f.StringVar(&c.Listen, "listen", "", "")
	f.StringVar(&c.HTTP, "http", "", "")
	f.Int64Var(&c.Reserve, "reserve", c.Reserve, "")
	at := f.String("die", "", "PLACE@NTH@MOMENT")
	boot := f.String("boot", "", "boot id of the machine; empty: the real one")
	frail := f.String("disk", "", "journal of a frail disk; empty: the disk is sound")
	power := f.Bool("power-cut", false, "the power was cut since the last process")
	space := f.String("full", "", "BYTES seen|hidden: so much may be on the frail disk")
	seed := f.Uint64("seed", 0, "of what a power cut takes")
	if err := f.Parse(args); err != nil {
		return err
	}
	env, err := broker.NewEnv(slog.New(slog.NewTextHandler(notes, nil)))
	if err != nil {
		return err
	}
	env.SnapshotEvery = 50 // often enough for a run of seconds
	if *boot != "" {
		env.Boot = *boot
	}
	if *at != "" {
		d, err := parseDeath(*at)
		if err != nil {
			return err
		}
		env.FS = deadlyFS{storage.OS(), d}
	}
	if *frail != "" {
		d, err := newFrailDisk(c.DataDirs[0], *frail, *power, rand.New(rand.NewPCG(*seed, 0xD15C)))
		if err == nil && *space != "" {
			err = d.space.parse(*space)
		}
		if err != nil {
			return err
		}
		env.FS = frailFS{storage.OS(), d}
		go func() {
			if err := d.obey(in); err != nil {
				panic(err)
			}
		}()
	}
	return broker.ServeIn(ctx, c, env, out)
}

// A process is a broker that runs as a child of this one.
type process struct {
	cmd   *exec.Cmd
	tell  io.Writer     // what its disk is to do: see frailDisk.obey
	addr  string        // once ready
	http  string        // likewise; empty: none
	ready chan struct{} // closed when it serves; never, if it ends before
	ended chan struct{}
	err   error // once ended
}

// launch starts this program with args as a broker whose log is appended to a
// file. If this process ends, so does the child.
func launch(log string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	return launchAs(log, self, args...)
}

// launchAs is launch of a program that becomes a broker.
func launchAs(log, program string, args ...string) (*process, error) {
	file, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	p := &process{cmd: exec.Command(program, args...), ready: make(chan struct{}), ended: make(chan struct{})}
	p.cmd.Stderr = file
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if p.tell, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		line, _ := bufio.NewReader(stdout).ReadString('\n')
		if _, rest, ok := strings.Cut(line, "ready: listen "); ok {
			p.addr, rest, _ = strings.Cut(rest, ", ")
			if http, ok := strings.CutPrefix(rest, "http "); ok {
				p.http, _, _ = strings.Cut(http, ",")
			}
			close(p.ready)
		}
		io.Copy(io.Discard, stdout)
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// lookEvery is how often one who waits looks.
const lookEvery = 10 * time.Millisecond

// looks returns a channel that is closed once the limit has passed in looks: a
// time in which this process was stopped, or starved, is no fault of whom it waits
// for. stop gives it up.
func looks(limit time.Duration) (over <-chan struct{}, stop func()) {
	ended, quit := make(chan struct{}), make(chan struct{})
	go func() {
		for range limit / lookEvery {
			select {
			case <-quit:
				return
			case <-time.After(lookEvery):
			}
		}
		close(ended)
	}()
	return ended, func() { close(quit) }
}

// serving waits until the broker is ready.
func (p *process) serving(ctx context.Context) error {
	late, stop := looks(startLimit)
	defer stop()
	select {
	case <-p.ready:
		return nil
	case <-p.ended:
		return fmt.Errorf("the broker ended before it was ready: %w", p.err)
	case <-late:
		return fmt.Errorf("the broker is not ready after %v", startLimit)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dies waits for the process to end by itself, until limit after it was ready,
// and reports whether it did.
func (p *process) dies(limit time.Duration) bool {
	select {
	case <-p.ended:
		return true
	case <-p.ready:
	case <-time.After(startLimit):
		return false
	}
	select {
	case <-p.ended:
		return true
	case <-time.After(limit):
		return false
	}
}

// kill ends the process with SIGKILL and waits until it is gone.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	if !p.killed() {
		return fmt.Errorf("the broker ended by itself: %w", p.err)
	}
	return nil
}

// stop ends the process in order and returns an error if it did not exit with 0.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	late, stop := looks(startLimit)
	defer stop()
	select {
	case <-p.ended:
		return p.err
	case <-late:
		return errors.Join(fmt.Errorf("the broker does not stop within %v", startLimit), p.kill())
	}
}

// killed reports whether the process, which has ended, was ended by SIGKILL.
func (p *process) killed() bool {
	s, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && s.Signaled() && s.Signal() == syscall.SIGKILL
}

// workplace makes the directory of a run, a temporary one of that name if dir is
// empty, and the broker's data directory in it. What an older run left is
// refused: its history is gone.
func workplace(dir, name string) (string, error) {
	var err error
	if dir == "" {
		dir, err = os.MkdirTemp("", name)
	} else {
		err = os.MkdirAll(dir, 0o755)
	}
	if err != nil {
		return dir, err
	}
	return dir, os.Mkdir(filepath.Join(dir, "data"), 0o755)
}

// leave ends a run that came to err: files are kept for whoever asked for them,
// and for whoever looks for what went wrong.
func leave(dir string, keep bool, err error) error {
	if err != nil {
		return fmt.Errorf("%w; the files and the broker's log are in %s", err, dir)
	}
	if keep {
		return nil
	}
	return os.RemoveAll(dir)
}
