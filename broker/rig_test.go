package broker

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/storage"
	"github.com/teralog/teralog/wire"
)

// A rig is a manual broker on a disk in memory. Its time stands still until
// the test moves it, and nothing happens but in settle.
type rig struct {
	t      testing.TB
	fs     *storage.MemFS
	now    mem.Now
	boot   int
	ids    uint64
	config Config
	b      *Broker
}

// newRig returns a rig whose broker has started on an empty disk.
func newRig(t testing.TB, set ...func(*Config)) *rig {
	r := &rig{t: t, fs: storage.NewMemFS(1), now: mem.Now{Wall: 1_750_000_000_000}, config: DefaultConfig()}
	r.config.DataDirs, r.config.Reserve = []string{"data"}, 64<<10
	for _, f := range set {
		f(&r.config)
	}
	r.start()
	return r
}

// tryStart starts a broker on what the disk holds.
func (r *rig) tryStart() error {
	b, err := New(r.config, Env{
		FS: r.fs, Boot: fmt.Sprint(r.boot), Manual: true, Log: slog.New(slog.DiscardHandler),
		NewID: func() (id wire.UUID) {
			r.ids++
			binary.LittleEndian.PutUint64(id[:], r.ids*0x9E3779B97F4A7C15)
			return id
		},
		Now: func() mem.Now { return r.now },
	})
	r.b = b
	return err
}

func (r *rig) start() {
	r.t.Helper()
	if err := r.tryStart(); err != nil {
		r.t.Fatalf("start: %v", err)
	}
}

// stop stops the broker cleanly.
func (r *rig) stop() {
	r.t.Helper()
	if err := r.b.Close(); err != nil {
		r.t.Fatalf("stop: %v", err)
	}
}

// kill ends the process without a word; with power the machine too, and
// nothing unsynced is left.
func (r *rig) kill(power bool) {
	if !power {
		r.fs = r.fs.Clone()
		return
	}
	r.boot++
	r.fs = r.fs.Crash(storage.CrashNone)
}

// wantEvent expects one event that says so.
func (r *rig) wantEvent(says string) {
	r.t.Helper()
	all := lines(r.b)
	if n := strings.Count(strings.Join(all, "\n"), says); n != 1 {
		r.t.Fatalf("%d events say %s: %q", n, says, all)
	}
}

// settle lets happen what can.
func (r *rig) settle() {
	for r.b.Turn() {
	}
}

// pass moves the time by d, a second at a time.
func (r *rig) pass(d time.Duration) {
	for d > 0 {
		step := min(d, time.Second)
		r.now.Mono += step
		r.now.Wall += step.Milliseconds()
		r.settle()
		d -= step
	}
}

// A pending is a request under way.
type pending struct {
	resp    wire.Message
	err     error
	after   time.Duration // when to retry, as the answer says
	answers int
	silent  bool // the answer was that there is none
}

// begin sends a request and does not wait.
func (r *rig) begin(req, resp wire.Message) *pending {
	p := &pending{resp: resp}
	c := wire.NewCall(req.API(), 0, req.AppendTo(nil, 0), func(frame []byte, files []wire.FileRange) {
		p.answers++
		p.silent = frame == nil
		if frame == nil {
			return
		}
		body := append([]byte(nil), frame[16:]...)
		for _, f := range files {
			b := make([]byte, f.Len)
			if n, err := f.R.ReadAt(b, f.Off); n < len(b) || err != nil && err != io.EOF {
				r.t.Errorf("range of %v: %d of %d bytes: %v", req.API(), n, len(b), err)
			}
			body = append(body, b...)
			if f.Done != nil {
				f.Done()
			}
		}
		if size := binary.LittleEndian.Uint32(frame); int(size) != len(body)+12 {
			r.t.Errorf("%v answers a frame of %d bytes that says %d", req.API(), len(body)+12, size)
		}
		p.after = time.Duration(binary.LittleEndian.Uint32(frame[12:])) * time.Millisecond
		var in wire.Reader
		if code := wire.Code(binary.LittleEndian.Uint16(frame[8:])); code != wire.CodeOK {
			in.Reset(body)
			p.err = &wire.Error{Code: code, Message: in.String(), RetryAfter: p.after}
			return
		}
		p.err = wire.DecodeBody(&in, resp, 0, body)
	})
	r.b.ServeCall(c)
	return p
}

// ask sends a request and lets everything happen that brings its answer.
func (r *rig) ask(req, resp wire.Message) error {
	r.t.Helper()
	p := r.begin(req, resp)
	r.settle()
	if p.answers != 1 {
		r.t.Fatalf("%v was answered %d times", req.API(), p.answers)
	}
	return p.err
}

// create makes a topic.
func (r *rig) create(name string, partitions int32, settings ...wire.Setting) wire.TopicID {
	r.t.Helper()
	var resp wire.CreateTopicResponse
	if err := r.ask(&wire.CreateTopicRequest{Name: name, Partitions: partitions, Settings: settings}, &resp); err != nil {
		r.t.Fatalf("create %s: %v", name, err)
	}
	return resp.ID
}

func (r *rig) delete(id wire.TopicID) {
	r.t.Helper()
	if err := r.ask(&wire.DeleteTopicRequest{ID: id}, &wire.DeleteTopicResponse{}); err != nil {
		r.t.Fatalf("delete: %v", err)
	}
}

// send produces batches with acks=all and returns a result for each.
func (r *rig) send(batches ...wire.Batch) []wire.ProduceResult {
	r.t.Helper()
	var resp wire.ProduceResponse
	if err := r.ask(&wire.ProduceRequest{Acks: wire.AcksAll, Batches: batches}, &resp); err != nil {
		r.t.Fatalf("produce: %v", err)
	}
	return resp.Results
}

// write produces one record per value in one batch, and returns its offset.
func (r *rig) write(topic wire.TopicID, partition int32, values ...string) wire.Offset {
	r.t.Helper()
	res := r.send(batchOf(r.t, wire.BuilderOptions{Topic: topic, Partition: partition}, values...))[0]
	if res.Code != wire.CodeOK {
		r.t.Fatalf("write to %d: %v: %s", partition, res.Code, res.Message)
	}
	return res.Base
}

// batchOf builds a batch of one record per value, at the times 1000, 1001, ….
func batchOf(t testing.TB, o wire.BuilderOptions, values ...string) wire.Batch {
	t.Helper()
	if o.MaxBytes == 0 {
		o.MaxBytes = wire.MaxBatchBytes
	}
	b := wire.NewBuilder(o)
	for i, v := range values {
		if ok, err := b.Add(int64(1000+i), nil, []byte(v), nil); !ok || err != nil {
			t.Fatalf("record of %d bytes: %v", len(v), err)
		}
	}
	built, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	defer built.Release()
	return append(wire.Batch(nil), built.B...)
}

// fetchOf asks for one partition, at once, as a consumer that knows nothing.
func fetchOf(topic wire.TopicID, partition int32, at wire.Offset) *wire.FetchRequest {
	return &wire.FetchRequest{Replica: wire.NoNode, MinBytes: 1, MaxBytes: 1 << 20, Partitions: []wire.FetchPartition{position(topic, partition, at)}}
}

func position(topic wire.TopicID, partition int32, at wire.Offset) wire.FetchPartition {
	return wire.FetchPartition{Topic: topic, Partition: partition, Offset: at, Epoch: wire.NoEpoch, LastEpoch: wire.NoEpoch, MaxBytes: 1 << 20}
}

// read fetches and returns the results.
func (r *rig) read(req *wire.FetchRequest) []wire.FetchResult {
	r.t.Helper()
	var resp wire.FetchResponse
	if err := r.ask(req, &resp); err != nil {
		r.t.Fatalf("fetch: %v", err)
	}
	return resp.Partitions
}

// valuesOf returns what the batches of a fetch result hold.
func valuesOf(t testing.TB, data []byte) (values []string) {
	t.Helper()
	var d wire.Decoder
	defer d.Release()
	for b, err := range wire.Batches(data) {
		err = errors.Join(err, b.Verify())
		if err == nil {
			err = b.Records(&d, func(r *wire.Record) error { values = append(values, string(r.Value)); return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return values
}

// readAll reads a partition from its start to its end.
func (r *rig) readAll(topic wire.TopicID, partition int32) (values []string) {
	r.t.Helper()
	at := wire.Offset(0)
	if p, err := r.b.Set().Leader(wire.PartitionID{Topic: topic, Partition: partition}); err == nil {
		at = p.View().Start
	}
	for {
		res := r.read(fetchOf(topic, partition, at))[0]
		if res.Code != wire.CodeOK {
			r.t.Fatalf("read %d at %d: %v", partition, at, res.Code)
		}
		if res.Bytes == 0 {
			return values
		}
		values = append(values, valuesOf(r.t, res.Data)...)
		at = res.Next
	}
}

// resum makes the CRCs of a batch those of its bytes.
func resum(b wire.Batch) {
	table := crc32.MakeTable(crc32.Castagnoli)
	binary.LittleEndian.PutUint32(b[12:], crc32.Checksum(b[wire.HeaderSize:], table))
	binary.LittleEndian.PutUint32(b[4:], crc32.Checksum(b[8:wire.HeaderSize], table))
}

// hugeBatch is a batch of one record whose section has more bytes without its
// codec than a batch may have.
func hugeBatch(t testing.TB, topic wire.TopicID, n int) wire.Batch {
	t.Helper()
	section := binary.AppendVarint(nil, int64(n+4+len(binary.AppendVarint(nil, int64(n)))+1))
	section = append(section, 0, 0, 0, 1) // attributes, time delta, offset delta, null key
	section = binary.AppendVarint(section, int64(n))
	section = append(section, make([]byte, n)...)
	section = append(section, 0)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(section)
	z.Close()
	b := batchOf(t, wire.BuilderOptions{Topic: topic, Codec: wire.Gzip}, strings.Repeat("to be replaced ", 20))
	b = append(b[:wire.HeaderSize], packed.Bytes()...)
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)))
	binary.LittleEndian.PutUint32(b[84:], uint32(len(section)))
	resum(b)
	return b
}
