// Package client is the Go client of Teralog: producers, consumers by
// assignment, and the calls that make, delete and inspect topics.
//
// A Client knows one cluster. From it come any number of producers and
// consumers, each with connections of its own:
//
//	c, err := client.New(client.Options{Servers: []string{"127.0.0.1:7400"}})
//	p, err := c.NewProducer(client.ProducerOptions{})
//	ack, err := p.Produce(ctx, client.Record{Topic: "orders", Key: key, Value: value})
//
// Produce waits for one record's acknowledgement; ProduceAsync has it told to a
// function; ProduceAll takes many records at once and costs least for each.
//
// # What an outcome means
//
// A record is acknowledged, failed, or in doubt. It has failed only if every
// attempt to write it ended in an answer that excludes it from the log for
// ever; otherwise, after a lost connection or a time-out say, its error wraps
// ErrIndefinite: it may be in the log or appear there later. Producers are
// idempotent unless told otherwise, so their own retries never write a record
// twice and never change the order of a partition; a record produced again by
// the application after ErrIndefinite may well be there twice.
//
// # Positions
//
// A Consumer moves by what brokers say of offsets and never by counting
// records. It stops a partition with a *FetchError, which carries the bounds,
// when its position left the log, when the log was cut back below what it
// read, when bytes are damaged, and when the topic was deleted; nothing is
// skipped unasked.
//
// # Memory
//
// Records given to a producer are copied. Records returned by Poll are valid
// until the next Poll. Both sides are bounded in bytes.
package client
