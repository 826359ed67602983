package wire

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestCompressLeavesNoFragment compresses many small sections that hardly
// shrink: there an encoder may outgrow its room half-way and go on elsewhere,
// although its result would fit.
func TestCompressLeavesNoFragment(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, codec := range []Codec{Gzip, Snappy, Zstd} {
		var d Decoder
		for i := range 4000 {
			b := NewBuilder(BuilderOptions{Topic: 5000, Codec: codec})
			for range 1 + r.IntN(6) {
				value := make([]byte, 24+r.IntN(90))
				for at := range value {
					value[at] = byte(r.Uint32())
				}
				tail := value[r.IntN(len(value)):]
				for at := range tail {
					tail[at] = tail[0]
				}
				if _, err := b.Add(int64(i), fmt.Appendf(nil, "k%d", i%5), value, nil); err != nil {
					t.Fatal(err)
				}
			}
			buf, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			if err := Batch(buf.B).Records(&d, func(*Record) error { return nil }); err != nil {
				t.Fatalf("%s, section %d: %v", codec, i, err)
			}
			buf.Release()
		}
	}
}
