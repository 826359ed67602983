package main

import (
	"context"
	"errors"
	"io"
	"strconv"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
)

// A hashicorpNode runs github.com/hashicorp/raft on raft-wal, which syncs once
// an append where raft-boltdb syncs twice, with a cache before it as its users
// have. Batches are as large as the library allows.
type hashicorpNode struct {
	raft      *raft.Raft
	transport *raft.NetworkTransport
	wal       *wal.WAL
	led       chan struct{}
	stop      chan struct{}
}

func openHashicorp(id int, dir string, addrs []string) (member, error) {
	quiet := hclog.NewNullLogger()
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(strconv.Itoa(id))
	c.Logger = quiet
	c.MaxAppendEntries, c.BatchApplyCh = 1024, true
	c.SnapshotThreshold = 1 << 40 // none while we measure
	w, err := wal.Open(dir, wal.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	cache, err := raft.NewLogCache(4096, w)
	if err != nil {
		return nil, err
	}
	transport, err := raft.NewTCPTransportWithLogger(addrs[id-1], nil, 3, 10*time.Second, quiet)
	if err != nil {
		return nil, err
	}
	snapshots := raft.NewDiscardSnapshotStore()
	var servers raft.Configuration
	for i, addr := range addrs {
		servers.Servers = append(servers.Servers, raft.Server{ID: raft.ServerID(strconv.Itoa(i + 1)), Address: raft.ServerAddress(addr)})
	}
	if err := raft.BootstrapCluster(c, cache, w, snapshots, transport, servers); err != nil {
		return nil, err
	}
	r, err := raft.NewRaft(c, nothing{}, cache, w, snapshots, transport)
	if err != nil {
		return nil, err
	}
	h := &hashicorpNode{raft: r, transport: transport, wal: w, led: make(chan struct{}), stop: make(chan struct{})}
	go func() {
		for {
			select {
			case leads := <-r.LeaderCh():
				if leads {
					close(h.led)
					return
				}
			case <-h.stop:
				return
			}
		}
	}()
	return h, nil
}

func (h *hashicorpNode) leading() <-chan struct{} { return h.led }

func (h *hashicorpNode) propose(ctx context.Context, _ int, data []byte) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return h.raft.Apply(data, 5*time.Second).Error()
}

func (h *hashicorpNode) close() error {
	close(h.stop)
	return errors.Join(h.raft.Shutdown().Error(), h.transport.Close(), h.wal.Close())
}

// nothing is a state machine without state.
type nothing struct{}

func (nothing) Apply(*raft.Log) any { return nil }

func (nothing) ApplyBatch(logs []*raft.Log) []any { return make([]any, len(logs)) }

func (nothing) Snapshot() (raft.FSMSnapshot, error) {
	return nil, errors.New("there is nothing to take a snapshot of")
}

func (nothing) Restore(r io.ReadCloser) error { return r.Close() }
