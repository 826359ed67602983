package bench

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/teralog/teralog/client"
	"github.com/teralog/teralog/wire"
)

// A target is the broker under load.
type target struct {
	*Broker
	c    *client.Client
	tls  *tls.Config // nil: plaintext
	dir  string      // its files, if it is our own child
	keep bool
}

// dialTime is how long the broker that was named may take to be there.
const dialTime = 5 * time.Second

// open starts a broker, or takes the one named.
func (l *load) open(start Start) (*target, error) {
	t := &target{Broker: &Broker{Addr: l.server, HTTP: l.http, PID: l.pid}}
	var err error
	if t.tls, err = l.tlsFiles.Config(); err != nil {
		return nil, usage{fmt.Errorf("TLS: %w", err)}
	}
	if l.server == "" {
		dir, err := os.MkdirTemp(l.dir, "teralog-bench-")
		if err != nil {
			return nil, err
		}
		if t.Broker, err = start(dir, "127.0.0.1:0", append([]string{"--http", "127.0.0.1:0"}, l.serve...)...); err != nil {
			os.RemoveAll(dir)
			return nil, fmt.Errorf("start a broker: %w", err)
		}
		t.dir, t.keep = dir, l.keep
	} else if conn, err := net.DialTimeout("tcp", l.server, dialTime); err != nil {
		return nil, fmt.Errorf("no broker listens at %s: %w", l.server, err) // the client would go on trying
	} else {
		conn.Close()
	}
	c, err := client.New(client.Options{Servers: []string{t.Addr}, TLS: t.tls, Name: "teralog-bench"})
	if err != nil {
		return nil, errors.Join(usage{err}, t.close())
	}
	t.c = c
	return t, nil
}

// close stops a broker of our own and removes its files, unless they are to stay.
func (t *target) close() (err error) {
	if t.c != nil {
		t.c.Close()
	}
	if t.dir == "" {
		return nil
	}
	if err = t.Stop(); !t.keep {
		err = errors.Join(err, os.RemoveAll(t.dir))
	}
	return err
}

// prepareTime is how long a topic may take to be made, which is long for one
// of ten thousand partitions.
const prepareTime = 5 * time.Minute

// prepare makes the topic, or sees that the one there is fits. Partitions and
// flush mode of the load are those of the topic from then on.
func (t *target) prepare(ctx context.Context, l *load) error {
	c, err := client.New(client.Options{Servers: []string{t.Addr}, TLS: t.tls, Name: "teralog-bench", RequestTimeout: prepareTime})
	if err != nil {
		return err
	}
	defer c.Close()
	spec := client.TopicSpec{Name: l.topic, Partitions: int32(max(l.partitions, 1)), Settings: l.settings.or("flush", cmp.Or(l.flush, flushWords[0]))}
	if l.batch > wire.DefaultMaxBatch {
		spec.Settings = settings(spec.Settings).or("max.batch.bytes", strconv.FormatInt(l.batch, 10))
	}
	_, err = c.CreateTopic(ctx, spec)
	exists := errors.Is(err, wire.CodeTopicExists)
	if err != nil && !exists {
		return err
	}
	ds, err := c.DescribeTopics(ctx, l.topic)
	if err != nil {
		return err
	}
	have := settings(ds[0].Settings)
	if exists {
		if n := len(ds[0].Partitions); l.partitions != 0 && n != l.partitions {
			return usage{fmt.Errorf("topic %q has %d partitions, not %d; name another --topic", l.topic, n, l.partitions)}
		}
		asked := l.settings
		if l.flush != "" {
			asked = asked.or("flush", l.flush)
		}
		for _, want := range asked {
			if v := have.get(want.Key); !same(v, want.Value) {
				return usage{fmt.Errorf("topic %q has %s=%s, not %s; name another --topic", l.topic, want.Key, v, want.Value)}
			}
		}
	}
	l.partitions, l.flush = len(ds[0].Partitions), cmp.Or(have.get("flush"), flushWords[0])
	return nil
}

// same reports whether two values of a setting mean the same.
func same(a, b string) bool {
	sizeA, errA := wire.ParseSize(a)
	sizeB, errB := wire.ParseSize(b)
	if errA == nil && errB == nil {
		return sizeA == sizeB
	}
	timeA, errA := wire.ParseDuration(a)
	timeB, errB := wire.ParseDuration(b)
	return a == b || errA == nil && errB == nil && timeA == timeB
}

// logFiles returns the segment files of the load's topic on our own broker,
// those of a partition oldest first.
func (t *target) logFiles(l *load) (byPartition [][]string, err error) {
	for p := range l.partitions {
		names, err := filepath.Glob(filepath.Join(t.dir, "data", "topics", l.topic, fmt.Sprintf("partition-%04d", p), "*.log"))
		if err != nil {
			return nil, err
		}
		slices.Sort(names)
		byPartition = append(byPartition, names)
	}
	return byPartition, nil
}
