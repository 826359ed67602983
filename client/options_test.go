package client

import (
	"testing"
	"time"

	"github.com/teralog/teralog/wire"
)

func TestOptions(t *testing.T) {
	client := func(ok bool, o Options) {
		t.Helper()
		if c, err := New(o); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		} else if ok {
			c.Close()
		}
	}
	producer := func(ok bool, o ProducerOptions) {
		t.Helper()
		if err := o.fill(); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		}
	}
	consumer := func(ok bool, o ConsumerOptions) {
		t.Helper()
		if err := o.fill(); (err == nil) != ok {
			t.Fatalf("%+v: %v", o, err)
		}
	}

	client(true, Options{Servers: []string{"h:1", "[::1]:7400"}})
	client(false, Options{})
	client(false, Options{Servers: []string{"h"}})
	client(false, Options{Servers: []string{"h:1"}, RequestTimeout: -1})
	producer(true, ProducerOptions{})
	producer(true, ProducerOptions{InFlight: 1, Linger: 3 * time.Millisecond, BatchBytes: wire.MaxBatchBytes})
	producer(false, ProducerOptions{InFlight: 6})
	producer(false, ProducerOptions{InFlight: -1})
	producer(false, ProducerOptions{Linger: 1500 * time.Microsecond})
	producer(false, ProducerOptions{BatchBytes: 100})
	producer(false, ProducerOptions{BatchBytes: wire.MaxBatchBytes + 1})
	producer(false, ProducerOptions{BufferBytes: -1})
	producer(false, ProducerOptions{Codec: 3})
	producer(false, ProducerOptions{Acks: 3})
	consumer(true, ConsumerOptions{})
	consumer(true, ConsumerOptions{BufferBytes: 1000})
	consumer(false, ConsumerOptions{BufferBytes: -1})
	consumer(false, ConsumerOptions{MaxWait: time.Microsecond})
	consumer(false, ConsumerOptions{PartitionBytes: maxFetch + 1})
	consumer(false, ConsumerOptions{RequestBytes: maxFetch + 1})
	consumer(false, ConsumerOptions{RequestBytes: -1})
	consumer(false, ConsumerOptions{Reset: 3})
}
