package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/teralog/teralog/wire"
)

// limits returns all limits in the order of the report.
func limits() []limit {
	var all []limit
	for _, add := range [][]limit{streamLimits(), produceLimits(), consumeLimits(), syncLimits(), diskLimits(), processorLimits()} {
		all = append(all, add...)
	}
	return all
}

func scaled(bytes, scale float64) int64 { return int64(bytes * scale) }

func streamLimits() (all []limit) {
	for _, one := range []struct{ write, lowat int }{{16 << 10, 0}, {64 << 10, 0}, {256 << 10, 0}, {1 << 20, 0}, {1 << 20, 256 << 10}} {
		name := fmt.Sprintf("writes of %s", sized(one.write))
		if one.lowat > 0 {
			name += ", RCVLOWAT " + sized(one.lowat)
		}
		all = append(all, limit{group: "loopback TCP", name: name, numbers: rate, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
			return probeStream(ctx, one.write, one.lowat, scaled(8e8, scale))
		}})
	}
	return all
}

func sized(n int) string { return wire.FormatSize(int64(n)) }

// A shape of produce: 16KiB x 16 are 16 batches of 16 KiB in flight.
type produceShape struct{ batch, window int }

func (s produceShape) String() string { return fmt.Sprintf("%s x %d", sized(s.batch), s.window) }

var produceShapes = []produceShape{{16 << 10, 16}, {64 << 10, 8}, {1 << 20, 3}}

// produceLimits are receiving with CRC and one pwrite a read: first of ready
// batches, then of batches that the client builds record by record.
func produceLimits() (all []limit) {
	const bytes = 6e8
	add := func(s produceShape, record int, recycled bool) {
		one := limit{group: "receive, check, one pwrite a read", numbers: rate, newBytes: 1.1 * bytes}
		one.name = s.String()
		switch {
		case record > 0:
			one.name += fmt.Sprintf(", records of %s", sized(record))
		case recycled:
			one.name += ", same pages"
			one.newBytes = 0
		}
		t := task{Batch: s.batch, Record: record, Window: s.window, Conns: 1, Recycled: recycled}
		one.run = func(ctx context.Context, dir string, scale float64) (Round, error) {
			t.Dir, t.Bytes = dir, scaled(bytes, scale)
			return produce(ctx, "produce server", t)
		}
		all = append(all, one)
	}
	for _, s := range produceShapes {
		add(s, 0, false)
	}
	for _, s := range produceShapes {
		add(s, 0, true)
	}
	for _, record := range []int{100, 1 << 10} {
		for _, s := range produceShapes {
			add(s, record, false)
		}
	}
	return all
}

func consumeLimits() (all []limit) {
	add := func(name, server string, t task, bytes float64) {
		all = append(all, limit{group: "cached file to a socket", name: name, numbers: rate, run: func(ctx context.Context, dir string, scale float64) (Round, error) {
			t.Dir, t.Bytes = dir, scaled(bytes, scale)
			return consume(ctx, server, t)
		}})
	}
	servers := []struct{ name, side string }{{"sendfile", "consume server"}, {"pread, write", "consume server, copying"}}
	for _, fetch := range []int{64 << 10, 1 << 20} {
		for _, s := range servers {
			add(fmt.Sprintf("%s, %s", s.name, sized(fetch)), s.side, task{Batch: fetch, Record: 100, Conns: 1, Unchecked: true}, 1.5e9)
		}
	}
	for _, record := range []int{100, 1 << 10} {
		for _, s := range servers {
			add(fmt.Sprintf("%s, 1MiB, records of %s", s.name, sized(record)), s.side, task{Batch: 1 << 20, Record: record, Conns: 1}, 1.5e9)
		}
	}
	add("sendfile, 1MiB, records of 100, 10 readers", "consume server", task{Batch: 1 << 20, Record: 100, Conns: 10}, 1.5e9)
	return all
}

func syncLimits() (all []limit) {
	for _, one := range []struct{ size, n int }{{4 << 10, 600}, {64 << 10, 600}, {1 << 20, 200}} {
		all = append(all, limit{group: "fdatasync", name: fmt.Sprintf("append of %s", sized(one.size)), numbers: quantile, run: func(ctx context.Context, dir string, scale float64) (Round, error) {
			return probeSync(ctx, dir, one.size, max(1, int(float64(one.n)*scale)))
		}})
	}
	const bytes = 2e8
	for _, s := range produceShapes {
		all = append(all, limit{group: "fdatasync", name: fmt.Sprintf("receive, check, pwrite, %v", s), numbers: rate, newBytes: bytes, run: func(ctx context.Context, dir string, scale float64) (Round, error) {
			return probeSyncProduce(ctx, dir, s.batch, 100, s.window, 1, scaled(bytes, scale))
		}})
	}
	return all
}

func diskLimits() []limit {
	const written, reread = 2 << 30, 1 << 30
	return []limit{{group: "disk", name: "buffered, write-back each 16MiB", numbers: rate, newBytes: written, run: func(ctx context.Context, dir string, scale float64) (Round, error) {
		return probePaced(ctx, dir, scaled(written, scale))
	}}, {group: "disk", name: "fdatasync, drop, read and CRC", numbers: rate, newBytes: reread, run: func(ctx context.Context, dir string, scale float64) (Round, error) {
		return probeReread(ctx, dir, scaled(reread, scale))
	}}}
}

func processorLimits() []limit {
	return []limit{{group: "processor", name: "CRC-32C of 64KiB, cached", numbers: rate, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
		return probeCRC(ctx, true, scaled(8e9, scale))
	}}, {group: "processor", name: "CRC-32C from memory", numbers: rate, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
		return probeCRC(ctx, false, scaled(2e9, scale))
	}}, {group: "processor", name: "hand-off to a goroutine and back", numbers: median, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
		return probeHandOff(ctx, int(scaled(1e6, scale)))
	}}, {group: "processor", name: "longest pause of a thread that only runs", numbers: longest, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
		return probePauses(ctx, time.Duration(scaled(2e9, scale)))
	}}, {group: "processor", name: "round trip of 100 bytes", numbers: quantile, run: func(ctx context.Context, _ string, scale float64) (Round, error) {
		return probePing(ctx, 100, int(scaled(20_000, scale)))
	}}}
}
