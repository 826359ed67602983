package coord

import (
	"context"
	"time"
)

const (
	// clusterTick is one tick of Raft's clock: an election begins when nothing
	// was heard of a leader for 10 to 20 of them.
	clusterTick = 50 * time.Millisecond
	// loneTick is when a node alone looks whether a full disk has room again.
	loneTick = time.Second
)

// Run turns the Coord until ctx is done and every command taken is answered. If
// other nodes keep the metadata, too, and this one leads, it hands that over, if
// one of them takes it within an election timeout.
// An error wraps ErrFailed: the process must end.
func (c *Coord) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.stop)()
	tick := loneTick
	if c.o.Cluster != nil {
		tick = clusterTick
	}
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		stops := c.stops.Load() // before the turn, which then sees what came before
		switch worked, err := c.Turn(c.o.Clock.Now()); {
		case err != nil:
			return err
		case worked:
			c.loop.driver.Wake() // there may be more; but the ticker has its chance
		case stops && !c.handsOver():
			return nil
		}
		select {
		case <-ticker.C:
			c.loop.driver.Tick()
		case <-c.loop.driver.Woken():
		}
	}
}
