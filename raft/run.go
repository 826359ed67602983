package raft

import (
	"context"
	"time"
)

// Woken has a token while there may be something to do, for a loop that calls
// Turn itself; Wake puts one there.
func (d *Driver) Woken() <-chan struct{} { return d.inbox.ready }

// Wake makes a loop turn once more. It may be called from anywhere.
func (d *Driver) Wake() { d.inbox.wake() }

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
			d.Wake() // there may be more; but the ticker has its chance
		}
		select {
		case <-ctx.Done():
			d.Close()
			return nil
		case <-ticker.C:
			d.Tick()
		case <-d.inbox.ready:
		}
	}
}
