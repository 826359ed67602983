// Package repl leads partitions: it takes what clients produce into the log,
// says what is committed, answers when the acknowledgement is earned, and wakes
// the fetches that wait for more. Each partition has one replica so far, this
// node's; the epochs, counted ends and watermarks are those that more need.
//
// # The turn
//
// A partition is worked on by one goroutine at a time, the holder of its
// mailbox's turn. Whoever pushes a task into an idle partition gets the turn.
// It may do the work itself (a connection's reader, a flush that lands, a fetch
// that parks) or give it to the partition's own goroutine, the appender. Nobody
// ever waits for a turn, and nobody takes a second one while holding one.
//
//	          push                    turn                              after the turn
//	Produce ────────▶ ┌─────────┐   ┌──────────────────────────────┐
//	Await   ────────▶ │ mailbox │──▶│ stage, one Append, publish,  │──▶ flush, if one is due
//	Trim    ────────▶ └─────────┘   │ settle acks, wake, park      │
//	news: a flush landed, the       └──────────────────────────────┘
//	directory failed, a timer
//
// All writes that wait when a turn begins are appended by one call. The View is
// published before anybody is answered or woken, so that whoever hears of an
// offset can also see it.
//
// # Flushes
//
// A turn never calls fsync. When its flush falls due (flushState says when) it
// notes so, and the holder asks the directory for one of a few slots once it
// has given the turn away. The flush covers what was appended before it
// started; its result lands in the partition, whose next turn answers the acks
// it covers. In sync mode this is group commit: what comes in during one flush
// is covered by the next.
//
// If the flushes of many async partitions fall due by age at once, one sync of
// the file system stands for all of them, and they may wait for it a moment.
//
//	mode      an ack waits for
//	async     the write
//	interval  the write, and a flush if more than FlushBytes or FlushEvery
//	          would be acknowledged and not flushed
//	sync      a flush that covers it
//
// What counts towards the commit, for acks=1 and for consumers is the flushed
// offset in sync mode, the end otherwise.
//
// # Trouble
//
// A write that finds no room (mailbox, byte budget, list of acks) is refused at
// once and definitely. A full disk is a definite error too, and service resumes
// by itself. Any other failure of a write, and every failed or lost flush, ends
// the data directory for good: each of its partitions goes offline in its own
// turn, what was appended and waits gets STORAGE_ERROR, since it may or may not
// survive, and what comes later gets OFFLINE. A flush is never tried again,
// since after a failure the kernel may call pages clean that never reached the
// disk. So does any other fsync in the directory that does not come back in time,
// whoever waits for it. A write whose deadline passes while it waits is answered
// TIMEOUT and stays in the log.
//
// A panic in a turn, in a flush, or in a recovery point takes that one partition
// offline; one in a flush of many or the janitor's other work ends the directory.
//
// # The janitor
//
// Each directory has one. Once a second it lets the partitions that changed
// leave a checkpoint, makes those durable, writes them as recovery points, and
// tells the partitions, which then answer trims and unlink what no crash can
// bring back. A trim takes effect in the log only below the flushed offset.
//
// # The simulator
//
// A manual set has no goroutine: a push frees the turn, and Steps lists what
// may happen next. Only run.go starts goroutines or reads the clock.
package repl
