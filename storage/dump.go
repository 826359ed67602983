package storage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/teralog/teralog/wire"
)

// DumpOptions say what Dump prints.
type DumpOptions struct {
	Records bool // the records of each batch too
	JSON    bool // one JSON object a line
}

// Dump prints what lies in path: a partition's folder, a data directory, or
// one .log file. It only reads, and needs no other process to be stopped:
// what is being written meanwhile may look torn at the end. Damaged bytes are
// printed as such and stepped over; err is the disk's or w's.
func Dump(w io.Writer, fs FS, path string, o DumpOptions) error {
	out := bufio.NewWriter(w)
	d := &inspector{fs: fs, o: o, show: textPrinter{out}.print}
	if o.JSON {
		e := json.NewEncoder(out)
		e.SetEscapeHTML(false)
		d.show = func(l line) { e.Encode(l) }
	}
	if err := d.inspect(path); err != nil {
		return err
	}
	return out.Flush()
}

// VerifyPath checks every byte of what Dump would print: batches, their order,
// index files, producer snapshots, leader epochs, manifest. It prints a line for each
// thing that is wrong and one for each partition, and returns how many are wrong.
func VerifyPath(w io.Writer, fs FS, path string) (damaged int, err error) {
	out := bufio.NewWriter(w)
	text := textPrinter{out}
	d := &inspector{fs: fs, show: func(l line) {
		switch l.Kind {
		case "damage":
			damaged++
			text.print(l)
		case "end":
			text.print(l)
		}
	}}
	if err := d.inspect(path); err != nil {
		return damaged, err
	}
	return damaged, out.Flush()
}

// A line is one thing found; which fields are set goes by Kind.
type line struct {
	Kind      string       `json:"kind"` // partition segment batch record index epoch producers ahead damage end
	File      string       `json:"file,omitempty"`
	Position  *int64       `json:"position,omitempty"` // in File, bytes
	Bytes     int64        `json:"bytes,omitempty"`
	Topic     string       `json:"topic,omitempty"`
	TopicID   wire.TopicID `json:"topicId,omitempty"`
	Partition *int32       `json:"partition,omitempty"`
	Offset    *wire.Offset `json:"offset,omitempty"`
	Last      *wire.Offset `json:"last,omitempty"` // inclusive

	Time       *int64      `json:"time,omitempty"`
	AppendTime *int64      `json:"appendTime,omitempty"`
	Epoch      *wire.Epoch `json:"leaderEpoch,omitempty"`

	Producer      wire.ProducerID `json:"producer,omitempty"`
	ProducerEpoch int16           `json:"producerEpoch,omitempty"`
	Sequence      int32           `json:"sequence,omitempty"`
	Codec         string          `json:"codec,omitempty"`
	Count         int             `json:"count,omitempty"`

	Key     *text      `json:"key,omitempty"`
	Value   *text      `json:"value,omitempty"`
	Headers [][2]*text `json:"headers,omitempty"`
	Problem string     `json:"problem,omitempty"`
}

// A text is bytes that print as a string if they are one. A nil slice is null.
type text []byte

// MarshalJSON returns a string, null, or {"base64":"…"} for what is not UTF-8.
func (t text) MarshalJSON() ([]byte, error) {
	switch {
	case t == nil:
		return []byte("null"), nil
	case utf8.Valid(t):
		return json.Marshal(string(t))
	}
	return json.Marshal(struct {
		Base64 []byte `json:"base64"`
	}{t})
}

func (t *text) String() string {
	if t == nil || *t == nil {
		return "null"
	}
	return fmt.Sprintf("%q", []byte(*t))
}

// An inspector reads logs offline.
type inspector struct {
	fs    FS
	o     DumpOptions
	show  func(line)
	wrong int
	id    wire.PartitionID // 0 until a manifest or a batch told it
	next  wire.Offset      // due; -1: any
}

func (d *inspector) damage(file string, pos int64, problem string) {
	d.wrong++
	d.show(line{Kind: "damage", File: file, Position: &pos, Problem: problem})
}

// inspect goes through a file, or through a folder and those in it.
func (d *inspector) inspect(name string) error {
	e, err := d.fs.Stat(name)
	if err != nil {
		return err
	}
	if !e.Dir {
		if !strings.HasSuffix(name, logSuffix) {
			return fmt.Errorf("%s is neither a folder nor a .log file", name)
		}
		d.id, d.next = wire.PartitionID{}, -1
		_, err := d.segment(name, e.Size)
		return err
	}
	es, err := d.fs.ReadDir(name)
	if err != nil {
		return err
	}
	for _, e := range es {
		if _, ok := parseName(e, logSuffix); ok {
			return d.partition(name, es)
		}
	}
	for _, e := range es {
		if e.Dir {
			if err := d.inspect(path.Join(name, e.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}

// partition goes through a partition's folder.
func (d *inspector) partition(dir string, es []Entry) error {
	d.id, d.next, d.wrong = wire.PartitionID{}, -1, 0
	m, err := readManifest(d.fs, dir)
	switch {
	case err == nil:
		d.id = m.id
		d.show(line{Kind: "partition", File: dir, Topic: m.topic, TopicID: m.id.Topic, Partition: &m.id.Partition})
	case notExist(err):
	case errors.Is(err, wire.ErrCorrupt) || errors.Is(err, ErrNewer):
		d.damage(dir, 0, err.Error())
	default:
		return err
	}
	var bytes int64
	for _, e := range es {
		base, ok := parseName(e, logSuffix)
		if !ok {
			continue
		}
		if d.next >= 0 && base != d.next {
			d.damage(path.Join(dir, e.Name), 0, fmt.Sprintf("the segment before ends at offset %d", d.next))
		}
		d.next = base
		t, err := d.segment(path.Join(dir, e.Name), e.Size)
		if err != nil {
			return err
		}
		bytes += e.Size
		if err := d.indexes(dir, base, &t, e.Size); err != nil {
			return err
		}
	}
	if err := d.epochs(dir); err != nil {
		return err
	}
	if err := d.snapshots(dir, es); err != nil {
		return err
	}
	problem := "good"
	if d.wrong > 0 {
		problem = fmt.Sprintf("%d problems", d.wrong)
	}
	d.show(line{Kind: "end", File: dir, Offset: &d.next, Bytes: bytes, Problem: problem})
	return nil
}

// segment goes through one .log file and returns what its index should say.
func (d *inspector) segment(name string, size int64) (tail, error) {
	f, err := d.fs.Open(name, Read)
	if err != nil {
		return tail{}, err
	}
	defer f.Close()
	d.show(line{Kind: "segment", File: name, Bytes: size})
	d.learn(f)
	base := max(d.next, 0)
	t := newTail(base)
	w := newWalker(f, d.id, 0, base, size, scanBytes)
	defer w.close()
	for whole := true; ; {
		b, err := w.batch()
		if errors.Is(err, wire.ErrCorrupt) && d.ahead(f, name, w.pos, size) {
			err = io.EOF
		}
		switch {
		case err == io.EOF:
			d.next = w.next
			if !whole {
				t.size = -1 // the index knows what stands there no more
			}
			return t, nil
		case errors.Is(err, wire.ErrCorrupt):
			d.damageAt(name, w.pos, w.next, err)
			whole = false
			if !w.resync(math.MaxInt64) {
				d.next, t.size = w.next, -1
				return t, nil
			}
		case err != nil:
			return tail{}, err
		default:
			t.size = w.pos
			t.add(base, b, 1)
			if err := d.batch(f, name, w.pos, b); err != nil {
				return tail{}, err
			}
			w.skip(b)
		}
	}
}

// ahead reports whether all that stands from pos on is space that the metadata log
// has allocated ahead: it gives that back when it ends or begins another file.
func (d *inspector) ahead(f File, name string, pos, size int64) bool {
	if d.id.Topic != wire.MetadataTopic {
		return false
	}
	zeros, err := onlyZeros(f, pos, size)
	if err != nil || !zeros {
		return false
	}
	d.show(line{Kind: "ahead", File: path.Base(name), Position: &pos})
	return true
}

func (d *inspector) damageAt(name string, pos int64, due wire.Offset, err error) {
	d.wrong++
	d.show(line{Kind: "damage", File: name, Position: &pos, Offset: &due, Problem: err.Error()})
}

// learn takes partition and first offset from the first batch if nothing told
// them before.
func (d *inspector) learn(f File) {
	var h [wire.HeaderSize]byte
	f.ReadAt(h[:], 0) // what is missing is no header
	b, err := wire.ParseHeader(h[:])
	if err != nil {
		return
	}
	if d.id == (wire.PartitionID{}) {
		d.id = wire.PartitionID{Topic: b.Topic(), Partition: b.Partition()}
	}
	if d.next < 0 {
		d.next = b.BaseOffset()
	}
}

func (d *inspector) batch(f File, name string, pos int64, b wire.Batch) error {
	id, epoch, seq := b.Producer()
	base, last, at, stamp, leader := b.BaseOffset(), b.LastOffset(), eventTime(b), b.AppendTime(), b.LeaderEpoch()
	d.show(line{
		Kind: "batch", File: path.Base(name), Position: &pos, Bytes: int64(b.Len()), Offset: &base, Last: &last, Epoch: &leader,
		Time: &at, AppendTime: &stamp, Producer: max(id, 0), ProducerEpoch: max(epoch, 0), Sequence: max(seq, 0),
		Codec: b.Codec().String(), Count: b.Count(),
	})
	if !d.o.Records {
		return nil
	}
	buf, err := readBatch(f, pos, b.Len())
	if buf != nil {
		defer buf.Release()
	}
	if err != nil {
		return err
	}
	dec := &wire.Decoder{MaxRecords: math.MaxInt32}
	defer dec.Release()
	err = wire.Batch(buf.B).Records(dec, func(r *wire.Record) error {
		d.record(r, stamp, leader)
		return nil
	})
	if err != nil {
		d.damageAt(name, pos, base, err)
	}
	return nil
}

func (d *inspector) record(r *wire.Record, stamp int64, leader wire.Epoch) {
	l := line{Kind: "record", Partition: &d.id.Partition, Offset: &r.Offset, Time: &r.Time, AppendTime: &stamp,
		Epoch: &leader, Key: (*text)(&r.Key), Value: (*text)(&r.Value)}
	for _, h := range r.Headers {
		key, value := text(h.Key), text(h.Value)
		l.Headers = append(l.Headers, [2]*text{&key, &value})
	}
	d.show(l)
}

// indexes checks the index files of a segment against t, which has an entry for
// every batch. Files of the active segment have no trailer.
func (d *inspector) indexes(dir string, base wire.Offset, t *tail, size int64) error {
	for _, x := range indexFiles {
		name := segmentName(dir, base, x.suffix)
		f, err := d.fs.Open(name, Read)
		if notExist(err) {
			continue
		}
		if err != nil {
			return err
		}
		err = d.index(f, x, name, base, t, size)
		f.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *inspector) index(f File, x indexFile, name string, base wire.Offset, t *tail, size int64) error {
	n, err := f.Size()
	if err != nil {
		return err
	}
	r, err := x.readTrailer(f, d.id, base)
	sealed := err == nil
	count := int(n / int64(x.width))
	if sealed {
		count = r.count
		if r.length != size || t.size >= 0 && r.end != t.end {
			d.damage(name, n-trailerSize, fmt.Sprintf("trailer of a segment of %d bytes that ends at offset %d", r.length, r.end))
		}
	}
	var sum uint32
	err = eachChunk(f, 0, int64(count*x.width), func(_ int64, p []byte) error { sum = crc32.Update(sum, castagnoli, p); return nil })
	if err != nil {
		return err
	}
	bad, err := x.firstLie(f, count, t)
	if err != nil {
		return err
	}
	state := "good"
	if sealed {
		state = "good, sealed"
	}
	if bad >= 0 || sealed && sum != r.sum {
		state = "bad"
		d.damage(name, int64(max(bad, 0)*x.width), "entries that do not fit the segment")
	}
	d.show(line{Kind: "index", File: path.Base(name), Count: count, Problem: state})
	return nil
}

// firstLie returns the first of count entries that is not one of t's, -1 if
// there is none.
func (x indexFile) firstLie(f File, count int, t *tail) (int, error) {
	if t.size < 0 {
		return -1, nil
	}
	buf := buffers.Get(x.width)
	defer buf.Release()
	at := 0
	for i := range count {
		if _, err := f.ReadAt(buf.B, int64(i*x.width)); err != nil && err != io.EOF {
			return 0, err
		}
		for at < len(t.heap) && string(x.line(t.heap[at], nil)) != string(buf.B) {
			at++
		}
		if at == len(t.heap) {
			return i, nil
		}
	}
	return -1, nil
}

func (d *inspector) epochs(dir string) error {
	h := epochs{home: &home{fs: d.fs, path: dir, id: d.id}}
	err := h.load()
	if errors.Is(err, wire.ErrCorrupt) {
		d.damage(path.Join(dir, epochsName), 0, err.Error())
		return nil
	}
	for _, x := range h.list {
		d.show(line{Kind: "epoch", Epoch: &x.epoch, Offset: &x.start})
	}
	return err
}

func (d *inspector) snapshots(dir string, es []Entry) error {
	for _, e := range es {
		at, ok := parseName(e, snapshotSuffix)
		if !ok {
			continue
		}
		p, err := readProducers(&home{fs: d.fs, path: dir, id: d.id}, at, Options{}.filled())
		switch {
		case errors.Is(err, wire.ErrCorrupt):
			d.damage(path.Join(dir, e.Name), 0, err.Error())
		case err != nil:
			return err
		default:
			d.show(line{Kind: "producers", File: e.Name, Offset: &at, Count: p.Len()})
		}
	}
	return nil
}

// A textPrinter prints lines for people.
type textPrinter struct{ w io.Writer }

func (p textPrinter) print(l line) {
	switch l.Kind {
	case "partition":
		fmt.Fprintf(p.w, "%s: topic %s (%d), partition %d\n", l.File, l.Topic, l.TopicID, *l.Partition)
	case "segment":
		fmt.Fprintf(p.w, "%s: %d bytes\n", l.File, l.Bytes)
	case "batch":
		fmt.Fprintf(p.w, "  offsets %d to %d at byte %d: %d bytes, %d records, codec %s, epoch %d, time %s, appended %s%s\n",
			*l.Offset, *l.Last, *l.Position, l.Bytes, l.Count, l.Codec, *l.Epoch, moment(*l.Time), moment(*l.AppendTime), sequence(l))
	case "record":
		fmt.Fprintf(p.w, "    %d %s key %v value %v", *l.Offset, moment(*l.Time), l.Key, l.Value)
		for _, h := range l.Headers {
			fmt.Fprintf(p.w, " %v=%v", h[0], h[1])
		}
		fmt.Fprintln(p.w)
	case "index":
		fmt.Fprintf(p.w, "  %s: %d entries, %s\n", l.File, l.Count, l.Problem)
	case "epoch":
		fmt.Fprintf(p.w, "  leader epoch %d from offset %d\n", *l.Epoch, *l.Offset)
	case "producers":
		fmt.Fprintf(p.w, "  %s: %d producers\n", l.File, l.Count)
	case "ahead":
		fmt.Fprintf(p.w, "  %s: from byte %d on allocated ahead\n", l.File, *l.Position)
	case "damage":
		fmt.Fprintf(p.w, "%s: byte %d: DAMAGED: %s\n", l.File, *l.Position, l.Problem)
	case "end":
		fmt.Fprintf(p.w, "%s: end offset %d, %d bytes, %s\n", l.File, *l.Offset, l.Bytes, l.Problem)
	}
}

func sequence(l line) string {
	if l.Producer == 0 {
		return ""
	}
	return fmt.Sprintf(", producer %d epoch %d sequence %d", l.Producer, l.ProducerEpoch, l.Sequence)
}

// moment is ms since the epoch as people read it; times outside the years that
// the form has stay numbers.
func moment(ms int64) string {
	if t := time.UnixMilli(ms).UTC(); t.Year() >= 0 && t.Year() <= 9999 {
		return t.Format("2006-01-02T15:04:05.000Z")
	}
	return fmt.Sprint(ms)
}
