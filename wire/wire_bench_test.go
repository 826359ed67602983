package wire

import (
	"bytes"
	"testing"

	"github.com/teralog/teralog/mem"
)

// filled returns a batch of about size bytes of records with values of 100.
func filled(b *testing.B, size int, codec Codec) Batch {
	b.Helper()
	w := NewBuilder(BuilderOptions{Topic: 1024, Codec: codec, MaxBytes: size})
	value := []byte(`{"order":"o-000017","stage":"payment","amount":129900,"currency":"EUR","at":"2001-03-04T05:06:07Z"}`)
	for i := int64(0); ; i++ {
		value[12] = byte('0' + i%10)
		if ok, err := w.Add(1700000000000+i, nil, value, nil); err != nil {
			b.Fatal(err)
		} else if !ok {
			break
		}
	}
	buf, err := w.Build()
	if err != nil {
		b.Fatal(err)
	}
	defer buf.Release()
	return bytes.Clone(buf.B)
}

func BenchmarkVerify64KiB(b *testing.B) {
	p := filled(b, 64<<10, None)
	b.SetBytes(int64(len(p)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.VerifyProduce(BatchLimits{}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkStamp(b *testing.B) {
	p := filled(b, 64<<10, None)
	b.ReportAllocs()
	for b.Loop() {
		p.Stamp(1000, 1, 1700000000000, false)
	}
}

// BenchmarkAdd100B is one record of 100 bytes into batches of 64 KiB, their
// building included.
func BenchmarkAdd100B(b *testing.B) {
	w := NewBuilder(BuilderOptions{Topic: 1024, MaxBytes: 64 << 10, Pool: mem.NewPool("bench")})
	value := make([]byte, 100)
	b.SetBytes(100)
	b.ReportAllocs()
	for b.Loop() {
		if ok, _ := w.Add(1700000000000, nil, value, nil); !ok {
			buf, err := w.Build()
			if err != nil {
				b.Fatal(err)
			}
			buf.Release()
		}
	}
}

// BenchmarkRecords100B is one record of 100 bytes read from a batch of 64 KiB.
func BenchmarkRecords100B(b *testing.B) {
	p := filled(b, 64<<10, None)
	var d Decoder
	b.SetBytes(100)
	b.ReportAllocs()
	for b.Loop() {
		_, err := d.Next()
		if err != nil {
			if err := d.Open(p); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkCodecs(b *testing.B) {
	plain := filled(b, 64<<10, None)[HeaderSize:]
	for _, c := range compressing {
		small := make([]byte, compressBound(len(plain)))
		n := c.compress(small, plain)
		back := make([]byte, len(plain), c.decompressRoom(len(plain)))
		b.Run(c.String()+"/compress", func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				c.compress(small, plain)
			}
			b.ReportMetric(float64(len(plain))/float64(n), "ratio")
		})
		b.Run(c.String()+"/decompress", func(b *testing.B) {
			b.SetBytes(int64(len(plain)))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.decompress(back, small[:n]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeFetchRequest(b *testing.B) {
	body := (&FetchRequest{Partitions: make([]FetchPartition, 6)}).AppendTo(nil, 0)
	var r Reader
	var m FetchRequest
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeBody(&r, &m, 0, body); err != nil {
			b.Fatal(err)
		}
	}
}
