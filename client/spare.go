package client

import "github.com/teralog/teralog/wire"

// spare keeps what batches and flights were made of for the next ones, so that
// a warm producer allocates nothing per record.
type spare struct {
	batches []*batch
	flights []*flight
	list    []*batch
}

// keepSpare bounds each kind kept.
const keepSpare = 64

func (s *spare) batch(l *lane) *batch {
	if n := len(s.batches); n > 0 {
		b := s.batches[n-1]
		s.batches = s.batches[:n-1]
		b.lane = l
		return b
	}
	return &batch{lane: l}
}

// putBatch takes back a batch whose callbacks were called and frees its bytes.
func (s *spare) putBatch(b *batch) {
	if b.buf != nil {
		b.buf.Release()
	}
	if b.builder != nil {
		b.builder.Reset()
		if !b.alone {
			b.lane.keep(b.builder)
		}
	}
	if len(s.batches) < keepSpare {
		b.done.reset()
		*b = batch{done: b.done}
		s.batches = append(s.batches, b)
	}
}

// builder returns an empty builder for batches of the lane.
func (l *lane) builder(o ProducerOptions) *wire.Builder {
	if n := len(l.builders); n > 0 {
		b := l.builders[n-1]
		l.builders = l.builders[:n-1]
		return b
	}
	return newBuilder(l.id, o, o.BatchBytes)
}

func newBuilder(id wire.PartitionID, o ProducerOptions, size int) *wire.Builder {
	return wire.NewBuilder(wire.BuilderOptions{Topic: id.Topic, Partition: id.Partition, Codec: o.Codec, MaxBytes: size, Pool: frames})
}

func (l *lane) keep(b *wire.Builder) {
	if len(l.builders) <= maxInFlight {
		l.builders = append(l.builders, b)
	}
}

func (s *spare) flight(p *Producer) *flight {
	if n := len(s.flights); n > 0 {
		f := s.flights[n-1]
		s.flights = s.flights[:n-1]
		return f
	}
	f := &flight{p: p}
	f.land = f.landed
	return f
}

func (s *spare) putFlight(f *flight) {
	clear(f.batches)
	clear(f.req.Batches)
	clear(f.req.Held)
	f.batches, f.conn, f.link = f.batches[:0], nil, nil
	if len(s.flights) < keepSpare {
		s.flights = append(s.flights, f)
	}
}
