package broker

import (
	"bytes"
	"encoding/json"
	"math"
	"net/http"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// maxRecoveryLines bounds what the overview tells of the last start, inclusive.
const maxRecoveryLines = 50

// maxShownEvents bounds the events in the overview, and maxEventBytes their
// lines, inclusive.
const (
	maxShownEvents = 20
	maxEventBytes  = 32 << 10
)

// An overview says whether a broker is well and what it does. Who asks twice
// has the rates: counters never fall while the process lives.
type overview struct {
	Now     int64  `json:"now"`  // ms, on a clock of its own: what lies between two answers
	Wall    int64  `json:"wall"` // ms since the epoch
	Node    int32  `json:"node"`
	Cluster string `json:"cluster"`
	Version string `json:"version"`
	Address string `json:"address"` // told to clients

	Ready   bool     `json:"ready"`
	Reasons []string `json:"reasons"` // why not, or what is not well though ready

	Start   uint64 `json:"start"`   // its number, of the directory with the metadata
	Started int64  `json:"started"` // when the process began, ms since the epoch

	Topics     int `json:"topics"`
	Partitions int `json:"partitions"`
	Offline    int `json:"offline"` // partitions out of service
	Queued     int `json:"queued"`  // tasks in mailboxes

	Counters    shownCounters     `json:"counters"`
	Latency     shownLatency      `json:"latency"` // of produce requests, of one in eight
	Limits      []shownLimit      `json:"limits"`
	Refused     []shownRefusal    `json:"refused"`
	Directories []shownDirectory  `json:"directories"`
	Recovery    []string          `json:"recovery"`              // of the last start
	Events      []json.RawMessage `json:"events"`                // the newest, as at /events, the oldest of them first
	RecordsOff  string            `json:"records_off,omitempty"` // why the asker may not see records
}

type shownCounters struct {
	Records  int64 `json:"records"`   // produced
	BytesIn  int64 `json:"bytes_in"`  // of batches produced
	BytesOut int64 `json:"bytes_out"` // of batches fetched
	Requests int64 `json:"requests"`
}

// A shownLatency counts durations since the process began: Counts[i] of them took
// at most Bounds[i] seconds, and the last of Counts is all.
type shownLatency struct {
	Bounds []float64 `json:"bounds"`
	Counts []int64   `json:"counts"`
}

func showLatency(l *mem.Latency) (s shownLatency) {
	for _, bound := range mem.LatencyBounds {
		s.Bounds = append(s.Bounds, bound.Seconds())
	}
	counts, _ := l.Read()
	all := int64(0)
	for _, n := range counts {
		all += n
		s.Counts = append(s.Counts, all)
	}
	return s
}

// A shownLimit is something of which only so much may be used.
type shownLimit struct {
	Name string  `json:"name"`
	Unit string  `json:"unit"` // "bytes", or ""
	Used float64 `json:"used"`
	Max  float64 `json:"max"`
}

// A shownRefusal counts what was not let in since the process began.
type shownRefusal struct {
	Why   string `json:"why"`
	Count int64  `json:"count"`
}

type shownDirectory struct {
	Path       string `json:"path"`
	Partitions int    `json:"partitions"` // placed here
	Total      int64  `json:"total"`      // bytes of the file system, 0: not known
	Free       int64  `json:"free"`
	Warn       int    `json:"warn"`            // per cent in use at which the operator is told,
	Refuse     int    `json:"refuse"`          // and nothing is produced to it; 100: never
	Error      string `json:"error,omitempty"` // why it is offline
	Start      uint64 `json:"start"`           // number of this start
	Clean      bool   `json:"clean"`           // it followed a clean stop
}

// overview answers /api/overview.
func (b *Broker) overview(r *http.Request) (any, error) {
	if q := askedOf(r); q.err != nil {
		return nil, q.err
	}
	now, s := b.time(), newScrape(b)
	o := &overview{
		Now: now.Mono.Milliseconds(), Wall: now.Wall,
		Node: int32(b.config.Node), Cluster: b.Cluster().String(), Version: wire.Software, Address: b.address(b.config.Listen == ""),
		Start: b.dirs[0].Start().Number, Started: now.Wall - now.Mono.Milliseconds(), Events: []json.RawMessage{},
		Topics: len(b.Image().Topics()), Partitions: b.partitions(), Queued: s.queued.Queued,
		Counters: shownCounters{
			Records: b.count.records.Load(), BytesIn: b.count.bytes.Load(), BytesOut: b.count.fetched.Load(), Requests: s.server.Requests,
		},
		Latency: showLatency(&b.server.Times().Calls[wire.APIProduce]),
		Limits:  []shownLimit{}, Refused: shownRefusals(s), Directories: b.shownDirectories(), Reasons: []string{}, Recovery: append([]string{}, b.Recovery()...),
	}
	if over := len(o.Recovery) - maxRecoveryLines; over > 0 {
		o.Recovery = o.Recovery[over:]
	}
	for _, l := range shownLimits(s) {
		if !math.IsNaN(l.Used) && !math.IsNaN(l.Max) { // else not known here
			o.Limits = append(o.Limits, l)
		}
	}
	lines, _ := b.events.newest(maxEventBytes)
	for line := range bytes.Lines(lines) {
		o.Events = append(o.Events, json.RawMessage(line))
	}
	o.Events = o.Events[max(len(o.Events)-maxShownEvents, 0):]
	o.judge(s)
	if err := b.mayRead(r); err != nil {
		o.RecordsOff = err.(*wire.Error).Message
	}
	return o, nil
}

// judge says whether the broker is well, from what o has so far.
func (o *overview) judge(s *scrape) {
	is := s.b.readiness(s)
	o.Ready, o.Reasons = is.Ready, is.Reasons
	o.Offline = max(o.Partitions-s.serving, 0)
}

// partitions returns how many partitions the metadata places on this node.
func (b *Broker) partitions() (n int) {
	for _, d := range b.dirs {
		n += b.Image().Hosted(d.ID())
	}
	return n
}

func shownLimits(s *scrape) []shownLimit {
	b := s.b
	return []shownLimit{
		{"connections", "", float64(s.server.Conns), float64(b.config.MaxConnections)},
		{"memory of requests", "bytes", float64(b.server.Budget.Used()), float64(b.server.Budget.Max())},
		{"file descriptors", "", openFiles(s), maxFiles(s)},
		{"fetches that wait", "", float64(b.lot.count()), maxParked},
		{"look-ups that wait", "", float64(len(b.work)), maxWork},
	}
}

func shownRefusals(s *scrape) []shownRefusal {
	all := []shownRefusal{
		{"connections: damaged frames", s.server.BadFrames},
		{"connections: silent too long", s.server.Timeouts},
		{"requests: a fault of the broker", s.server.Panics},
	}
	for l := wire.NoLimit + 1; l < wire.NumLimits; l++ {
		if n := s.b.refusals[l].n.Load(); n > 0 {
			all = append(all, shownRefusal{"limit: " + l.String(), n})
		}
	}
	return all
}

func (b *Broker) shownDirectories() (all []shownDirectory) {
	b.eachDir(func(path string, d *storage.Dir) {
		if d == nil {
			all = append(all, shownDirectory{Path: path, Error: dirError(d).Error()})
			return
		}
		s := shownDirectory{Path: path, Partitions: b.Image().Hosted(d.ID()), Start: d.Start().Number, Clean: d.Start().Clean, Warn: b.config.Disk.Warn, Refuse: b.config.Disk.Refuse}
		if err := d.Failed(); err != nil {
			s.Error = err.Error() // its disk may not answer any more
		} else if total, free, err := d.FS().Space(path); err == nil {
			s.Total, s.Free = total, free
		}
		all = append(all, s)
	})
	return all
}
