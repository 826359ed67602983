// Package coord holds what the cluster knows of itself: topics, where their
// partitions lie, leader epochs, blocks of producer ids.
//
// Handle, then replay. A command is handled against the newest state and
// yields records or an error; it changes nothing. The records of all commands
// that waited are proposed to Raft as one entry, and only replaying a committed
// entry changes state. Live traffic, recovery and tests therefore run the same
// code, and equal logs give equal state.
//
//	Submit ─▶ mailbox ─▶ one Turn: handle ─▶ records ─▶ replay into a draft ─▶ propose ─▶ append, fsync
//	                     the next: committed ─▶ the draft becomes the Image ─▶ answers
//
// Nothing is answered, and no reader sees anything, before it is committed. One
// entry is under way at a time, so each is handled against the newest state.
//
// The metadata log lies in metadata/ of the first data directory, in the format
// of every partition log (topic id 1, partition 0). It is a raft.Store: an entry
// is one batch of one record, its index is its offset plus 1, its term the
// batch's leader epoch. A node alone is a cluster of one. Beside the log stand
//
//	vote                term and vote, in two slots written in turn
//	<index>.snapshot    the state up to that index; the newest two are kept
//	damaged, restart    marks (mark.go)
//
// Nothing is appended while a flush runs, and each batch says how many before it
// share its flush. So a good batch behind bad bytes proves whether those were
// durable once: then they are damaged, else torn. With damage a node alone
// refuses to start; one of several takes no part until a leader has replaced
// what it lost.
//
// A snapshot that came from a leader decides by its rename: then the log is made
// to begin at its end.
package coord
