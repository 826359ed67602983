package coord

import (
	"fmt"
	"testing"

	"github.com/teralog/teralog/mem"
)

// BenchmarkCreate creates topics of one partition among n others, 1000 a turn.
func BenchmarkCreate(b *testing.B) {
	for _, others := range []int{0, 10_000, 90_000} {
		b.Run(fmt.Sprint(others), func(b *testing.B) {
			full := manyTopics(others)
			for b.Loop() {
				c := testCoord(newJournal(), Options{})
				i := *full
				i.version = c.Image().version
				c.image.Store(&i)
				for n := range 1000 {
					c.Submit(create(fmt.Sprintf("new%d", n), 1), func(Result, error) {})
				}
				for worked := true; worked; worked, _ = c.Turn(mem.Now{}) {
				}
			}
			b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N)/1000, "µs/topic")
		})
	}
}

// BenchmarkReplay replays the creation of many topics from bytes, and reads a
// snapshot of the same.
func BenchmarkReplay(b *testing.B) {
	for _, topics := range []int{1, 10_000, 100_000} {
		partitions := int32(min(MaxTopicPartitions, MaxPartitions/topics))
		var value []byte
		e := testEnv()
		d := emptyImage.edit()
		for n := range topics {
			records, _, err := e.handle(&d.Image, create(fmt.Sprintf("orders.by.customer.%06d", n*7919%topics), partitions))
			if err != nil {
				b.Fatal(err)
			}
			c := change{records: records}
			if err := d.replayChange(c); err != nil {
				b.Fatal(err)
			}
			value = appendChange(value, c)
		}
		entry := joinEntry(topics, value)
		d.version = 0
		kept := snapshotOf(&d.Image, 1)

		b.Run(fmt.Sprintf("log/%dx%d", topics, partitions), func(b *testing.B) {
			b.SetBytes(int64(len(entry)))
			for b.Loop() {
				e, err := readEntry(entry)
				if err == nil {
					err = emptyImage.edit().replay(0, e)
				}
				if err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(fmt.Sprintf("snapshot/%dx%d", topics, partitions), func(b *testing.B) {
			b.SetBytes(int64(len(kept)))
			for b.Loop() {
				if _, _, err := readSnapshotOf(kept); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkLookup finds topics among 10,000 as each request does.
func BenchmarkLookup(b *testing.B) {
	i := manyTopics(10_000)
	ids := i.ids
	b.Run("id", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if i.TopicByID(ids[n*7919%len(ids)].ID) == nil {
				b.Fatal("lost")
			}
		}
	})
	b.Run("name", func(b *testing.B) {
		b.ReportAllocs()
		for n := 0; b.Loop(); n++ {
			if i.Topic(ids[n*7919%len(ids)].Name) == nil {
				b.Fatal("lost")
			}
		}
	})
}

// manyTopics returns an image of n topics of one partition.
func manyTopics(n int) *Image {
	d := emptyImage.edit()
	e := testEnv()
	for at := range n {
		records, _, err := e.handle(&d.Image, create(fmt.Sprintf("orders.by.customer.%06d", at*7919%n), 1))
		if err == nil {
			err = d.replay(0, entry{{records: records}})
		}
		if err != nil {
			panic(err)
		}
	}
	return &d.Image
}
