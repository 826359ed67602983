//go:build mutants

package sim

import (
	"encoding/json"
	"io"
	"strings"
	"testing"
)

// TestTortureMutants runs a short torture on a broker that acknowledges before
// its fsync: the power cut takes records that it had called durable, which must
// be reported as loss, and by nothing else.
func TestTortureMutants(t *testing.T) {
	t.Setenv("TERALOG_MUTANT", "ack before fsync") // for the child
	var out strings.Builder
	err := Torture(t.Context(), []string{"--minutes", "0.02", "--dir", t.TempDir(), "-o", "json"}, nil, &out, io.Discard)
	var r TortureReport
	if e := json.Unmarshal([]byte(out.String()), &r); e != nil {
		t.Fatal(e)
	}
	if err == nil || r.Lost["sync"] == 0 || !strings.Contains(err.Error(), "acknowledged records are gone") {
		t.Fatalf("acknowledged records lost: %v; %v", r.Lost, err)
	}
	t.Logf("%v", err)
}
