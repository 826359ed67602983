// Package coord holds what the cluster knows of itself: topics, where their
// partitions lie, leader epochs, blocks of producer ids.
//
// Handle, then replay. A command is handled against the newest state and
// yields records or an error; it changes nothing. The records of all commands
// that waited are appended to the metadata log as one entry, and only replaying
// an entry changes state. Live traffic, recovery and tests therefore run the
// same code, and equal logs give equal state.
//
//	Submit ─▶ mailbox ─▶ one Turn: handle ─▶ records ─▶ replay into a draft ─▶ append
//	                     the next: fsync ─▶ the draft becomes the Image ─▶ answers
//
// Nothing is answered, and no reader sees anything, before the fsync that makes
// it durable. While a flush runs nothing is appended. So a valid entry after
// bad bytes proves that those bytes were durable once: they are damaged, not
// torn, and the node refuses to start.
//
// The metadata log lies in metadata/ of the first data directory, in the format
// of every partition log (topic id 1, partition 0). It is the log of a Raft
// cluster of one: an entry is one batch of one record, its index is its offset
// plus 1, its term the batch's leader epoch. Beside it stand
//
//	vote                term and vote, in two slots written in turn
//	<index>.snapshot    the whole state before that offset; the newest two are kept
package coord
