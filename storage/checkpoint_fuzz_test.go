package storage

import (
	"bytes"
	"errors"
	"testing"

	"github.com/teralog/teralog/wire"
)

// fuzzDecoder checks that a decoder is a total function: what it takes encodes to
// the same bytes again, what it refuses is called corrupt.
func fuzzDecoder[T any](f *testing.F, decode func([]byte) (T, error), encode func(T) []byte, seeds ...T) {
	f.Add([]byte(nil))
	for _, s := range seeds {
		f.Add(encode(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		v, err := decode(b)
		if err != nil {
			if !errors.Is(err, wire.ErrCorrupt) && !errors.Is(err, ErrNewer) {
				t.Fatalf("refused, but not as corrupt: %v", err)
			}
			return
		}
		if again := encode(v); !bytes.Equal(again, b) {
			t.Fatalf("%x was taken as %+v, which is %x", b, v, again)
		}
	})
}

func FuzzSmallFile(f *testing.F) {
	fuzzDecoder(f, testFile.decode, testFile.encode, nil, []byte("body"))
}

func FuzzManifest(f *testing.F) {
	fuzzDecoder(f, decodeManifest, manifest.encode, manifest{"orders", wire.PartitionID{Topic: 5000, Partition: 3}, 1})
}

func FuzzPoints(f *testing.F) {
	p := somePoint(1000, 0)
	fuzzDecoder(f, decodePoints, encodePoints, map[wire.PartitionID]Point{p.ID: p})
}

func FuzzCleanStop(f *testing.F) {
	p := somePoint(1000, 0)
	fuzzDecoder(f, decodeCleanStop, cleanStop.encode, cleanStop{3, map[wire.PartitionID]CleanEnd{p.ID: {p, 7, 8}}})
}

func FuzzIdentity(f *testing.F) {
	fuzzDecoder(f, decodeIdentity, identity.encode, identity{node: 1, cluster: wire.UUID{1}, directory: wire.UUID{2}})
}

func FuzzRunning(f *testing.F) {
	fuzzDecoder(f, decodeRunning, running.encode, running{3, true, "boot"})
}

func FuzzFailedNote(f *testing.F) {
	fuzzDecoder(f, decodeFailedNote, failedNote.encode, failedNote{3, "fsync failed"})
}

func FuzzSiblings(f *testing.F) {
	fuzzDecoder(f, decodeSiblings, encodeSiblings, []wire.UUID{}, []wire.UUID{{1}, {2}})
}
