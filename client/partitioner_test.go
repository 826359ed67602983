package client

import "testing"

// TestMurmur2 holds the hash to the values Kafka's own tests publish.
func TestMurmur2(t *testing.T) {
	f := func(key string, want int32) {
		t.Helper()
		if got := int32(murmur2([]byte(key))); got != want {
			t.Fatalf("murmur2(%q) = %d, want %d", key, got, want)
		}
	}

	f("21", -973932308)
	f("foobar", -790332482)
	f("a-little-bit-long-string", -985981536)
	f("a-little-bit-longer-string", -1486304829)
	f("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971)
	f("abc", 479470107)
}

func TestPartitionOf(t *testing.T) {
	f := func(key string, n, want int32) {
		t.Helper()
		if got := PartitionOf([]byte(key), n); got != want {
			t.Fatalf("PartitionOf(%q, %d) = %d, want %d", key, n, got, want)
		}
	}

	f("21", 6, int32((-973932308&0x7fffffff)%6)) // the sign bit is cleared, not negated
	f("abc", 10, 7)
	f("abc", 1, 0)
	f("", 7, int32(275646681%7)) // an empty key hashes too
}

func TestSticky(t *testing.T) {
	var s sticky
	first := s.partition(3)
	if again := s.partition(3); again != first {
		t.Fatalf("moved from %d to %d without a reason", first, again)
	}
	s.moved((first+1)%3, 3)
	if again := s.partition(3); again != first {
		t.Fatalf("a batch of another partition moved it from %d to %d", first, again)
	}
	seen := map[int32]bool{}
	for range 3 {
		p := s.partition(3)
		seen[p] = true
		s.moved(p, 3)
	}
	if len(seen) != 3 {
		t.Fatalf("three batches reached partitions %v of 3", seen)
	}
}
