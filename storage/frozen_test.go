package storage

import (
	"bytes"
	"encoding/hex"
	"os"
	"reflect"
	"testing"

	"github.com/teralog/teralog/wire"
)

// TestSmallFilesAreFrozen holds version 1 of every small file of a data
// directory to the bytes it has on disks already.
func TestSmallFilesAreFrozen(t *testing.T) {
	p, q := somePoint(5000, 3), somePoint(1024, 0)
	f := func(name string, kind smallFile, body []byte, want any, decode func([]byte) (any, error)) {
		t.Helper()
		text, err := os.ReadFile("testdata/v1/" + name + ".hex")
		if err != nil {
			t.Fatal(err)
		}
		frozen, err := hex.DecodeString(string(bytes.ReplaceAll(text, []byte("\n"), nil)))
		if err != nil {
			t.Fatal(err)
		}
		if got := kind.encode(body); !bytes.Equal(got, frozen) {
			t.Errorf("%s is written as\n%x, frozen is\n%x", name, got, frozen)
		}
		b, err := kind.decode(frozen)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := decode(b); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is read as %+v, %v; want %+v", name, got, err, want)
		}
	}
	id := identity{node: 7, cluster: wire.UUID{1, 2}, directory: wire.UUID{3, 4}}
	f(identityName, identityFile, id.encode(), id, func(b []byte) (any, error) { return decodeIdentity(b) })
	run := running{start: 12, suspect: true, boot: "7cb5d2f0-2d6c-4b8e-9d0c-1a2b3c4d5e6f"}
	f(runningName, runningFile, run.encode(), run, func(b []byte) (any, error) { return decodeRunning(b) })
	note := failedNote{start: 12, reason: "fsync failed: input/output error"}
	f(failedName, failedFile, note.encode(), note, func(b []byte) (any, error) { return decodeFailedNote(b) })
	man := manifest{topic: "orders", id: p.ID, created: 1_700_000_000_000}
	f(manifestName, manifestFile, man.encode(), man, func(b []byte) (any, error) { return decodeManifest(b) })
	points := map[wire.PartitionID]Point{p.ID: p, q.ID: q}
	f(pointsName, pointsFile, encodePoints(points), points, func(b []byte) (any, error) { return decodePoints(b) })
	stop := cleanStop{start: 12, ends: map[wire.PartitionID]CleanEnd{p.ID: {p, 4000, 0xfeedbeef}, q.ID: {q, -1, 0}}}
	f(cleanName, cleanFile, stop.encode(), stop, func(b []byte) (any, error) { return decodeCleanStop(b) })
	all := []wire.UUID{{3, 4}, {5, 6}}
	f(siblingsName, siblingsFile, encodeSiblings(all), all, func(b []byte) (any, error) { return decodeSiblings(b) })
}
