package client

import "github.com/teralog/teralog/wire"

// receipts say whom to tell what became of a batch's records, in their order.
type receipts struct {
	records int32
	one     []func(Ack, error) // of those given one by one; nil: nobody
	runs    []run              // of those given together
}

// A run is neighbours among the records of one call that share a batch.
type run struct {
	at, n int32 // they are records at to at+n-1 of the batch
	from  int   // the index of the first of them in the call
	done  Outcome
}

// add notes one record.
func (r *receipts) add(done func(Ack, error)) {
	r.one = append(r.one, done)
	r.records++
}

// addRun notes n records of one call, whose first has index from in it.
func (r *receipts) addRun(done Outcome, from, n int) {
	r.runs = append(r.runs, run{at: r.records, n: int32(n), from: from, done: done})
	r.records += int32(n)
}

// report tells everybody. ack is that of the first record; with an Offset of
// -1 it is everyone's.
func (r *receipts) report(ack Ack, err error) {
	at, one := int32(0), 0
	next := func(n int32) {
		at += n
		if ack.Offset >= 0 {
			ack.Offset += wire.Offset(n)
		}
	}
	singles := func(until int32) {
		for at < until {
			if done := r.one[one]; done != nil {
				done(ack, err)
			}
			one++
			next(1)
		}
	}
	for i := range r.runs {
		u := &r.runs[i]
		singles(u.at)
		if u.done != nil {
			u.done(u.from, u.from+int(u.n), ack, err)
		}
		next(u.n)
	}
	singles(r.records)
}

// part returns the receipts of records from to to-1, in memory of its own.
func (r *receipts) part(from, to int32) receipts {
	p := receipts{records: to - from}
	first, last := from, to // of one
	for _, u := range r.runs {
		first -= min(max(from-u.at, 0), u.n)
		last -= min(max(to-u.at, 0), u.n)
		if lo, hi := max(u.at, from), min(u.at+u.n, to); lo < hi {
			p.runs = append(p.runs, run{at: lo - from, n: hi - lo, from: u.from + int(lo-u.at), done: u.done})
		}
	}
	p.one = append(p.one, r.one[first:last]...)
	return p
}

// reset forgets everybody and keeps the memory.
func (r *receipts) reset() {
	clear(r.one)
	clear(r.runs)
	*r = receipts{one: r.one[:0], runs: r.runs[:0]}
}
