package coord

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
)

const (
	// snapshotBytes is how many bytes of entries lie between two snapshots, if
	// not a quarter of the last one is more.
	snapshotBytes = 4 << 20

	// maxEntryBytes bounds an entry: it has to go into one batch.
	maxEntryBytes = 8 << 20
)

// bootstrap begins the metadata if there is none and this node is the one to do
// it.
func (c *Coord) bootstrap(m *metalog, self raft.Peer) (err error) {
	if !m.fresh {
		return nil
	}
	first := raft.Members{Voters: []raft.Peer{self}}
	if c.o.Cluster != nil {
		if first, err = c.o.Cluster.First(); err != nil || len(first.Voters) == 0 {
			return err
		}
	}
	return raft.Bootstrap(m, first)
}

// drive starts Raft on what the log holds.
func (c *Coord) drive(self raft.Peer, cluster raft.UUID, now mem.Now) (err error) {
	c.loop.now = now
	var transport raft.Transport = nobody{}
	if c.o.Cluster != nil {
		transport = c.o.Cluster.Transport
	}
	config := raft.Config{Cluster: cluster, Self: self, Seed: binary.LittleEndian.Uint64(self.Incarnation[:]), MaxEntryBytes: maxEntryBytes}
	c.loop.driver, err = raft.NewDriver(config, c.loop.log, transport, machine{c}, raft.Options{
		SnapshotBytes: snapshotBytes, SnapshotEntries: c.o.SnapshotEvery,
	})
	if err == nil {
		c.report()
	}
	return err
}

// lead turns Raft until this node, if it is the only one, leads in a new term
// and has applied all there is.
func (c *Coord) lead(self raft.Peer, now mem.Now) error {
	if c.o.Cluster != nil {
		return nil
	}
	if m := c.loop.driver.Status().Members; len(m.Outgoing) > 0 || !slices.Equal(m.Voters, []raft.Peer{self}) {
		return fmt.Errorf("the metadata log is kept by the nodes %v, this is node %v alone", m.Voters, self)
	}
	const turns = 100 // more than an election timeout, and what follows it
	for range turns {
		if s := c.loop.driver.Status(); s.Leads && s.Applied == s.Last {
			return nil
		}
		c.loop.driver.Tick()
		if _, err := c.Turn(now); err != nil {
			return err
		}
	}
	if full := c.loop.log.lastFull(); full != nil {
		return full
	}
	return fmt.Errorf("no term is left after %d", raft.MaxTerm)
}

// nobody is the transport of a node alone.
type nobody struct{}

// Send is of raft.Transport.
func (nobody) Send([]raft.Message) {}
