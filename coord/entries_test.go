package coord

import (
	"errors"
	"slices"
	"testing"

	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// TestEntriesOnDisk reads the metadata log as anybody reads a log: one entry is
// one batch of one record, its index is the offset + 1, its term the leader
// epoch, and the record's key says which kind it is.
func TestEntriesOnDisk(t *testing.T) {
	disk := storage.NewMemFS(1)
	k, err := keep(disk, "one")
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(raft.Bootstrap(k, three), k.SetVote(raft.Vote{Term: 1<<31 - 1}), k.Append([]raft.Entry{
		{Index: 2, Term: 2, Kind: raft.NoOp},
		{Index: 3, Term: 2, Kind: raft.Command, Data: []byte("a command")},
		{Index: 4, Term: 1<<31 - 1, Kind: raft.Command, Data: []byte("the last term")},
	}), k.Sync())
	if err != nil {
		t.Fatal(err)
	}
	type entry struct {
		offset wire.Offset
		epoch  wire.Epoch
		key    string
		value  string
	}
	members := string(appendMembers(nil, raft.AppendMembers(nil, three)))
	want := []entry{{0, 1, "\x02", members}, {1, 2, "\x00", ""}, {2, 2, "\x01", "a command"}, {3, 1<<31 - 1, "\x01", "the last term"}}

	var got []entry
	var d wire.Decoder
	defer d.Release()
	for b, err := range wire.Batches(content(t, disk, metadataFiles(t, disk, ".log")[0])) {
		if err == nil {
			err = b.Verify()
		}
		if err != nil || b.Topic() != 1 || b.Partition() != 0 || b.Count() != 1 {
			t.Fatalf("after %d entries: topic %d, partition %d, %d records: %v", len(got), b.Topic(), b.Partition(), b.Count(), err)
		}
		if err := b.Records(&d, func(r *wire.Record) error {
			got = append(got, entry{b.BaseOffset(), b.LeaderEpoch(), string(r.Key), string(r.Value)})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the log holds\n%+v, want\n%+v", got, want)
	}
}
