package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// The order centre: every order goes through six stages, keyed by its id, so
// that they lie in one partition in order. A bug made inventory reserve twice
// for the orders of one quarter of an hour; a second reader finds that window
// by time and compensates each of them once.
const (
	ordersTopic        = "order_event"
	compensationsTopic = "order_compensation"
	ordersPartitions   = 6
	orderCount         = 12_000
	tenants            = 8
)

var stages = [...]string{"order", "inventory", "payment", "invoice", "logistics", "completion"}

// faultyStage is the stage that went wrong.
const faultyStage = 1

var (
	ordersBegin = time.Date(2026, 6, 18, 20, 0, 0, 0, time.UTC)
	faultBegin  = ordersBegin.Add(90 * time.Minute)
	faultEnd    = faultBegin.Add(15 * time.Minute)
)

const (
	orderEvery = time.Second                    // from one order to the next
	stageEvery = 7*time.Minute + 30*time.Second // from one stage of an order to the next
)

func orderID(n int) string { return fmt.Sprintf("order-%06d", n) }

func stageTime(order, stage int) time.Time {
	return ordersBegin.Add(time.Duration(order)*orderEvery + time.Duration(stage)*stageEvery)
}

// faulty reports whether the order's reservation fell into the bad window.
func faulty(order int) bool {
	at := stageTime(order, faultyStage)
	return !at.Before(faultBegin) && at.Before(faultEnd)
}

func orderEvent(order, stage int) client.Record {
	quantity := 1
	if stage == faultyStage && faulty(order) {
		quantity = 2
	}
	return client.Record{
		Topic: ordersTopic,
		Key:   []byte(orderID(order)),
		Value: fmt.Appendf(nil, `{"stage":%d,"quantity":%d}`, stage, quantity),
		Headers: []wire.Header{
			{Key: []byte("tenantId"), Value: strconv.AppendInt(nil, int64(order%tenants), 10)},
			{Key: []byte("traceId"), Value: fmt.Appendf(nil, "%016x", uint64(order)*0x9E3779B97F4A7C15)},
			{Key: []byte("eventType"), Value: []byte(stages[stage])},
		},
		Time: stageTime(order, stage),
	}
}

func (d *demo) orders(ctx context.Context) error {
	for _, name := range []string{ordersTopic, compensationsTopic} {
		if err := d.topic(ctx, name, ordersPartitions); err != nil {
			return err
		}
	}
	if err := d.loadOrders(ctx); err != nil {
		return err
	}
	if err := d.readOrders(ctx); err != nil {
		return err
	}
	want := 0
	for n := range orderCount {
		if faulty(n) {
			want++
		}
	}
	// The first repairer dies half-way. The second learns from the log what is
	// done already, so nobody is compensated twice.
	if _, err := d.repair(ctx, want/2); err != nil {
		return err
	}
	s, err := d.repair(ctx, want)
	if err != nil {
		return err
	}
	s.Name = "orders: faulty window replayed and compensated"
	return d.checkRepair(ctx, s, want)
}

// loadOrders sends the events in the order of their time, orders interleaved
// as they are in life.
func (d *demo) loadOrders(ctx context.Context) error {
	const total = orderCount * len(stages)
	l, err := d.load(0)
	if err != nil {
		return err
	}
	next := [len(stages)]int{}
	for range total {
		stage := 0
		for s := range stages {
			if next[s] < orderCount && (next[stage] == orderCount || stageTime(next[s], s).Before(stageTime(next[stage], stage))) {
				stage = s
			}
		}
		if err := l.send(ctx, orderEvent(next[stage], stage), nil); err != nil {
			return err
		}
		next[stage]++
	}
	s, err := l.finish(ctx, "orders: load, six stages each")
	d.add(s, fmt.Sprintf("%d events", total), fmt.Sprintf("%d events", s.Records))
	return err
}

// readOrders checks that each order is complete and in sequence.
func (d *demo) readOrders(ctx context.Context) error {
	reached := map[string]int{}
	broken := map[string]bool{}
	s, err := d.read(ctx, "orders: each order in sequence", ordersTopic, client.Range{To: client.End()}, func(m *client.Message) error {
		id := string(m.Key)
		stage := reached[id]
		if stage == len(stages) || eventType(m) != stages[stage] {
			broken[id] = true
			return nil
		}
		reached[id]++
		return nil
	})
	complete := 0
	for id, n := range reached {
		if n == len(stages) && !broken[id] {
			complete++
		}
	}
	d.add(s, fmt.Sprintf("%d orders", orderCount), fmt.Sprintf("%d orders", complete))
	return err
}

func eventType(m *client.Message) string {
	for _, h := range m.Headers {
		if string(h.Key) == "eventType" {
			return string(h.Value)
		}
	}
	return ""
}

// repair replays the faulty window and compensates what was not compensated
// yet, most orders at most in all.
func (d *demo) repair(ctx context.Context, most int) (step, error) {
	done := map[string]bool{}
	if _, err := d.read(ctx, "", compensationsTopic, client.Range{To: client.End()}, func(m *client.Message) error {
		done[string(m.Key)] = true
		return nil
	}); err != nil {
		return step{}, err
	}
	l, err := d.load(0)
	if err != nil {
		return step{}, err
	}
	window := client.Range{From: client.AtTime(client.EventTime, faultBegin.UnixMilli()), To: client.AtTime(client.EventTime, faultEnd.UnixMilli())}
	if _, err := d.read(ctx, "", ordersTopic, window, func(m *client.Message) error {
		id := string(m.Key)
		if eventType(m) != stages[faultyStage] || done[id] || len(done) >= most {
			return nil
		}
		done[id] = true
		return l.send(ctx, client.Record{Topic: compensationsTopic, Key: []byte(id), Value: []byte(`{"release":1}`), Time: time.UnixMilli(m.Time)}, nil)
	}); err != nil {
		return step{}, err
	}
	return l.finish(ctx, "")
}

// checkRepair counts the compensations of every order.
func (d *demo) checkRepair(ctx context.Context, s step, want int) error {
	times := map[string]int{}
	if _, err := d.read(ctx, "", compensationsTopic, client.Range{To: client.End()}, func(m *client.Message) error {
		times[string(m.Key)]++
		return nil
	}); err != nil {
		return err
	}
	once, wrong := 0, 0
	for n := range orderCount {
		switch got := times[orderID(n)]; {
		case faulty(n) && got == 1:
			once++
		case got != 0 || faulty(n):
			wrong++
		}
	}
	s.Seconds = 0
	d.add(s, fmt.Sprintf("%d orders once, 0 wrong", want), fmt.Sprintf("%d orders once, %d wrong", once, wrong))
	return nil
}
