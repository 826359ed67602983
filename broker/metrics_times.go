package broker

import (
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// timeRows are where time goes.
var timeRows = []metric{
	{name: "teralog_request_seconds", kind: "histogram", help: "From the read that completed a request to its answer, of one in seven; of a fetch without the wait for records.", write: func(s *scrape, to *exposition, name string) {
		times := s.b.server.Times()
		for a := range times.Calls {
			if calls[wire.API(a)] != nil {
				to.histogram(name, label("api", wire.API(a).String()), &times.Calls[a])
			}
		}
	}},
	{name: "teralog_stage_seconds", kind: "histogram", help: "Parts of requests, of one in seven. admission: from the read to the handler. verify: decoding and checking a produce request. queue: until the partition takes the write. append: one write to the log, of all that waits. flush: from there to the answer, of writes that wait for the disk. reply: from the answer until the socket has it.", write: func(s *scrape, to *exposition, name string) {
		server, set := s.b.server.Times(), s.b.set.Times()
		for _, stage := range []struct {
			name string
			l    *mem.Latency
		}{
			{"admission", &server.Admission}, {"verify", &s.b.count.verify}, {"queue", &set.Queue},
			{"append", &set.Append}, {"flush", &set.Flush}, {"reply", &server.Reply},
		} {
			to.histogram(name, label("stage", stage.name), stage.l)
		}
	}},
	{name: "teralog_handover_seconds", kind: "histogram", help: "From the append of records to the answer that hands them to a consumer, of one fetch in seven, where the age is known without reading; to the millisecond. The topic without a name stands for all beyond the first hundred.", write: func(s *scrape, to *exposition, name string) {
		s.b.handovers.each(func(topic string, l *mem.Latency) { to.histogram(name, label("topic", topic), l) })
	}},
	{name: "teralog_flush_seconds", kind: "histogram", help: "How long fdatasync of a log took.", write: func(s *scrape, to *exposition, name string) {
		now := s.b.time()
		s.b.eachDir(func(path string, d *storage.Dir) {
			if d != nil {
				to.histogram(name, label("dir", path), s.b.set.Flushes(d, now).Took)
			}
		})
	}},
	{name: "teralog_flush_running_seconds", kind: "gauge", help: "How long the fsync that runs longest in the data directory has run; 0: none runs.", series: dirSeries(func(b *Broker, d *storage.Dir) float64 {
		return b.set.Flushes(d, b.time()).Running.Seconds()
	})},
	{name: "teralog_flush_waiting", kind: "gauge", help: "Logs in line for a flush.", series: dirSeries(func(b *Broker, d *storage.Dir) float64 {
		return float64(b.set.Flushes(d, b.time()).Waiting)
	})},
	{name: "teralog_unflushed_seconds", kind: "gauge", help: "Age of the oldest record that is not known to be on disk; 0: there is none.", value: func(s *scrape) float64 { return s.unflushed.Seconds() }},
	{name: "teralog_events_total", kind: "counter", help: "Events by kind, those not kept included.", series: func(s *scrape, emit func(string, float64)) {
		for k := EventStart; k < endOfKinds; k++ {
			emit(label("kind", k.String()), float64(s.b.events.count(k)))
		}
	}},
	{name: "teralog_events_kept_total", kind: "counter", help: "The number of the newest event.", value: func(s *scrape) float64 { return float64(s.b.events.newestSeq()) }},
}
