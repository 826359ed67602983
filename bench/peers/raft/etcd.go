package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"
)

// An etcdNode runs go.etcd.io/raft on one goroutine over a RawNode, which is
// quicker here than the library's Node with its channels. As in etcd's server
// the leader sends before it has written, a follower after; the log is etcd's
// own WAL, which calls fdatasync; limits and timing are etcd's.
type etcdNode struct {
	node    *raft.RawNode
	storage *raft.MemoryStorage
	wal     *wal.WAL
	mesh    *mesh
	led     chan struct{}
	leads   bool
	stop    chan struct{}
	running sync.WaitGroup

	proposals chan []byte
	arrived   chan *raftpb.Message
	applied   [maxInFlight]chan struct{} // by slot
}

const etcdTick = 100 * time.Millisecond

func openEtcd(id int, dir string, addrs []string) (member, error) {
	e := &etcdNode{
		storage: raft.NewMemoryStorage(), led: make(chan struct{}), stop: make(chan struct{}),
		proposals: make(chan []byte, maxInFlight), arrived: make(chan *raftpb.Message, maxQueued),
	}
	for i := range e.applied {
		e.applied[i] = make(chan struct{}, 1)
	}
	var err error
	if e.wal, err = wal.Create(zap.NewNop(), filepath.Join(dir, "wal"), nil); err != nil {
		return nil, err
	}
	e.node, err = raft.NewRawNode(&raft.Config{
		ID: uint64(id), ElectionTick: 10, HeartbeatTick: 1, Storage: e.storage, MaxSizePerMsg: 1 << 20, MaxInflightMsgs: 512,
		CheckQuorum: true, PreVote: true, Logger: &raft.DefaultLogger{Logger: log.New(io.Discard, "", 0)},
	})
	if err != nil {
		return nil, err
	}
	peers := make([]raft.Peer, len(addrs))
	for i := range peers {
		peers[i].ID = uint64(i + 1)
	}
	if err := e.node.Bootstrap(peers); err != nil {
		return nil, err
	}
	if e.mesh, err = openMesh(id, addrs, e.arrive); err != nil {
		return nil, err
	}
	e.running.Go(e.run)
	return e, nil
}

func (e *etcdNode) leading() <-chan struct{} { return e.led }

// arrive takes a message for the loop.
func (e *etcdNode) arrive(m *raftpb.Message) {
	select {
	case e.arrived <- m:
	case <-e.stop:
	}
}

// run takes all that has gathered before it has anything written. Messages and
// proposals that raft refuses are dropped: it expects that of a network, and a
// proposer notices in time.
func (e *etcdNode) run() {
	ticks := time.NewTicker(etcdTick)
	defer ticks.Stop()
	for {
		select {
		case <-ticks.C:
			e.node.Tick()
		case m := <-e.arrived:
			_ = e.node.Step(m)
		case data := <-e.proposals:
			_ = e.node.Propose(data)
		case <-e.stop:
			return
		}
		for range len(e.arrived) { // nobody else receives
			_ = e.node.Step(<-e.arrived)
		}
		for range len(e.proposals) {
			_ = e.node.Propose(<-e.proposals)
		}
		for e.node.HasReady() {
			r := e.node.Ready()
			if err := e.take(r); err != nil {
				panic(fmt.Sprintf("etcd's node cannot go on: %v", err)) // this process is a measuring tool
			}
			e.node.Advance(r)
		}
	}
}

// take does what raft asks for.
func (e *etcdNode) take(r raft.Ready) error {
	if r.SoftState != nil {
		if e.leads = r.RaftState == raft.StateLeader; e.leads {
			select {
			case <-e.led:
			default:
				close(e.led)
			}
		}
	}
	if e.leads {
		e.mesh.send(r.Messages)
	}
	if err := e.wal.Save(r.HardState, r.Entries); err != nil {
		return err
	}
	if err := e.storage.Append(r.Entries); err != nil {
		return err
	}
	if !e.leads {
		e.mesh.send(r.Messages)
	}
	for _, entry := range r.CommittedEntries {
		if err := e.apply(entry); err != nil {
			return err
		}
	}
	return nil
}

func (e *etcdNode) apply(entry *raftpb.Entry) error {
	switch {
	case entry.GetType() == raftpb.EntryConfChange:
		var change raftpb.ConfChange
		if err := proto.Unmarshal(entry.GetData(), &change); err != nil {
			return err
		}
		e.node.ApplyConfChange(&change)
	case len(entry.GetData()) > 0:
		slot := binary.LittleEndian.Uint64(entry.GetData())
		select {
		case e.applied[slot] <- struct{}{}:
		default: // a follower, where nobody waits
		}
	}
	return nil
}

func (e *etcdNode) propose(ctx context.Context, slot int, data []byte) error {
	binary.LittleEndian.PutUint64(data, uint64(slot))
	select {
	case e.proposals <- data:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-e.applied[slot]:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("a proposal was not applied in time: %w", ctx.Err())
	}
}

func (e *etcdNode) close() error {
	close(e.stop)
	e.running.Wait()
	e.mesh.close()
	return e.wal.Close()
}
