package wire

import (
	"math"
	"testing"
)

func TestEmptyBatch(t *testing.T) {
	f := func(n int32) {
		t.Helper()
		b := EmptyBatch(PartitionID{Topic: 5, Partition: 2}, n)
		b.Stamp(100, 7, 1, false)
		if err := b.Verify(); err != nil {
			t.Fatal(err)
		}
		if b.Count() != 0 || b.BaseOffset() != 100 || b.NextOffset() != 100+Offset(n) || b.Topic() != 5 || b.Partition() != 2 {
			t.Fatalf("%d records, offsets %d to %d of %d-%d", b.Count(), b.BaseOffset(), b.NextOffset(), b.Topic(), b.Partition())
		}
		if id, epoch, seq := b.Producer(); id != NoProducer || epoch != -1 || seq != -1 {
			t.Fatalf("producer %d, %d, %d", id, epoch, seq)
		}
		if len(b.VerifyProduce(BatchLimits{}).Error()) == 0 {
			t.Fatal("a producer may send it")
		}
	}

	f(1)
	f(1000)
	f(math.MaxInt32)
}
