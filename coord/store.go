package coord

import (
	"log/slog"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/raft"
	"github.com/teralog/teralog/storage"
)

// OpenStore opens what Raft must not forget in metadata/ of a data directory, or
// makes it if the directory is empty, for a node that is one of several: what is
// damaged here another one can mend. It belongs to one goroutine.
func OpenStore(dir *storage.Dir, self raft.Peer, say *slog.Logger, now mem.Now) (raft.Store, error) {
	m, err := openMetalog(dir, self, false, say, now)
	if err != nil {
		return nil, err
	}
	if err := dir.Recovered(); err != nil {
		m.abandon()
		return nil, err
	}
	return m, nil
}
