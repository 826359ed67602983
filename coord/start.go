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

// start turns Raft until this node, the only one, leads in a new term and has
// applied all there is.
func (c *Coord) start(self raft.Peer, cluster raft.UUID, now mem.Now) error {
	c.loop.now = now
	config := raft.Config{Cluster: cluster, Self: self, Seed: binary.LittleEndian.Uint64(self.Incarnation[:]), MaxEntryBytes: maxEntryBytes}
	var err error
	c.loop.driver, err = raft.NewDriver(config, c.loop.log, nobody{}, machine{c}, raft.Options{
		SnapshotBytes: snapshotBytes, SnapshotEntries: c.o.SnapshotEvery,
	})
	if err != nil {
		return err
	}
	if m := c.loop.driver.Status().Members; len(m.Outgoing) > 0 || !slices.Equal(m.Voters, []raft.Peer{self}) {
		return fmt.Errorf("the metadata log is kept by the nodes %v, this is node %v", m.Voters, self)
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

func (nobody) Send([]raft.Message) {}
