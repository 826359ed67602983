// Package storage keeps partitions on disk: segments, their indexes, recovery
// and retention of one log, and the data directory that holds many. It knows
// offsets and epochs, not leaders or watermarks: how far a reader may see is an
// argument.
//
// # Layout
//
//	<data>/topics/<topic>/partition-0003/
//	  00000000000000000000.log        batches back to back, named by base offset
//	  00000000000000000000.index      an entry every 4 KiB of log
//	  00000000000000000000.timeindex  the same places, by two clocks
//	  00000000000000838860.log …
//	  00000000000000838860.producers  producer state at that offset
//	  leader-epoch-checkpoint         each epoch and its first offset
//	  partition-manifest              what partition this is
//	<data>/  lock identity siblings running clean failed reserve recovery-points scrub
//	         quarantine/ orphans/ deleted/
//
// The last segment is the active one; all others are sealed: never written
// again, only removed whole. No file is reused.
//
// # A data directory
//
//	identity         whose it is: node, cluster, its own id; written once
//	siblings         in the node's first directory: the ids of all it has used
//	running          this start's number and the kernel's boot id
//	clean            a stop in order: the running start's number, every log's end
//	failed           an fsync failed: the page cache is not to be believed
//	recovery-points  every log's recovery point, sorted by partition
//	scrub            how far the scrub has come; without it a pass begins anew
//	reserve          64 MiB for metadata, starts, deletes and trims on a full disk
//	deleted/         partitions to be unlinked; orphans/ those nobody names
//	quarantine/      bytes that recovery cut
//	events.jsonl     the broker's, in the first directory; nothing depends on it
//
// Each of the first seven, a manifest and leader-epoch-checkpoint is replaced
// whole: temporary, fsync, rename, fsync of the folder (checkpoint.go). Magic,
// version, length and CRC stand before the body; one that does not fit them all
// is not believed in any part. What that costs: an identity, the start; a
// manifest, that partition; clean or running, the stop counts as unclean and the
// machine as rebooted; recovery-points, logs are scanned from their start.
//
//	running  clean of that start  failed  boot id   means
//	yes      yes                  no      any       clean: logs are where it says
//	yes      no                   no      equal     a process died: unsynced bytes live
//	yes      else                         else      unsynced bytes may be lost
//
// The last case stands in running until Recovered, so that a death during
// recovery does not look like the second one.
//
// The manifest is the last file of a new partition and the folder's name in
// topics/<topic> is durable before it, so there is a partition or there is none.
// Delete and Orphan are one rename, the new parent synced before the old one.
//
// # Indexes
//
//	.index      | rel u32 | pos u32 |
//	.timeindex  | maxTime i64 | maxAppend i64 | rel u32 | 0 u32 |
//	            \_ greatest among the batches BEFORE the one named
//
// Both have an entry for the same batches: the first of the segment, then each
// that starts at least an interval behind the last one named. rel is the offset
// less the segment's base, pos the position in .log. A look-up takes the last
// entry at or before its target and walks batch headers from there.
//
// An append makes no system call for an entry. Entries gather in the heap, in
// the tail of the view; every 512th, whole pages of both files are written, the
// rest at each recovery point, at the seal and at a stop. Sealed, both files end
// in a trailer that ties them to the .log beside them (see trailer in index.go).
// The files are mapped for reading only, at full length, when first looked at. None
// is ever shortened or overwritten: where the log is cut they are made anew
// under another inode. An index is always replaceable by a walk over the
// headers, so a full disk, a fault in a mapped page or a CRC that does not fit
// costs time, never an answer.
//
// # Who may do what
//
// A Log has one owner. It appends, publishes an immutable View after each
// append, and decides on rolls, truncation and retention. Readers load the view
// and need nothing else. Flush and Checkpoint.Run fsync beside the owner's work.
// A segment's files close when the last Range over them is done, even after the
// segment was deleted.
//
// # Order of what becomes durable
//
//   - A flush: .log files oldest first, then the folder if a name in it is new.
//   - A recovery point: index pages, then a flush, fsync of the indexes, the
//     producer snapshot, the epochs, the folder; then recovery-points itself.
//     A snapshot comes after the log, else it could speak of lost batches.
//   - Trim and retention: the new start in recovery-points, then the unlink.
//   - Truncation: later segments, last one first, then the cut, then fsyncs;
//     only then is a new batch written where the old ones were.
//
// # Recovery
//
// The recovery point is the offset below which every byte was fsynced before
// the point was written.
//
//  1. Lock the directory; refuse another node's or cluster's, and an empty one
//     where partitions lie (dir.go).
//  2. Read clean and running, write a new running, remove clean, fsync (dir.go).
//  3. Remove temporaries, indexes without a log, and segments below the start.
//     Segments below the recovery point are adopted by their trailers, without a
//     look at their batches. After a clean stop the last batch's header is
//     compared and that is all; another one in its place is damage. Else fsync
//     what reaches above the point, drop it from memory, and read it batch by
//     batch: header, CRC, partition, offset order, epoch order.
//  4. Bad bytes above the point are a torn tail: copied into quarantine, later
//     segments removed, last one first, the file cut, fsynced. Zeros at the end
//     are removed and not kept; in an always-synced log they are space that was
//     allocated ahead. In an always-synced log bad bytes are damage
//     instead, if a good batch behind them was appended after a flush that
//     covered them (synced.go).
//  5. Bad or missing bytes below the point are damage. Nothing is cut: the range
//     is marked, the rest is served, its offsets are never given out again.
//  6. Indexes that trailer or recovery point vouch for stay; any other is made
//     again from the headers of its segment, which is the only reading below the
//     point besides the batches behind the newest producer snapshot. Epochs
//     behind the end move to it; producers are replayed from the snapshot on.
//  7. Fsync what was kept, cut and made again. What is served from then on
//     outlives the next power cut.
//  8. RecoveryReport says what was done (dir.go collects them).
//
// Each step leaves a log from which the same recovery gives the same result.
package storage
