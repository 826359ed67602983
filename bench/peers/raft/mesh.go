package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// A mesh carries raft's messages over TCP: one connection for each direction
// of each pair of nodes. It may lose messages, which raft expects.
//
//	frame: | length u32 | message as protobuf |
type mesh struct {
	listener net.Listener
	peers    map[uint64]chan *raftpb.Message
	step     func(*raftpb.Message)
	ctx      context.Context
	cancel   context.CancelFunc
	running  sync.WaitGroup

	mu    sync.Mutex
	conns []net.Conn // accepted ones, to be closed
}

const (
	maxQueued  = 4096 // messages to one peer
	maxMessage = 64 << 20
	meshBuffer = 64 << 10
)

// openMesh starts to listen at the id-th address and to send to the others.
// step takes what arrives, from several goroutines.
func openMesh(id int, addrs []string, step func(*raftpb.Message)) (*mesh, error) {
	l, err := net.Listen("tcp", addrs[id-1])
	if err != nil {
		return nil, err
	}
	m := &mesh{listener: l, peers: map[uint64]chan *raftpb.Message{}, step: step}
	m.ctx, m.cancel = context.WithCancel(context.Background())
	m.running.Go(m.accept)
	for i, addr := range addrs {
		if i+1 != id {
			queue := make(chan *raftpb.Message, maxQueued)
			m.peers[uint64(i+1)] = queue
			m.running.Go(func() { m.deliver(addr, queue) })
		}
	}
	return m, nil
}

// send queues messages; those for which there is no room are dropped.
func (m *mesh) send(msgs []*raftpb.Message) {
	for _, msg := range msgs {
		select {
		case m.peers[msg.GetTo()] <- msg:
		default:
		}
	}
}

// deliver sends what is queued for one peer, dialling again when need be.
func (m *mesh) deliver(addr string, queue chan *raftpb.Message) {
	for m.ctx.Err() == nil {
		var d net.Dialer
		c, err := d.DialContext(m.ctx, "tcp", addr)
		if err != nil {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-m.ctx.Done():
			}
			continue
		}
		m.write(c, queue)
		c.Close()
	}
}

// write sends until the connection fails or the mesh ends. What has gathered
// goes out together.
func (m *mesh) write(c net.Conn, queue chan *raftpb.Message) {
	w := bufio.NewWriterSize(c, meshBuffer)
	var frame []byte
	for {
		select {
		case msg := <-queue:
			var err error
			if frame, err = appendFrame(frame[:0], msg); err != nil {
				panic(fmt.Sprintf("BUG: a message that cannot be encoded: %v", err))
			}
			if _, err := w.Write(frame); err != nil {
				return
			}
			if len(queue) == 0 && w.Flush() != nil {
				return
			}
		case <-m.ctx.Done():
			return
		}
	}
}

func appendFrame(b []byte, msg *raftpb.Message) ([]byte, error) {
	b = append(b, 0, 0, 0, 0)
	b, err := proto.MarshalOptions{}.MarshalAppend(b, msg)
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b, err
}

func (m *mesh) accept() {
	for {
		c, err := m.listener.Accept()
		if err != nil {
			return // closed
		}
		m.mu.Lock()
		m.conns = append(m.conns, c)
		m.mu.Unlock()
		m.running.Go(func() {
			r := bufio.NewReaderSize(c, meshBuffer)
			for {
				msg, err := readFrame(r)
				if err != nil {
					c.Close()
					return
				}
				m.step(msg)
			}
		})
	}
}

func readFrame(r io.Reader) (*raftpb.Message, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := binary.LittleEndian.Uint32(head[:])
	if n > maxMessage {
		return nil, fmt.Errorf("a message of %d bytes", n)
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		return nil, err
	}
	msg := &raftpb.Message{}
	return msg, proto.Unmarshal(b, msg)
}

func (m *mesh) close() {
	m.cancel()
	m.listener.Close()
	m.mu.Lock()
	for _, c := range m.conns {
		c.Close()
	}
	m.mu.Unlock()
	m.running.Wait()
}
