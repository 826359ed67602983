package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

func TestTenants(t *testing.T) {
	f := func(s string, want ...Tenant) {
		t.Helper()
		var c Config
		if err := setTenants(&c, s); err != nil || !reflect.DeepEqual(c.Tenants, want) {
			t.Fatalf("%q is %+v, %v; want %+v", s, c.Tenants, err, want)
		}
		var again Config
		if err := setTenants(&again, joinTenants(c.Tenants)); err != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%q comes back as %+v, %v", joinTenants(c.Tenants), again.Tenants, err)
		}
	}
	f("")
	f("batch@10.0.0.1:7410", Tenant{Name: "batch", Listen: "10.0.0.1:7410"})
	f(" a@[::1]:0 tls bytes=64MiB  requests=500 , b.2@:7 advertise=b.example:7",
		Tenant{Name: "a", Listen: "[::1]:0", TLS: true, Rates: Rates{64 << 20, 500}}, Tenant{Name: "b.2", Listen: ":7", Advertise: "b.example:7"})

	bad := func(s, want string) {
		t.Helper()
		if err := setTenants(new(Config), s); err == nil || !strings.Contains(err.Error(), want) {
			t.Fatalf("%q: %v, want %q", s, err, want)
		}
	}
	bad("a", "not a tenant and its address")
	bad("a@b", "not a tenant and its address")
	bad("a@b:port", "not a tenant and its address")
	bad("@b:1", "not a tenant and its address")
	bad("default@b:1", "not a tenant and its address") // it is the main listener's
	bad("a b@c:1", "not a tenant and its address")
	bad("a@b:1,", "names no tenant")
	bad("a@b:1,a@b:2", "twice")
	bad("a@b:1 byte=1", "none of tls, bytes=")
	bad("a@b:1 tls=no", "tls takes no value")
	bad("a@b:1 bytes=much", "tenant a")
	bad("a@b:1 requests=0", "not a number of requests")
	bad("a@b:1 advertise=here", "tenant a")
	bad(strings.Repeat("a", 65)+"@b:1", "not a tenant")
	var many []string
	for n := range maxTenants + 1 {
		many = append(many, fmt.Sprintf("t%d@:1", n))
	}
	bad(strings.Join(many, ","), "the limit is 64")
}

// TestTopicQuota has batches of 1 MiB go to a topic that may have 64 KiB a
// second: they get through at that rate, those told to wait are let in when the
// time told is over, and another topic in the same requests is not touched.
func TestTopicQuota(t *testing.T) {
	r := newRig(t)
	slow := r.create("slow", 2, wire.Setting{Key: "quota.bytes", Value: "64KiB"})
	free := r.create("free", 1)
	big := strings.Repeat("v", 1<<20-200)
	send := func(partition int32) (a, b wire.ProduceResult) {
		t.Helper()
		res := r.send(batchOf(t, wire.BuilderOptions{Topic: slow, Partition: partition}, big), batchOf(t, wire.BuilderOptions{Topic: free}, "v"))
		if res[1].Code != wire.CodeOK {
			t.Fatalf("the other topic: %+v", res[1])
		}
		return res[0], res[1]
	}
	if a, _ := send(0); a.Code != wire.CodeOK {
		t.Fatalf("%+v", a)
	}
	began, taken := r.now.Mono, 1
	for taken < 10 {
		a, _ := send(int32(taken % 2)) // its partitions share it
		if a.Code == wire.CodeOK {
			taken++
			continue
		}
		wait := time.Duration(a.RetryAfterMillis) * time.Millisecond
		if a.Code != wire.CodeQuota || wait <= 0 || a.Message != `topic "slow" may use 64KiB a second` {
			t.Fatalf("%+v", a)
		}
		r.pass(wait - time.Millisecond)
		if a, _ := send(0); a.Code != wire.CodeQuota {
			t.Fatalf("a millisecond too early: %+v", a)
		}
		r.pass(time.Millisecond)
	}
	if took := r.now.Mono - began; took < 142*time.Second || took > 144*time.Second {
		t.Fatalf("9 MiB at 64 KiB/s took %v", took)
	}

	// Readers share it. An answer holds no more than a second's worth, but one
	// batch whole; where nothing else was asked for, an error says what was met.
	both := &wire.FetchRequest{Replica: wire.NoNode, MinBytes: 1, MaxBytes: 8 << 20,
		Partitions: []wire.FetchPartition{position(slow, 0, 0), position(free, 0, 0)}}
	p := r.begin(both, new(wire.FetchResponse))
	res := p.resp.(*wire.FetchResponse).Partitions
	if p.err != nil || res[0].Code != wire.CodeQuota || res[1].Code != wire.CodeOK || res[1].Bytes == 0 || p.after <= 14*time.Second {
		t.Fatalf("%v, %+v, retry after %v", p.err, res, p.after)
	}
	var e *wire.Error
	p = r.begin(fetchOf(slow, 0, 0), new(wire.FetchResponse))
	if !errors.As(p.err, &e) || e.Code != wire.CodeQuota || e.Message != `topic "slow" may use 64KiB a second` || e.RetryAfter == 0 {
		t.Fatal(p.err)
	}
	r.pass(e.RetryAfter)
	if got := r.read(both); got[0].Code != wire.CodeOK || got[0].Bytes < 1<<20-300 || got[0].Bytes > 1<<20 {
		t.Fatalf("%+v", got[0])
	}
	if got := r.begin(fetchOf(slow, 1, 0), new(wire.FetchResponse)); wire.CodeOf(got.err) != wire.CodeQuota {
		t.Fatalf("what was read is not counted: %v", got.err)
	}
	// What is not there is not refused.
	if got := r.read(fetchOf(slow, 1, 5)); got[0].Code != wire.CodeOK {
		t.Fatalf("%+v", got[0])
	}
	if n := r.b.refusals[wire.LimitTopicBytes].n.Load(); n < 20 {
		t.Fatalf("%d refusals counted", n)
	}
	r.delete(slow)
	if len(r.b.hosts.quotas) != 0 {
		t.Fatal("the quota outlives its topic")
	}
}

// TestTopicQuotaDefault gives every topic the broker's, but for what its settings
// say; requests count one a batch.
func TestTopicQuotaDefault(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Topic = Rates{Requests: 2} })
	plain, own := r.create("plain", 1), r.create("own", 1, wire.Setting{Key: "quota.requests", Value: "10"})
	taken := func(topic wire.TopicID) (n int) {
		for range 20 {
			if r.send(batchOf(t, wire.BuilderOptions{Topic: topic}, "v"))[0].Code == wire.CodeOK {
				n++
			}
		}
		return n
	}
	if a, b := taken(plain), taken(own); a != 3 || b != 11 { // a second's worth and one into debt
		t.Fatalf("%d and %d batches at once", a, b)
	}
	r.pass(time.Second)
	if a, b := taken(plain), taken(own); a != 2 || b != 10 {
		t.Fatalf("%d and %d batches a second later", a, b)
	}
}

// TestCreateRate: one client makes topics as fast as it can.
func TestCreateRate(t *testing.T) {
	r := newRig(t, func(c *Config) { c.CreateRate = 10 })
	made := func(partitions int32, dry bool) (n int, err error) {
		for range 50 {
			req := &wire.CreateTopicRequest{Name: fmt.Sprintf("t-%d-%d", r.ids, n), Partitions: partitions, ValidateOnly: dry}
			if err = r.ask(req, &wire.CreateTopicResponse{}); err != nil {
				return n, err
			}
			n++
		}
		return n, nil
	}
	if n, err := made(1, true); err != nil {
		t.Fatalf("%d checked: %v", n, err)
	}
	n, err := made(4, false)
	if n != 3 || wire.CodeOf(err) != wire.CodeQuota || !strings.Contains(err.Error(), "10 partitions a second") || retryAfter(err) != 200*time.Millisecond {
		t.Fatalf("%d topics, %v", n, err)
	}
	r.pass(retryAfter(err))
	if n, _ := made(4, false); n != 1 {
		t.Fatalf("%d topics after the time told", n)
	}
	// Deletes are never refused for it.
	r.delete(r.b.Image().Topics()[0].ID)
}

// A town is a broker that runs in a bubble with tenants, on a disk and a network
// in memory.
type town struct {
	*live
	fs  *storage.MemFS
	net *wire.MemNet
}

// inTown runs f in a bubble with such a broker.
func inTown(t *testing.T, set func(*Config), f func(t *testing.T, w *town)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &town{fs: storage.NewMemFS(1), net: wire.NewMemNet()}
		env, err := NewEnv(slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		env.FS = w.fs
		c := DefaultConfig()
		c.DataDirs, c.Reserve, c.AcceptRate = []string{"data"}, 0, 0
		set(&c)
		b, err := New(c, env)
		if err != nil {
			t.Fatal(err)
		}
		var lns []net.Listener
		for _, at := range append([]Tenant{{Listen: "main:1"}}, c.Tenants...) {
			ln, err := w.net.Listen(at.Listen)
			if err != nil {
				t.Fatal(err)
			}
			lns = append(lns, ln)
		}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx, lns[0], lns[1:]...) }()
		w.live = &live{t: t, b: b, ended: ended, stop: func() error { cancel(); return <-ended }}
		f(t, w)
		if err := w.stop(); err != nil {
			t.Error(err)
		}
	})
}

// A customer produces or reads on a connection of its own, as fast as it is let.
type customer struct {
	w       *town
	c       *wire.Conn
	deaf    bool // does not wait when told to
	bytes   int64
	refused int
	slowest time.Duration // of what was not refused
}

func (w *town) customer(addr string) *customer { return &customer{w: w, c: dial(w.t, w.net, addr)} }

// try does a request and returns whether it was let through.
func (k *customer) try(req, resp wire.Message) bool {
	began := time.Now()
	err := k.c.Do(context.Background(), req, resp)
	if p, ok := resp.(*wire.ProduceResponse); ok && err == nil && p.Results[0].Code != wire.CodeOK {
		err = &wire.Error{Code: p.Results[0].Code, Message: p.Results[0].Message, RetryAfter: time.Duration(p.Results[0].RetryAfterMillis) * time.Millisecond}
	}
	if err == nil {
		k.slowest = max(k.slowest, time.Since(began))
		return true
	}
	if wire.CodeOf(err) != wire.CodeQuota || retryAfter(err) == 0 {
		k.w.t.Errorf("%v", err)
	}
	k.refused++
	if !k.deaf {
		time.Sleep(retryAfter(err))
	}
	return false
}

// write produces n batches of a size.
func (k *customer) write(topic wire.TopicID, n, size int) {
	req := &wire.ProduceRequest{Acks: wire.AcksAll, Batches: []wire.Batch{batchOf(k.w.t, wire.BuilderOptions{Topic: topic}, strings.Repeat("v", size))}}
	for n > 0 {
		if k.try(req, new(wire.ProduceResponse)) {
			k.bytes += int64(size)
			n--
		}
	}
}

// read reads a topic from its beginning again and again until the time is over.
func (k *customer) read(topic wire.TopicID, until time.Time) {
	at := wire.Offset(0)
	for time.Now().Before(until) {
		var resp wire.FetchResponse
		if !k.try(fetchOf(topic, 0, at), &resp) {
			continue
		}
		k.bytes += int64(resp.Partitions[0].Bytes)
		if at = resp.Partitions[0].Next; at >= resp.Partitions[0].Committed {
			at = 0
		}
	}
}

// steadily produces one batch of 1 KiB every 50 ms until the time is over.
func (k *customer) steadily(topic wire.TopicID, until time.Time) {
	for time.Now().Before(until) {
		k.write(topic, 1, 1<<10)
		time.Sleep(50 * time.Millisecond)
	}
}

// TestGreedyConnection: of 50 connections one sends all it has at once, and does
// not care what it is told. The others are never refused nor delayed, it gets
// what each may have, and in the end all it sent is there.
func TestGreedyConnection(t *testing.T) {
	f := func(deaf bool) {
		t.Helper()
		const quota, batch, backlog = 64 << 10, 16 << 10, 64
		inTown(t, func(c *Config) { c.Connection = Rates{Bytes: quota, Requests: 100} }, func(t *testing.T, w *town) {
			greedy := w.customer("main:1")
			greedy.deaf = deaf
			id := createOn(t, greedy.c, "t", 1)
			began := time.Now()
			until := began.Add(5 * time.Second)
			var all sync.WaitGroup
			var modest []*customer
			for range 49 {
				k := w.customer("main:1")
				modest = append(modest, k)
				all.Go(func() { k.steadily(id, until) })
			}
			var took time.Duration
			all.Go(func() {
				greedy.write(id, backlog, batch)
				took = time.Since(began)
			})
			all.Wait()
			for i, k := range modest {
				if k.refused > 0 || k.slowest > 0 {
					t.Fatalf("connection %d was refused %d times, its slowest answer took %v", i, k.refused, k.slowest)
				}
				k.c.Close()
			}
			const share = backlog * batch / quota // seconds
			if took < (share-2)*time.Second || took > (share+1)*time.Second {
				t.Fatalf("%d bytes at %d a second took %v", backlog*batch, quota, took)
			}
			if most := int(took/maxHoldOff) + backlog; greedy.refused == 0 || greedy.refused > most {
				t.Fatalf("%d refusals in %v", greedy.refused, took)
			}
			greedy.c.Close()
		})
	}
	f(false)
	f(true)
}

// TestGreedyTenant: a tenant asks for a hundred times its quota, with a crowd of
// writers and of readers far behind, half of whom do not wait when told to.
// Those of another tenant are never refused nor delayed; this one gets its quota,
// and its backlog drains.
func TestGreedyTenant(t *testing.T) {
	const quota, batch, backlog = 256 << 10, 64 << 10, 20
	inTown(t, func(c *Config) {
		c.Tenants = []Tenant{{Name: "batch", Listen: "batch:1", Rates: Rates{Bytes: quota}}}
	}, func(t *testing.T, w *town) {
		good := w.customer("main:1")
		id := createOn(t, good.c, "t", 1)
		bulk := createOn(t, good.c, "bulk", 1)
		w.customer("main:1").write(bulk, 50, batch) // what the readers lag behind

		began := time.Now()
		until := began.Add(20 * time.Second)
		var all sync.WaitGroup
		var crowd []*customer
		var drained atomic.Int64
		for n := range 20 {
			writer, reader := w.customer("batch:1"), w.customer("batch:1")
			writer.deaf, reader.deaf = n%2 == 0, n%2 == 0
			crowd = append(crowd, writer, reader)
			all.Go(func() {
				writer.write(bulk, backlog/10, batch)
				drained.Add(1)
			})
			all.Go(func() { reader.read(bulk, until) })
		}
		all.Go(func() { good.steadily(id, until) })
		all.Wait()
		if good.refused > 0 || good.slowest > 0 {
			t.Fatalf("the other tenant was refused %d times, its slowest answer took %v", good.refused, good.slowest)
		}
		used, refused := int64(0), 0
		for _, k := range crowd {
			used += k.bytes
			refused += k.refused
		}
		took := time.Since(began)
		most := quota + int64(took.Seconds()*quota) + 2*batch // and a debt
		if least := most / 2; used < least || used > most || refused == 0 {
			t.Fatalf("%d bytes in %v, %d refusals; want %d to %d bytes", used, took, refused, least, most)
		}
		if drained.Load() != 20 {
			t.Fatalf("%d of 20 writers came to their end", drained.Load())
		}
	})
}

// TestTenantAddress: who came by a tenant's listener is told to come back by it,
// not by the one where the tenant's quota is not known.
func TestTenantAddress(t *testing.T) {
	inTown(t, func(c *Config) {
		c.Tenants = []Tenant{{Name: "a", Listen: "a:1"}, {Name: "b", Listen: "b:1", Advertise: "b.example:7"}}
	}, func(t *testing.T, w *town) {
		for _, want := range [][2]string{{"main:1", "main:1"}, {"a:1", "a:1"}, {"b:1", "b.example:7"}} {
			var resp wire.MetadataResponse
			do(t, w.customer(want[0]).c, &wire.MetadataRequest{}, &resp)
			if resp.Nodes[0].Addr != want[1] {
				t.Fatalf("a client of %s is sent to %s", want[0], resp.Nodes[0].Addr)
			}
		}
	})
}
