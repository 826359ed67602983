package broker

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// A notifier tells a service manager how the broker does, the way systemd
// expects it: datagrams of lines NAME=VALUE.
type notifier struct {
	send  func(state string) error
	every time.Duration // between two beats; 0: the manager wants none
	log   *slog.Logger
}

// openNotifier returns a notifier for the socket that NOTIFY_SOCKET names, a
// path or, after an @, a name in the abstract name space; nil if there is none.
// It gives two beats in the time of WATCHDOG_USEC, unless WATCHDOG_PID means
// another process than pid.
func openNotifier(look func(string) (string, bool), pid int, log *slog.Logger) (*notifier, error) {
	name, _ := look("NOTIFY_SOCKET")
	if name == "" {
		return nil, nil
	}
	if name[0] != '/' && name[0] != '@' {
		return nil, fmt.Errorf("NOTIFY_SOCKET: %q is neither a path from the root nor an abstract name like @name", name)
	}
	n := &notifier{log: log, send: func(state string) error { return sendState(name, state) }}
	if of, ok := look("WATCHDOG_PID"); ok && of != strconv.Itoa(pid) {
		return n, nil
	}
	if text, ok := look("WATCHDOG_USEC"); ok {
		us, err := strconv.ParseInt(text, 10, 64)
		if err != nil || us < 2000 || us > int64(time.Duration(1<<63-1)/time.Microsecond) {
			return nil, fmt.Errorf("WATCHDOG_USEC: %q is not a number of microseconds from 2000", text)
		}
		n.every = time.Duration(us) * time.Microsecond / 2
	}
	return n, nil
}

// sendState sends one datagram. It opens the socket each time, so that one that
// was made anew is found, and waits a second at most for a manager that does not
// read.
func sendState(name, state string) error {
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetWriteDeadline(time.Now().Add(time.Second))
	_, err = c.Write([]byte(state))
	return err
}

func (n *notifier) say(state string) {
	if err := n.send(state); err != nil {
		n.log.Warn("the service manager is not reached", "state", state, "err", err)
	}
}

// attend says that b, which is about to run on ln, is ready, and feeds the
// watchdog while its main loops turn. That ends when the returned listener, or
// that of TLS, is closed, with which a stop begins, whatever its cause: from there
// on the manager counts the time of the stop.
func (n *notifier) attend(b *Broker, ln net.Listener, status string) net.Listener {
	if n == nil {
		return ln
	}
	n.say("READY=1\nSTATUS=" + status)
	ctx, cancel := context.WithCancel(context.Background())
	stopping := sync.OnceFunc(func() {
		cancel()
		n.say("STOPPING=1\nSTATUS=stopping")
	})
	var doors []*door
	through := func(ln net.Listener) net.Listener {
		d := &door{Listener: ln, onClose: stopping}
		doors = append(doors, d)
		return d
	}
	if ln != nil {
		ln = through(ln)
	}
	if s := b.secure; s != nil && s.ln != nil {
		s.ln = through(s.ln)
	}
	if n.every > 0 {
		go newWatchdog(b, doors, n).run(ctx)
	}
	return ln
}

// A door is a listener that shows whether the loop that accepts still turns, and
// tells when it is closed for the first time.
type door struct {
	net.Listener
	onClose func()

	closing sync.Once
	waiting atomic.Bool  // somebody is inside Accept
	calls   atomic.Int64 // of Accept
}

func (d *door) Accept() (net.Conn, error) {
	d.calls.Add(1)
	d.waiting.Store(true)
	defer d.waiting.Store(false)
	return d.Listener.Accept()
}

func (d *door) Close() error {
	d.closing.Do(d.onClose)
	return d.Listener.Close()
}

// doorLook is how often a loop that is away from its door is looked for.
const doorLook = 50 * time.Millisecond

// turns returns once somebody waits for a connection, or has come to do so after
// the call; or with ctx's error.
func (d *door) turns(ctx context.Context) error {
	for calls := d.calls.Load(); !d.waiting.Load() && d.calls.Load() == calls; {
		select {
		case <-time.After(doorLook):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
