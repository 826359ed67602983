package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/teralog/teralog/bench/peers/measure"
)

const (
	readyWithin = 10 * time.Second
	stopWithin  = 10 * time.Second
)

// A server is the process that is measured. It listens on loopback only, and
// does not outlive this process.
type server struct {
	addr string // host:port
	cmd  *exec.Cmd
	log  string // file
	done chan struct{}
}

// start runs a server with its output in the file log, and returns once it
// accepts connections on addr.
func start(ctx context.Context, addr, log, name string, args ...string) (*server, error) {
	out, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	defer out.Close()
	s := &server{addr: addr, cmd: exec.Command(name, args...), log: log, done: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = out, out
	measure.Child(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		s.cmd.Wait() // how it ended is seen by who still needs it
		close(s.done)
	}()
	for deadline := time.Now().Add(readyWithin); ; {
		c, err := net.Dial("tcp", addr)
		if err == nil {
			return s, c.Close()
		}
		select {
		case <-s.done:
			return nil, fmt.Errorf("%s ended before it listened: %s", name, s.lastWords())
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), s.stop())
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			return nil, errors.Join(fmt.Errorf("%s does not listen on %s after %s: %s", name, addr, readyWithin, s.lastWords()), s.stop())
		}
	}
}

// stop ends the process, cleanly if it does so within stopWithin.
func (s *server) stop() error {
	select {
	case <-s.done:
		return fmt.Errorf("the server ended by itself (%s): %s", s.cmd.ProcessState, s.lastWords())
	default:
	}
	s.cmd.Process.Signal(syscall.SIGTERM) // fails only if it has just ended
	select {
	case <-s.done:
	case <-time.After(stopWithin):
		s.cmd.Process.Kill()
		<-s.done
	}
	return nil
}

// lastWords returns the last line that the server wrote.
func (s *server) lastWords() string {
	b, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	text := strings.TrimSpace(string(b))
	return text[strings.LastIndexByte(text, '\n')+1:]
}

// freeAddr returns a loopback address on which nobody listens.
func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
