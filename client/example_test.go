package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net"
	"time"

	"github.com/teralog/teralog/broker"
	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// startBroker runs a broker on a disk in memory and returns its address and
// what stops it. Users would run `teralog serve` instead.
func startBroker() (addr string, stop func()) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Panic(err)
	}
	return ln.Addr().String(), runBroker(storage.NewMemFS(1), ln)
}

// runBroker runs a broker on fs and returns what stops it.
func runBroker(fs storage.FS, ln net.Listener) (stop func()) {
	c := broker.DefaultConfig()
	c.DataDirs, c.Reserve = []string{"data"}, 0
	env, err := broker.NewEnv(slog.New(slog.DiscardHandler))
	if err != nil {
		log.Panic(err)
	}
	env.FS = fs
	return runBrokerOn(c, env, ln)
}

func runBrokerOn(c broker.Config, env broker.Env, ln net.Listener) (stop func()) {
	b, err := broker.New(c, env)
	if err != nil {
		log.Panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := b.Run(ctx, ln); err != nil {
			log.Panic(err)
		}
	}()
	return func() { cancel(); <-done }
}

func Example() {
	addr, stop := startBroker()
	defer stop()
	ctx := context.Background()

	c, err := client.New(client.Options{Servers: []string{addr}})
	if err != nil {
		log.Panic(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 3}); err != nil {
		log.Panic(err)
	}

	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		log.Panic(err)
	}
	for _, stage := range []string{"order", "payment", "invoice"} {
		ack, err := p.Produce(ctx, client.Record{Topic: "orders", Key: []byte("o-17"), Value: []byte(stage)})
		if err != nil {
			log.Panic(err)
		}
		fmt.Printf("%s/%d@%d\n", ack.Topic, ack.Partition, ack.Offset)
	}

	x, err := c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		log.Panic(err)
	}
	if err := x.AssignTopic(ctx, "orders", client.Range{From: client.Start(), To: client.End()}); err != nil {
		log.Panic(err)
	}
	for {
		messages, err := x.Poll(ctx)
		if errors.Is(err, client.ErrEnd) {
			break
		}
		if err != nil {
			log.Panic(err)
		}
		for _, m := range messages {
			fmt.Printf("%s: %s\n", m.Key, m.Value)
		}
	}
	// Output:
	// orders/2@0
	// orders/2@1
	// orders/2@2
	// o-17: order
	// o-17: payment
	// o-17: invoice
}

// Records in bulk go asynchronously; the callback learns each one's outcome.
func ExampleProducer_ProduceAsync() {
	addr, stop := startBroker()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Options{Servers: []string{addr}})
	if err != nil {
		log.Panic(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "readings", Partitions: 1}); err != nil {
		log.Panic(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{Codec: wire.Zstd})
	if err != nil {
		log.Panic(err)
	}

	var acked, failed, unknown int // callbacks come one at a time
	for i := range 1000 {
		r := client.Record{Topic: "readings", Value: fmt.Appendf(nil, "reading %d", i)}
		err := p.ProduceAsync(ctx, r, func(_ client.Ack, err error) {
			switch {
			case err == nil:
				acked++
			case errors.Is(err, client.ErrIndefinite):
				unknown++ // may be in the log: look before sending it again
			default:
				failed++ // is not, and never will be
			}
		})
		if err != nil {
			log.Panic(err) // not accepted: ctx ended, or the record can never be sent
		}
	}
	if err := p.Flush(ctx); err != nil {
		log.Panic(err)
	}
	fmt.Println(acked, failed, unknown)
	// Output: 1000 0 0
}

// Many records given together cost less each; what becomes of them is told for
// neighbours that share a batch.
func ExampleProducer_ProduceAll() {
	addr, stop := startBroker()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Options{Servers: []string{addr}})
	if err != nil {
		log.Panic(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "orders", Partitions: 1}); err != nil {
		log.Panic(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		log.Panic(err)
	}
	defer p.Close()

	rs := make([]client.Record, 1000)
	for i := range rs {
		rs[i] = client.Record{Topic: "orders", Value: fmt.Append(nil, "order ", i)}
	}
	acked := 0 // callbacks come one after the other, and all before Flush returns
	n, err := p.ProduceAll(ctx, rs, func(from, to int, first client.Ack, err error) {
		if err != nil {
			log.Printf("records %d to %d: %v", from, to-1, err)
			return
		}
		acked += to - from // record from+i has offset first.Offset+i
	})
	if err != nil {
		log.Panic(err)
	}
	if err := p.Flush(ctx); err != nil {
		log.Panic(err)
	}
	fmt.Println(n, "given,", acked, "acknowledged")
	// Output: 1000 given, 1000 acknowledged
}

// A window of time is found without reading what lies before it.
func ExampleRange() {
	addr, stop := startBroker()
	defer stop()
	ctx := context.Background()
	c, err := client.New(client.Options{Servers: []string{addr}})
	if err != nil {
		log.Panic(err)
	}
	defer c.Close()
	if _, err := c.CreateTopic(ctx, client.TopicSpec{Name: "flights", Partitions: 1}); err != nil {
		log.Panic(err)
	}
	p, err := c.NewProducer(client.ProducerOptions{})
	if err != nil {
		log.Panic(err)
	}
	noon := time.Date(2001, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, minutes := range []time.Duration{0, 25, 10, 40, 15} { // event times need not ascend
		r := client.Record{Topic: "flights", Time: noon.Add(minutes * time.Minute), Value: fmt.Appendf(nil, "12:%02d", minutes)}
		if _, err := p.Produce(ctx, r); err != nil {
			log.Panic(err)
		}
	}

	x, err := c.NewConsumer(client.ConsumerOptions{})
	if err != nil {
		log.Panic(err)
	}
	window := client.Range{
		From: client.AtTime(client.EventTime, noon.Add(10*time.Minute).UnixMilli()),
		To:   client.AtTime(client.EventTime, noon.Add(30*time.Minute).UnixMilli()),
	}
	if err := x.Assign(ctx, "flights", 0, window); err != nil {
		log.Panic(err)
	}
	for {
		messages, err := x.Poll(ctx)
		if errors.Is(err, client.ErrEnd) {
			break
		}
		if err != nil {
			log.Panic(err)
		}
		for _, m := range messages {
			fmt.Println(m.Offset, string(m.Value))
		}
	}
	// Output:
	// 1 12:25
	// 2 12:10
	// 4 12:15
}
