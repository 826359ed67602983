package broker

import (
	"math"

	"github.com/teralog/teralog/storage"
)

// dirSeries returns a series with a sample for each data directory in service.
func dirSeries(value func(b *Broker, d *storage.Dir) float64) func(*scrape, func(string, float64)) {
	return func(s *scrape, emit func(string, float64)) {
		s.b.eachDir(func(path string, d *storage.Dir) {
			if d == nil || d.Failed() != nil {
				return
			}
			if v := value(s.b, d); !math.IsNaN(v) {
				emit(label("dir", path), v)
			}
		})
	}
}

// dirRows are the metrics of the data directories. A disk that failed is not
// asked for its space: it might not answer.
var dirRows = []metric{
	{name: "teralog_directory_up", kind: "gauge", help: "1 while the data directory is in service, 0 once it failed or could not be opened.", series: func(s *scrape, emit func(string, float64)) {
		s.b.eachDir(func(path string, d *storage.Dir) {
			up := 0.0
			if d != nil && d.Failed() == nil {
				up = 1
			}
			emit(label("dir", path), up)
		})
	}},
	{name: "teralog_directory_slow", kind: "gauge", help: "1 while an fsync in the data directory takes longer than flush-slow.", series: dirSeries(func(b *Broker, d *storage.Dir) float64 {
		if b.set.Slow(d) {
			return 1
		}
		return 0
	})},
	{name: "teralog_directory_free_bytes", kind: "gauge", help: "Bytes of its file system that are free for records; the reserve is not.", series: dirSeries(func(_ *Broker, d *storage.Dir) float64 {
		_, free := space(d)
		return free
	})},
	{name: "teralog_directory_total_bytes", kind: "gauge", help: "Bytes of its file system, without what that keeps back from all but root.", series: dirSeries(func(_ *Broker, d *storage.Dir) float64 {
		total, _ := space(d)
		return total
	})},
	{name: "teralog_directory_reserve_bytes", kind: "gauge", help: "Bytes held for work that must go on when the disk is full; less than the setting says that it was needed.", series: dirSeries(func(_ *Broker, d *storage.Dir) float64 {
		n, err := d.Reserved()
		if err != nil {
			return math.NaN()
		}
		return float64(n)
	})},
}

// space returns the size and the free bytes of a directory's file system, NaN if
// it does not say.
func space(d *storage.Dir) (total, free float64) {
	t, f, err := d.FS().Space(d.Path())
	if err != nil {
		return math.NaN(), math.NaN()
	}
	return float64(t), float64(f)
}
