package coord

import (
	"log/slog"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
)

// OpenStore opens what a node of several keeps for Raft in a data directory, or
// makes it if that is empty, for those who turn Raft without a Coord. It is used
// by one goroutine and needs no end but that of the directory.
func OpenStore(dir *storage.Dir, self raft.Peer, say *slog.Logger, now mem.Now) (raft.Store, error) {
	m, err := openMetalog(dir, self, false, say, now)
	if err != nil {
		return nil, err
	}
	return m, nil
}
