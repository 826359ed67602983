// Package raft is consensus: a log that a majority agrees on, for the control
// plane of several nodes.
//
// A Node is the algorithm alone, a machine that is turned: no clock, no disk, no
// network, no goroutine. A Driver turns it: it persists, sends and applies, in
// the order that the promises need. Only run.go has a loop and a ticker.
//
// # The caller's duties, in their order
//
// Driver does these; they are what Ready means:
//
//  1. Send Now. A leader's appends and heartbeats may leave before its own log
//     is durable, since its vote is, and it counts itself among those who hold
//     an entry only when Advance says that it is durable.
//  2. Stage the chunks of a snapshot; install it, in the store and the machine.
//  3. Make vote and entries durable, in one fsync.
//  4. Send After: whatever promises something that 3 made durable.
//  5. Apply what is committed, then answer those who wait for it.
//  6. Advance.
//
// # What holds
//
// One leader a term, who has all that was committed before; equal entries at
// equal index and term, and before it; one vote a term, whatever restarts; only
// an entry of the leader's own term commits, those before it with it; a change
// of the voters goes through a joint membership, one at a time, none before an
// entry of the leader's own term is committed. Elections go through a pre-vote,
// voters stick to a leader they hear, a leader that hears no majority for an
// election timeout steps down. Voters stand; a learner does only after it had to
// refuse a candidate because its own log is newer, and if it wins it leads until
// an entry of its own is committed. Reads ask a majority first; there are no
// leases.
//
// A member is a node id and an incarnation of its disk. A wiped node is a
// stranger until it is added. A node that finds entries damaged that it may
// have acknowledged does not vote, does not stand and does not count towards a
// commit until a leader has replaced them: damaged is not missing.
//
// # What a caller may rely on, and what not
//
// A proposal ends committed and applied, or with an error: ErrIndefinite says
// that it may still take effect, all others that it never will. The log does
// not know requests: a machine that must apply each once keeps the request ids
// in its state. Queues, windows, entries, appends and chunks are bounded by
// Config and Options. The entries since the snapshot before the last one are in
// memory; an installed snapshot and the machine's state are, too, as a whole,
// but on its way between nodes a snapshot takes one chunk.
//
// A store that fails ends the driver; the node goes on after a restart, from
// what the store holds then. A full disk holds the driver up: it does nothing
// else until there is room again, so that others elect a leader meanwhile.
// Fsync and apply run in one turn: while an fsync runs, what comes waits, and
// goes into the next one together. There is no asynchronous completion that
// could come late.
//
// # What is not here
//
// The log on disk and the transport belong to other rooms: coord has the Store,
// broker the Transport; MemStore is for tests. A follower does not forward
// proposals or reads: it refuses, and Status says who leads. A node that found
// damage and was ahead of its leader's log at that time takes part again only
// with the next entry, or term. A member that is taken out does not hear that
// the change was committed; it asks for pre-votes for ever, which nobody grants
// who hears a leader. A leader takes any voters it is asked for, also damaged or
// empty ones: if it dies before they have the log, nobody can be elected.
// A member that needs a snapshot has to get it, and what came after, before two
// newer ones are taken, that is while the log grows by half of the state's size:
// under more load than that it begins again, until there is less.
//
// # How it is tested
//
// The simulator of room sim (`teralog sim raft`) runs whole clusters of drivers
// from seeds, over MemStore and over coord's store, and checks after every event;
// the mutants (build tag `mutants`) are bugs that it must find. The scripts in
// testdata tell single stories:
//
//	figure7 figure8 figure8e          the Raft paper's
//	prevote sticky cutoff bridge      who may depose a leader, and when it goes itself
//	transfer                          leadership handed over
//	reads ownentry                    what a read has to wait for
//	membership leaves standin         changes of the members; the leader is taken out
//	wiped disks                       lost disks
//	damaged mended                    entries that cannot be read any more
//	powercut pausedmajority           what was acknowledged outlives it
//	full failing                      disks without room, or that fail
//	snapshot secondsnapshot           members that lag behind
//
// faults_test.go has what messages alone can show, such as a write that is done
// late, or an old incarnation that speaks; bounds_test.go an hour without a
// majority and a member that joins under load. That networks which stay broken in
// part have a leader is a test of room sim, and that wall clocks change nothing
// one of coord.
package raft
