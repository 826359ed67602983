package wire

import "fmt"

// A Codec names how the records section of a batch is compressed.
type Codec uint8

// The codecs. 3 (lz4) and 5 (snappy in xerial frames) are reserved and
// refused.
const (
	None   Codec = 0
	Gzip   Codec = 1 // one member
	Snappy Codec = 2 // one raw block
	Zstd   Codec = 4 // one frame, no dictionary, window at most 8 MiB
)

var codecNames = map[Codec]string{None: "none", Gzip: "gzip", Snappy: "snappy", Zstd: "zstd"}

// Known reports whether batches may carry the codec.
func (c Codec) Known() bool {
	return c <= Snappy || c == Zstd
}

// String returns the codec's name as settings and flags spell it.
func (c Codec) String() string {
	if s, ok := codecNames[c]; ok {
		return s
	}
	return fmt.Sprintf("codec %d", uint8(c))
}

// ParseCodec returns the codec called s: none, gzip, snappy or zstd.
func ParseCodec(s string) (Codec, error) {
	for c, name := range codecNames {
		if s == name {
			return c, nil
		}
	}
	return None, fmt.Errorf("unknown codec %.40q: none, gzip, snappy and zstd are known", s)
}
