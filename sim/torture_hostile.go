package sim

import (
	"context"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/teralog/teralog/wire"
)

// hostile are clients that mean no good. Together they have at most 72
// connections open at a time.
type hostile struct {
	made [5]atomic.Int64 // connections, by hostileKinds
}

// hostileKinds are what they do with a connection. Each kind has so many clients
// at once.
var hostileKinds = [...]struct {
	name  string
	beset func(v villain)
	many  int
}{
	{"garbage", villain.garbage, 2},
	{"half a frame", villain.half, 16},
	{"impossible length", villain.huge, 2},
	{"slow reader", villain.slow, 4},
	{"storm", villain.nothing, 48},
}

// hostilePause is how long one who was done with rests at most; a storm rests
// and then comes all at once.
const hostilePause = 2 * time.Second

// run keeps them at it until ctx ends. topic is one that some read slowly.
func (h *hostile) run(ctx context.Context, addr string, topic wire.TopicID, seed uint64) {
	var all sync.WaitGroup
	for kind, k := range hostileKinds {
		for n := range k.many {
			rnd := rand.New(rand.NewPCG(seed, uint64(kind<<8|n)))
			all.Go(func() {
				for ctx.Err() == nil {
					pause := time.Duration(rnd.Int64N(int64(hostilePause)))
					if k.name == "storm" {
						pause = time.Until(time.Now().Truncate(hostilePause).Add(hostilePause))
					}
					select {
					case <-ctx.Done():
						return
					case <-time.After(pause):
					}
					h.visit(ctx, addr, &h.made[kind], func(c net.Conn) { k.beset(villain{ctx, c, rnd, topic}) })
				}
			})
		}
	}
	all.Wait()
}

// visit makes one connection. That the broker is away or ends it is fine.
func (h *hostile) visit(ctx context.Context, addr string, made *atomic.Int64, beset func(net.Conn)) {
	d := net.Dialer{Timeout: 5 * time.Second}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return
	}
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	made.Add(1)
	c.SetDeadline(time.Now().Add(10 * time.Second))
	beset(c)
}

func (h *hostile) counts() map[string]int64 {
	all := map[string]int64{}
	for i, k := range hostileKinds {
		all[k.name] = h.made[i].Load()
	}
	return all
}

// A villain is one hostile client with a connection.
type villain struct {
	ctx   context.Context
	c     net.Conn
	rnd   *rand.Rand
	topic wire.TopicID // that slow reads
}

// frame returns a request as it goes over the wire.
func frame(m wire.Message, v wire.Version) []byte {
	b := make([]byte, 16)
	binary.LittleEndian.PutUint16(b[4:], uint16(m.API()))
	binary.LittleEndian.PutUint16(b[6:], uint16(v))
	b = m.AppendTo(b, v)
	binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func (v villain) hello() []byte { return frame(&wire.HelloRequest{Client: "hostile"}, 0) }

// greet says Hello, or not, and reads what comes back, or not.
func (v villain) greet() {
	if v.rnd.IntN(2) == 0 {
		v.c.Write(v.hello())
		v.c.Read(make([]byte, 512))
	}
}

// garbage sends random bytes, some of which begin like a frame.
func (v villain) garbage() {
	v.greet()
	b := make([]byte, 1+v.rnd.IntN(8192))
	for i := range b {
		b[i] = byte(v.rnd.Uint32())
	}
	if len(b) > 16 && v.rnd.IntN(2) == 0 {
		binary.LittleEndian.PutUint32(b, uint32(len(b)-4))
		binary.LittleEndian.PutUint32(b[4:], v.rnd.Uint32N(20)) // an API, version 0
	}
	v.c.Write(b)
	io.Copy(io.Discard, v.c)
}

// half sends a part of a frame and then nothing.
func (v villain) half() {
	v.greet()
	b := v.hello()
	v.c.Write(b[:v.rnd.IntN(len(b))])
	v.wait(8 * time.Second)
}

// huge claims a length that no frame has, or one that is much.
func (v villain) huge() {
	v.greet()
	n := v.rnd.Uint32() | 1<<25
	if v.rnd.IntN(2) == 0 {
		n = wire.MaxFrame
	}
	v.c.Write(append(binary.LittleEndian.AppendUint32(nil, n), make([]byte, 64)...))
	v.wait(2 * time.Second)
}

// slow asks for much, again and again, and hardly reads it.
func (v villain) slow() {
	v.c.Write(v.hello())
	req := frame(&wire.FetchRequest{Replica: wire.NoNode, MaxBytes: 16 << 20, Partitions: []wire.FetchPartition{{
		Topic: v.topic, Epoch: wire.NoEpoch, LastEpoch: wire.NoEpoch, MaxBytes: 16 << 20}}}, 0)
	for range 16 {
		v.c.Write(req)
	}
	some := make([]byte, 100)
	for v.ctx.Err() == nil {
		if _, err := v.c.Read(some); err != nil {
			return // the broker's patience, or ours, is at its end
		}
		v.wait(50 * time.Millisecond)
	}
}

// nothing says Hello, or not, and leaves.
func (v villain) nothing() { v.greet() }

func (v villain) wait(d time.Duration) {
	select {
	case <-v.ctx.Done():
	case <-time.After(d):
	}
}
