package mem

import (
	"strconv"
	"sync"
	"testing"
)

// A task is about as large as what a partition's mailbox carries.
type task struct {
	_    []byte
	done func()
	_    int8
}

// BenchmarkQueueInline is the idle path: the pusher takes the free turn.
func BenchmarkQueueInline(b *testing.B) {
	q := NewQueue[task](1024)
	var got []task
	b.ReportAllocs()
	for b.Loop() {
		if _, mine := q.Push(task{}); mine {
			got = q.PopOrFree(got[:0])
			q.HandOrFree()
		}
	}
}

// serve answers all tasks on an owner goroutine until the queue is closed.
func serve(q *Queue[task]) {
	go func() {
		var got []task
		for open := true; open; {
			got, open = q.PopAll(got[:0])
			for i := range got {
				got[i].done()
			}
		}
	}()
}

// BenchmarkQueueHand is the hop: push, hand over, wait for the owner's answer.
func BenchmarkQueueHand(b *testing.B) {
	q := NewQueue[task](1024)
	serve(q)
	defer q.Close()
	answer := make(chan struct{}, 1)
	done := func() { answer <- struct{}{} }
	b.ReportAllocs()
	for b.Loop() {
		if _, mine := q.Push(task{done: done}); mine {
			q.Hand()
		}
		<-answer
	}
}

// BenchmarkQueuePushers has pushers with 16 tasks in flight each, and an owner
// that does all the work.
func BenchmarkQueuePushers(b *testing.B) {
	for _, pushers := range []int{1, 4, 64} {
		b.Run(strconv.Itoa(pushers), func(b *testing.B) {
			q := NewQueue[task](pushers * 16)
			serve(q)
			defer q.Close()
			var wg sync.WaitGroup
			b.ReportAllocs()
			for p := range pushers {
				n := b.N / pushers
				if p == 0 {
					n += b.N % pushers
				}
				wg.Go(func() {
					slots := make(chan struct{}, 16)
					done := func() { <-slots }
					for range n {
						slots <- struct{}{}
						if _, mine := q.Push(task{done: done}); mine {
							q.Hand()
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
