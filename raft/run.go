package raft

import (
	"context"
	"time"
)

// Run turns the driver until ctx is done or the store fails, which is the error
// then. It is the caller of Turn; tick is how long one tick is.
func (d *Driver) Run(ctx context.Context, tick time.Duration) error {
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	for {
		worked, err := d.Turn()
		if err != nil {
			return err
		}
		if worked {
			d.inbox.wake() // there may be more; but the ticker has its chance
		}
		select {
		case <-ctx.Done():
			d.stop(ErrClosed)
			return nil
		case <-ticker.C:
			d.Tick()
		case <-d.inbox.ready:
		}
	}
}
