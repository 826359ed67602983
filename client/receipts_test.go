package client

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestReceipts notes records alone and together in any order and expects each
// to be told once, in order, with its own offset; and so from any part of them.
func TestReceipts(t *testing.T) {
	f := func(seed uint64) {
		t.Helper()
		rnd := rand.New(rand.NewPCG(seed, 1))
		var r receipts
		var told, want []string
		call := 0
		for range rnd.IntN(9) {
			at := len(want)
			call++
			if n := rnd.IntN(4); n == 0 {
				want = append(want, fmt.Sprint(call, ":0"))
				id := call
				r.add(func(a Ack, _ error) { told = append(told, fmt.Sprint(id, ":0@", a.Offset)) })
			} else {
				id, from := call, rnd.IntN(5)
				for i := range n {
					want = append(want, fmt.Sprint(id, ":", from+i))
				}
				r.addRun(func(from, to int, a Ack, _ error) {
					for i := from; i < to; i++ {
						told = append(told, fmt.Sprint(id, ":", i, "@", a.Offset+wire.Offset(i-from)))
					}
				}, from, n)
			}
			if int(r.records) <= at {
				t.Fatalf("seed %d: %d records after %d", seed, r.records, at)
			}
		}
		for from := range len(want) + 1 {
			for to := from; to <= len(want); to++ {
				part := r.part(int32(from), int32(to))
				told = nil
				part.report(Ack{Offset: 1000}, nil)
				var expect []string
				for i, w := range want[from:to] {
					expect = append(expect, fmt.Sprint(w, "@", 1000+i))
				}
				if !slices.Equal(told, expect) || int(part.records) != to-from {
					t.Fatalf("seed %d, records %d to %d: told %v, want %v", seed, from, to, told, expect)
				}
			}
		}
	}
	for seed := range uint64(500) {
		f(seed)
	}
}

// TestReceiptsFailed: without an offset there is none for anybody, and who
// wants to know nothing is told nothing.
func TestReceiptsFailed(t *testing.T) {
	var r receipts
	var told []wire.Offset
	note := func(a Ack, err error) {
		if err != ErrClosed {
			t.Error(err)
		}
		told = append(told, a.Offset)
	}
	r.add(nil)
	r.add(note)
	r.addRun(nil, 0, 3)
	r.addRun(func(from, to int, a Ack, err error) { note(a, err) }, 3, 2)
	r.add(note)
	r.report(Ack{Offset: -1}, ErrClosed)
	if want := []wire.Offset{-1, -1, -1}; !slices.Equal(told, want) {
		t.Fatalf("told %v, want %v", told, want)
	}
	r.reset()
	r.report(Ack{}, nil)
	if len(told) != 3 || r.records != 0 {
		t.Fatalf("told %v after a reset", told)
	}
}
