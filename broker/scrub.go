package broker

import "github.com/teralog/teralog/repl"

// A scrubReport is what the scrub of one data directory does. Times are in ms
// since 1970, 0 for never; bytes are exact counts.
type scrubReport struct {
	Dir        string `json:"dir"`
	Rate       int64  `json:"bytes_a_second"` // at most; 0: there is no scrub
	Began      int64  `json:"pass_began"`     // the pass that goes on, or went on last
	Ended      int64  `json:"pass_ended"`     // 0 while it goes on
	Read       int64  `json:"pass_bytes"`     // of it
	Passes     int64  `json:"passes"`         // ended since the start
	Unreadable int64  `json:"unreadable"`     // places the disk could not read since the start
}

// scrubs returns what the scrub of each directory does.
func (b *Broker) scrubs() []scrubReport {
	all := []scrubReport{}
	for _, d := range b.set.DirStats() {
		all = append(all, scrubReport{Dir: d.Dir.Path(), Rate: b.config.ScrubRate, Began: d.Scrub.Began, Ended: d.Scrub.Ended,
			Read: d.Scrub.Bytes, Passes: d.ScrubPasses, Unreadable: d.ScrubFailed})
	}
	return all
}

// diskSeries returns a series with a sample for each data directory.
func diskSeries(value func(*repl.DirStats) int64) func(*scrape, func(string, float64)) {
	return func(s *scrape, emit func(string, float64)) {
		for _, d := range s.b.set.DirStats() {
			emit(label("dir", d.Dir.Path()), float64(value(&d)))
		}
	}
}

// diskRows are the metrics of what goes on between memory and the disks beside
// requests and flushes.
var diskRows = []metric{
	{name: "teralog_dirty_bytes", kind: "gauge", help: "Bytes appended and not known to be on the disk; dirty-limit bounds them.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Dirty })},
	{name: "teralog_writeback_bytes_total", kind: "counter", help: "Bytes the disk was told to write before a flush was due.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Told })},
	{name: "teralog_cold_read_bytes_total", kind: "counter", help: "Bytes brought into memory for readers far behind.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Cache.Cold })},
	{name: "teralog_cache_dropped_bytes_total", kind: "counter", help: "Bytes let go of from memory behind such readers.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Cache.Dropped })},
	{name: "teralog_scrub_bytes_total", kind: "counter", help: "Bytes of sealed segments that the scrub has verified.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Cache.Scrubbed })},
	{name: "teralog_scrub_passes_total", kind: "counter", help: "Passes of the scrub that have ended.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.ScrubPasses })},
	{name: "teralog_scrub_unreadable_total", kind: "counter", help: "Places that the disk could not read when the scrub came by.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.ScrubFailed })},
	{name: "teralog_scrub_pass_began_seconds", kind: "gauge", help: "When the pass of the scrub began that goes on, or went on last, since 1970; 0: there was none.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Scrub.Began / 1000 })},
	{name: "teralog_scrub_pass_ended_seconds", kind: "gauge", help: "When it ended; 0 while it goes on.",
		series: diskSeries(func(d *repl.DirStats) int64 { return d.Scrub.Ended / 1000 })},
}
