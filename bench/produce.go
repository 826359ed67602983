package bench

import (
	"context"
	"io"

	"github.com/teralog/teralog/client"
)

const produceHelp = `Usage: teralog bench produce [flags]

Writes records as fast as they go, or --rate of them a second, and says how
long their acknowledgements took: from the call that gave the record, with
--rate from the moment it was due, whatever became of those before it.
To time a record is not for nothing: of many small ones one in several is, at
least four a batch, or with --rate 100,000 a second of each producer.

  teralog bench produce --size 100 --partitions 12 --acks 1
  teralog bench produce --rate 250k/s --size 1KiB --partitions 12 --tails 1
  teralog bench produce --one --size 100 --records 50k

The run is marked as bound by the generator if producers waited for room in
their windows less than a twentieth of the time and had fewer batches on their
way than --in-flight allows one partition: then the broker was never behind.
With --rate it is if records were given more than 10 ms late for another reason
than such waiting.
`

func benchProduce(ctx context.Context, args []string, start Start, _ io.Reader, out, notes io.Writer) error {
	l := newLoad("produce")
	f := newFlags(produceHelp)
	l.brokerFlags(f)
	l.topicFlags(f)
	l.producerFlags(f)
	l.rateFlag(f)
	l.timeFlags(f)
	l.outputFlags(f)
	l.consumers = 0
	f.IntVar(&l.consumers, "tails", 0, "consumers that read all of it meanwhile, each on a connection of its own")
	f.BoolVar(&l.one, "one", false, "give each record only once the one before is acknowledged")
	return l.execute(ctx, f, args, start, out, notes, measureProduce)
}

// measureProduce writes records with tails attached.
func measureProduce(ctx context.Context, t *target, l *load, d *Display) (*Result, error) {
	if err := t.prepare(ctx, l); err != nil {
		return nil, err
	}
	tails, err := openReaders(ctx, t, l, client.Range{From: client.End()})
	if err != nil {
		return nil, err
	}
	defer closeReaders(tails)
	ps, err := openProducers(t, l)
	if err != nil {
		return nil, err
	}
	defer ps.close()
	following := follow(ctx, tails)
	r, err := t.measure(ctx, l, d, ps.run)
	if r != nil {
		r.bound(ps.verdict(l, r))
		r.TailRecords = following.stop(ctx, ps.given()*int64(len(tails)))
		r.TailMissing = ps.given()*int64(len(tails)) - r.TailRecords
	}
	return r, err
}
