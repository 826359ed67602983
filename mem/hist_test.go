package mem

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// TestHistBuckets checks that the buckets cover all values without gap, in
// order, and that a bucket's middle is within 1 % of all that fall into it.
func TestHistBuckets(t *testing.T) {
	f := func(v int64) {
		t.Helper()
		i := bucketOf(v)
		if i < 0 || i >= buckets {
			t.Fatalf("%d falls into bucket %d of %d", v, i, buckets)
		}
		if m := middle(i); math.Abs(float64(m-v)) > float64(v)/100 {
			t.Fatalf("%d falls into the bucket around %d", v, m)
		}
		if v > 0 && i-bucketOf(v-1) != 0 && i-bucketOf(v-1) != 1 {
			t.Fatalf("%d falls into bucket %d, %d into %d", v-1, bucketOf(v-1), v, i)
		}
	}

	for v := range int64(100_000) {
		f(v)
	}
	for shift := range 63 {
		for _, d := range []int64{-1, 0, 1} {
			f(max(1<<shift+d, 0))
		}
	}
	f(math.MaxInt64 - 1)
	f(math.MaxInt64)
	if bucketOf(math.MaxInt64) != buckets-1 {
		t.Fatalf("the last bucket in use is %d of %d", bucketOf(math.MaxInt64), buckets)
	}
}

func TestHistQuantile(t *testing.T) {
	f := func(values []int64) {
		t.Helper()
		var h Hist
		for _, v := range values {
			h.Record(v)
		}
		slices.Sort(values)
		n := len(values)
		if h.Count() != uint64(n) || h.Max() != values[n-1] || h.Quantile(1) != values[n-1] {
			t.Fatalf("count %d, max %d; want %d, %d", h.Count(), h.Max(), n, values[n-1])
		}
		for _, q := range []float64{0, 0.001, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1} {
			want := values[max(int(math.Ceil(q*float64(n))), 1)-1]
			if got := h.Quantile(q); math.Abs(float64(got-want)) > float64(want)/100 || got > values[n-1] {
				t.Fatalf("of %d values, quantile %v = %d, want %d", n, q, got, want)
			}
		}
	}

	f([]int64{0})
	f([]int64{7})
	f([]int64{1, 2})
	f([]int64{1, 2, 3, 4, 5, 6, 7, 8, 9, 10})
	f([]int64{1000, 1_000_000})
	f([]int64{128, 128, 128}) // the middle of their bucket is 129
	f([]int64{math.MaxInt64, math.MaxInt64})
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		values := make([]int64, 5000)
		for i := range values {
			values[i] = r.Int64N(1 << (1 + r.IntN(40)))
		}
		f(values)
	}
}

func TestHistEmpty(t *testing.T) {
	var h Hist
	if h.Quantile(0.5) != 0 || h.Quantile(1) != 0 || h.Snapshot() != (Snapshot{}) {
		t.Fatalf("an empty histogram says %+v", h.Snapshot())
	}
	h.Record(-5)
	if h.Snapshot() != (Snapshot{Count: 1}) {
		t.Fatalf("a negative value counts as %+v", h.Snapshot())
	}
}

func TestHistMerge(t *testing.T) {
	var a, b, both Hist
	r := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		v := r.Int64N(1 << 30)
		both.Record(v)
		if v%3 == 0 {
			a.Record(v)
		} else {
			b.Record(v)
		}
	}
	a.Merge(&b)
	a.Merge(&Hist{})
	if a.Snapshot() != both.Snapshot() || a.Count() != 10_000 {
		t.Fatalf("merged: %+v; recorded in one: %+v", a.Snapshot(), both.Snapshot())
	}
}

// TestHistShared records from many goroutines while others read.
func TestHistShared(t *testing.T) {
	var h Hist
	const values = 20_000
	var wg sync.WaitGroup
	for g := range int64(4) {
		wg.Go(func() {
			for v := range int64(values) {
				h.Record(4*v + g)
			}
		})
	}
	wg.Go(func() {
		for h.Count() < 4*values {
			if q := h.Quantile(0.5); q > 4*values {
				t.Errorf("median %d of values below %d", q, 4*values)
			}
		}
	})
	wg.Wait()
	const sum = 4 * values * (4*values - 1) / 2
	if s := h.Snapshot(); s.Count != 4*values || s.Sum != sum || s.Max != 4*values-1 {
		t.Fatalf("%+v; want sum %d", s, sum)
	}
	if a := testing.AllocsPerRun(100, func() { h.Record(1 << 40) }); a != 0 {
		t.Fatalf("Record allocates %v times", a)
	}
}
