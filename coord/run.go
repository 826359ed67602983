package coord

import "context"

// Run turns the Coord until ctx is done and every command taken is answered.
// An error wraps ErrFailed: the process must end.
func (c *Coord) Run(ctx context.Context) error {
	defer context.AfterFunc(ctx, c.stop)()
	for open := true; open; {
		c.loop.tasks, open = c.inbox.PopAll(c.loop.tasks)
		for len(c.loop.tasks) > 0 || c.loop.draft != nil {
			if _, err := c.Turn(c.o.Clock.Now()); err != nil {
				return err
			}
		}
	}
	return c.loop.err
}
