package raft

import "sync"

// An inbox is what waits for a driver's turn, bounded in number and bytes.
type inbox struct {
	o     Options
	ready chan struct{} // holds one token while something may wait

	mu     sync.Mutex
	closed bool
	in     work
}

type work struct {
	messages     []Message
	messageBytes int
	calls        []call
	callBytes    int
	ticked       bool
}

type call struct {
	do   func()
	done func(Index, error)
}

func (w *work) any() bool { return len(w.messages)+len(w.calls) > 0 || w.ticked }

// emptied returns w with nothing in it but its room.
func (w *work) emptied() work {
	clear(w.messages)
	clear(w.calls)
	return work{messages: w.messages[:0], calls: w.calls[:0]}
}

func (b *inbox) init(o Options) { b.o, b.ready = o, make(chan struct{}, 1) }

func (b *inbox) call(bytes int, c call) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.closed:
		return ErrClosed
	case len(b.in.calls) >= b.o.MaxCalls || b.in.callBytes > 0 && b.in.callBytes+bytes > b.o.MaxCallBytes:
		return ErrBusy
	}
	b.in.calls = append(b.in.calls, c)
	b.in.callBytes += bytes
	b.wake()
	return nil
}

func (b *inbox) deliver(m Message) {
	bytes := len(m.Data)
	for i := range m.Entries {
		bytes += entryCost(&m.Entries[i])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed || len(b.in.messages) >= b.o.MaxMessages || b.in.messageBytes > 0 && b.in.messageBytes+bytes > b.o.MaxMessageBytes {
		return
	}
	b.in.messages = append(b.in.messages, m)
	b.in.messageBytes += bytes
	b.wake()
}

func (b *inbox) tick() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.in.ticked = true
	b.wake()
}

func (b *inbox) wake() {
	select {
	case b.ready <- struct{}{}:
	default:
	}
}

// take returns what waits, and has spare filled next.
func (b *inbox) take(spare work) work {
	b.mu.Lock()
	defer b.mu.Unlock()
	in := b.in
	b.in = spare
	return in
}

// close refuses what comes later and returns the calls that waited.
func (b *inbox) close() []call {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.in.calls
	b.closed, b.in = true, work{}
	return calls
}
