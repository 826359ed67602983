package bench

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"strconv"
	"strings"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A flight is one line of the file.
type flight struct {
	line   string // as it stands there, without its end
	origin string
	delay  int64 // minutes
	time   time.Time
}

// A flightTruth is what the file beside the flights says of them.
type flightTruth struct {
	Records int64 `json:"records"`
	PerKey  map[string]struct {
		Records int64  `json:"records"`
		SHA256  string `json:"sha256"` // of the key's lines in order, joined by newlines
	} `json:"perKey"`
	Windows []struct {
		From     time.Time `json:"from"`
		To       time.Time `json:"to"`
		Records  int64     `json:"records"`
		DelaySum int64     `json:"delaySum"`
	} `json:"windows"`
}

// parseFlight reads a line MMDDhhmm,delay,distance,origin,destination of 2001.
func parseFlight(line string) (f flight, err error) {
	fields := strings.Split(line, ",")
	if len(fields) != 5 {
		return f, fmt.Errorf("%q has %d fields, not 5", line, len(fields))
	}
	f.line, f.origin = line, fields[3]
	if f.time, err = time.Parse("200601021504", "2001"+fields[0]); err != nil {
		return f, err
	}
	f.delay, err = strconv.ParseInt(fields[1], 10, 64)
	return f, err
}

// readFlights calls each with every flight of the file, in order.
func readFlights(dir fs.FS, each func(flight) error) error {
	file, err := dir.Open("flights-2001.csv.gz")
	if err != nil {
		return err
	}
	defer file.Close()
	z, err := gzip.NewReader(file)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(z)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		f, err := parseFlight(lines.Text())
		if err == nil {
			err = each(f)
		}
		if err != nil {
			return err
		}
	}
	return lines.Err()
}

const (
	flightsTopic      = "flights"
	flightsPartitions = 6
)

// flights loads them with a kill half-way, reads them back and looks into
// windows of time.
func (d *demo) flights(ctx context.Context, dir fs.FS) error {
	text, err := fs.ReadFile(dir, "flights-2001.expect.json")
	if err != nil {
		return err
	}
	var truth flightTruth
	if err := json.Unmarshal(text, &truth); err != nil {
		return err
	}
	if err := d.topic(ctx, flightsTopic, flightsPartitions); err != nil {
		return err
	}
	acked, err := d.loadFlights(ctx, dir, truth.Records)
	if err != nil {
		return err
	}
	if err := d.readFlights(ctx, &truth, acked); err != nil {
		return err
	}
	for _, w := range truth.Windows {
		var n, sum int64
		name := fmt.Sprintf("flights: window %s to %s", w.From.Format("01-02 15:04"), w.To.Format("01-02 15:04"))
		r := client.Range{From: client.AtTime(client.EventTime, w.From.UnixMilli()), To: client.AtTime(client.EventTime, w.To.UnixMilli())}
		s, err := d.read(ctx, name, flightsTopic, r, func(m *client.Message) error {
			f, err := parseFlight(string(m.Value))
			n, sum = n+1, sum+f.delay
			return err
		})
		if err != nil {
			return err
		}
		s.Seconds = 0 // its rate says nothing: most of what is read is dropped
		d.add(s, fmt.Sprintf("%d records, delay %d min", w.Records, w.DelaySum), fmt.Sprintf("%d records, delay %d min", n, sum))
	}
	return nil
}

// place is where the broker said a record lies.
type place struct {
	partition int32
	offset    wire.Offset
}

// loadFlights returns where each acknowledged line lies. The broker is killed
// when half of them were acknowledged; the producer goes on by itself.
func (d *demo) loadFlights(ctx context.Context, dir fs.FS, want int64) (map[place]string, error) {
	half := want / 2
	l, err := d.load(half)
	if err != nil {
		return nil, err
	}
	killed := make(chan error, 1)
	go func() {
		select {
		case <-l.wake:
			killed <- d.crash()
		case <-ctx.Done():
			killed <- ctx.Err()
		}
	}()
	acked := make(map[place]string, want)
	sent := 0
	err = readFlights(dir, func(f flight) error {
		if sent++; sent%5000 == 0 {
			d.say("flights: %d of %d sent", sent, want)
		}
		return l.send(ctx, client.Record{Topic: flightsTopic, Key: []byte(f.origin), Value: []byte(f.line), Time: f.time},
			func(a client.Ack) { acked[place{a.Partition, a.Offset}] = f.line })
	})
	if err != nil {
		return nil, err
	}
	s, err := l.finish(ctx, "flights: load, broker killed at "+strconv.FormatInt(half, 10))
	if err != nil {
		return nil, err
	}
	if err := <-killed; err != nil {
		return nil, err
	}
	d.add(s, fmt.Sprintf("%d acknowledged", want), fmt.Sprintf("%d acknowledged", len(acked)))
	return acked, nil
}

// readFlights reads all back: each key's order and hash, and what was
// acknowledged under its offset.
func (d *demo) readFlights(ctx context.Context, truth *flightTruth, acked map[place]string) error {
	type seen struct {
		n    int64
		hash hash.Hash
	}
	keys := map[string]*seen{}
	lost := len(acked)
	s, err := d.read(ctx, "flights: read back", flightsTopic, client.Range{To: client.End()}, func(m *client.Message) error {
		k := keys[string(m.Key)]
		if k == nil {
			k = &seen{hash: sha256.New()}
			keys[string(m.Key)] = k
		}
		if k.n++; k.n > 1 {
			k.hash.Write([]byte{'\n'})
		}
		k.hash.Write(m.Value)
		if line, ok := acked[place{m.Partition, m.Offset}]; ok && line == string(m.Value) {
			lost--
		}
		return nil
	})
	if err != nil {
		return err
	}
	good := 0
	for key, want := range truth.PerKey {
		if k := keys[key]; k != nil && k.n == want.Records && hex.EncodeToString(k.hash.Sum(nil)) == want.SHA256 {
			good++
		}
	}
	d.add(s, fmt.Sprintf("%d records", truth.Records), fmt.Sprintf("%d records", s.Records))
	d.add(step{Name: "flights: each key's order and hash"}, fmt.Sprintf("%d of %d keys", len(truth.PerKey), len(truth.PerKey)), fmt.Sprintf("%d of %d keys", good, len(keys)))
	d.add(step{Name: "flights: acknowledged and lost by the kill"}, "0 records", fmt.Sprintf("%d records", lost))
	if len(acked) == 0 {
		return errors.New("no record was acknowledged")
	}
	return nil
}
