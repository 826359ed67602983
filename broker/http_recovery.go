package broker

import (
	"net/http"
	"slices"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// maxRecovered bounds each list of /recovery, inclusive; the counts say how many
// there are.
const maxRecovered = 1000

// A recoveryPage is what the last start found and did, and what is not well now.
type recoveryPage struct {
	Took        string             `json:"took"`
	Directories []recoveredDir     `json:"directories"`
	Touched     int                `json:"touched"`    // partitions that a start had to do something about
	Partitions  []recovered        `json:"partitions"` // of them
	Damaged     int                `json:"damaged"`
	Damage      []damagedRange     `json:"damage"` // known now, whoever found it
	Offline     []offlinePartition `json:"offline"`
	Scrubs      []scrubReport      `json:"scrubs"` // what looks for damage, a directory each
	Notes       []string           `json:"notes"`  // what was moved, removed or found that belongs to nobody
}

type recoveredDir struct {
	Path     string `json:"path"`
	Start    uint64 `json:"start"` // its number, 1 for the first
	Clean    bool   `json:"clean"` // the last use was ended by a stop in order
	SameBoot bool   `json:"same_boot"`
	Epochs   bool   `json:"new_epochs"` // its partitions got new leader epochs
	Error    string `json:"error,omitempty"`
}

type recovered struct {
	Topic      string         `json:"topic"`
	Partition  int32          `json:"partition"`
	Start      int64          `json:"start"`
	End        int64          `json:"end"`
	Point      int64          `json:"recovery_point"` // below it nothing was scanned
	Scanned    int64          `json:"scanned_bytes"`
	Cut        int64          `json:"cut_bytes"`
	CutAt      int64          `json:"cut_at"` // the offset due there, if something was cut
	CutBatches int            `json:"cut_batches"`
	Zeros      int64          `json:"zero_bytes"`
	Reason     string         `json:"reason,omitempty"`
	Kept       []string       `json:"quarantined,omitempty"`
	Lost       int64          `json:"lost_below"` // offsets below it were durable and are not there; 0: none
	Damaged    []offsetsRange `json:"damaged,omitempty"`
	Rebuilt    []string       `json:"rebuilt,omitempty"`
}

// An offsetsRange is the offsets from From to To, exclusive.
type offsetsRange struct {
	From int64 `json:"from"`
	To   int64 `json:"to"`
}

type damagedRange struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	offsetsRange
}

type offlinePartition struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Why       string `json:"why"`
}

// recoveryPage answers /recovery.
func (b *Broker) recoveryPage(r *http.Request) (any, error) {
	if q := askedOf(r); q.err != nil {
		return nil, q.err
	}
	p := &recoveryPage{Took: b.took.String(), Partitions: []recovered{}, Damage: []damagedRange{}, Offline: b.offline(), Scrubs: b.scrubs(), Notes: b.hosts.report()}
	p.Notes = append([]string{}, p.Notes[:min(len(p.Notes), maxRecovered)]...)
	b.eachDir(func(path string, d *storage.Dir) {
		shown := recoveredDir{Path: path}
		if err := dirError(d); err != nil {
			shown.Error = err.Error()
		}
		if d != nil {
			s := d.Start()
			shown.Start, shown.Clean, shown.SameBoot, shown.Epochs = s.Number, s.Clean, s.SameBoot, !s.Clean
		}
		p.Directories = append(p.Directories, shown)
	})
	for _, at := range b.set.Partitions() {
		if found := at.Recovery(); found.Topic != "" && found.Touched() {
			if p.Touched++; p.Touched <= maxRecovered {
				p.Partitions = append(p.Partitions, showRecovered(found))
			}
		}
		for _, d := range at.View().Log.Damage() {
			if p.Damaged++; p.Damaged <= maxRecovered {
				p.Damage = append(p.Damage, damagedRange{at.Topic(), at.ID().Partition, offsetsRange{int64(d.From), int64(d.To)}})
			}
		}
	}
	return p, nil
}

func showRecovered(r storage.RecoveryReport) recovered {
	shown := recovered{
		Topic: r.Topic, Partition: r.ID.Partition, Start: int64(r.Start), End: int64(r.End), Point: int64(r.Point),
		Scanned: r.Scanned, Cut: r.Cut, CutAt: int64(r.CutAt), CutBatches: r.CutBatches, Zeros: r.Zeros, Reason: r.Reason,
		Kept: slices.Clone(r.Kept), Lost: int64(r.Lost), Rebuilt: slices.Clone(r.Rebuilt),
	}
	for _, d := range r.Damaged {
		shown.Damaged = append(shown.Damaged, offsetsRange{int64(d.From), int64(d.To)})
	}
	return shown
}

// offline returns partitions that belong here and are not in service, and why.
func (b *Broker) offline() []offlinePartition {
	all := []offlinePartition{}
	for _, t := range b.Image().Topics() {
		for n, at := range t.Partitions {
			if at.Leader != b.config.Node || len(all) == maxRecovered {
				continue
			}
			if _, err := b.leader(wire.PartitionID{Topic: t.ID, Partition: int32(n)}); err != nil {
				all = append(all, offlinePartition{t.Name, int32(n), err.Error()})
			}
		}
	}
	return all
}
