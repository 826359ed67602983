package broker

import (
	"cmp"
	"fmt"
	"net"
	"time"

	"github.com/teralog/teralog/coord"
	"github.com/teralog/teralog/mem"
	"github.com/teralog/teralog/repl"
	"github.com/teralog/teralog/wire"
)

// Rates are what somebody may use up in a second: bytes of requests and of the
// batches in their answers, and requests. 0: as much as there is.
type Rates struct {
	Bytes    int64
	Requests int
}

// orElse returns r, with other's where r has none.
func (r Rates) orElse(other Rates) Rates {
	return Rates{cmp.Or(r.Bytes, other.Bytes), cmp.Or(r.Requests, other.Requests)}
}

// A Tenant has a listener of its own, and quotas that all who come by it share.
// Nobody says himself whose he is: until there are logins, that is for the
// network to see to, by who can reach which listener.
type Tenant struct {
	Name      string
	Listen    string // host:port; port 0 picks a free one
	Advertise string // address told to its clients; empty: the one listened on
	TLS       bool   // spoken there, with the certificate of tls-listen
	Rates     Rates  // 0: those of all tenants
}

// A quota is Rates in force. A nil one bounds nothing and costs nothing.
//
// It holds what may be used in a second of quiet. Who finds it in debt is
// refused, and told when it is paid; who does not may use any amount, so that a
// batch larger than a second's worth gets through, at the quota's rate.
type quota struct {
	whose               string
	rates               Rates
	bytes, requests     *mem.Bucket // nil: no bound
	onBytes, onRequests wire.Limit
}

// newQuota returns nil for no rates at all.
func newQuota(whose string, r Rates, onBytes, onRequests wire.Limit) *quota {
	if r == (Rates{}) {
		return nil
	}
	q := &quota{whose: whose, rates: r, onBytes: onBytes, onRequests: onRequests}
	if r.Bytes > 0 {
		q.bytes = mem.NewBucket(r.Bytes, r.Bytes)
	}
	if r.Requests > 0 {
		q.requests = mem.NewBucket(int64(r.Requests), int64(r.Requests))
	}
	return q
}

// wait returns the refusal of a request while the quota is in debt. bulk says
// that it is one to write or to read records: no other is refused for bytes.
func (q *quota) wait(now mem.Now, bulk bool) error {
	switch {
	case q == nil:
		return nil
	case q.requests != nil && q.requests.Wait(now) > 0:
		return overQuota(q.onRequests, q.requests.Wait(now), "%s may make %d requests a second", q.whose, q.rates.Requests)
	case bulk && q.bytes != nil && q.bytes.Wait(now) > 0:
		return overQuota(q.onBytes, q.bytes.Wait(now), "%s may use %s a second", q.whose, wire.FormatSize(q.rates.Bytes))
	}
	return nil
}

func overQuota(l wire.Limit, wait time.Duration, format string, args ...any) error {
	return &wire.Error{Code: wire.CodeQuota, Message: fmt.Sprintf(format, args...), RetryAfter: max(wait, time.Millisecond), Limit: l}
}

// take uses up n bytes and some requests.
func (q *quota) take(now mem.Now, n, requests int64) {
	if q == nil {
		return
	}
	if q.bytes != nil && n > 0 {
		q.bytes.Take(now, n)
	}
	if q.requests != nil && requests > 0 {
		q.requests.Take(now, requests)
	}
}

// room returns how many bytes an answer may have at most, so that its debt is
// not far above a second.
func (q *quota) room(n int64) int64 {
	if q == nil || q.bytes == nil {
		return n
	}
	return min(n, q.bytes.Burst())
}

// A session is what the gate knows of a connection. There is none, nil, where
// nothing is bounded.
type session struct {
	addr   *string // told to its client as ours; nil: that of the broker
	own    *quota
	tenant *quota
}

// A house is a listener and whose clients come by it.
type house struct {
	addr  string // "": told what all are
	quota *quota
}

func (b *Broker) newHouse(name string, r Rates, addr string) *house {
	return &house{addr, newQuota("tenant "+name, r.orElse(b.config.Tenant), wire.LimitTenantBytes, wire.LimitTenantRequests)}
}

// theDefault is the name of the tenant of the main listener.
const theDefault = "default"

// houses returns the owners of the listeners of the configured tenants, in their
// order.
func (b *Broker) houses(listeners []net.Listener) []*house {
	var all []*house
	for i, t := range b.config.Tenants {
		all = append(all, b.newHouse(t.Name, t.Rates, cmp.Or(t.Advertise, listeners[i].Addr().String())))
	}
	return all
}

// session makes what the calls of a new connection carry; owner is a *house.
func (b *Broker) session(owner any) any {
	h := owner.(*house)
	s := &session{own: newQuota("a connection", b.config.Connection, wire.LimitConnectionBytes, wire.LimitConnectionRequests), tenant: h.quota}
	if h.addr != "" {
		s.addr = &h.addr
	}
	if *s == (session{}) {
		return nil
	}
	return s
}

func sessionOf(c *wire.Call) *session {
	s, _ := c.Session().(*session)
	return s
}

// maxHoldOff bounds how long a connection is not read after a refusal of all
// that it may ask, at the end of which it would most likely be refused again.
const maxHoldOff = 100 * time.Millisecond

// admit says whether a connection and its tenant may make a request. One who
// asks on all the same is not read for a moment: what is refused unread costs
// nothing.
func (b *Broker) admit(c *wire.Call) error {
	s := sessionOf(c)
	if s == nil {
		return nil
	}
	now, bulk := b.time(), c.API == wire.APIProduce || c.API == wire.APIFetch
	err := s.own.wait(now, bulk)
	if err == nil {
		err = s.tenant.wait(now, bulk)
	}
	if err != nil {
		c.HoldOff(min(retryAfter(err), maxHoldOff))
		return err
	}
	n := int64(c.Len())
	s.own.take(now, n, 1)
	s.tenant.take(now, n, 1)
	return nil
}

// read uses up what an answer takes.
func (s *session) read(now mem.Now, bytes int64) {
	if s != nil {
		s.own.take(now, bytes, 0)
		s.tenant.take(now, bytes, 0)
	}
}

// room is that of the quotas.
func (s *session) room(n int64) int64 {
	if s == nil {
		return n
	}
	return s.tenant.room(s.own.room(n))
}

// topicQuota returns the quota of a topic, shared by its partitions here; nil
// if it has none.
func (b *Broker) topicQuota(t *coord.Topic) *quota {
	r := Rates{t.Config.QuotaBytes, int(t.Config.QuotaRequests)}.orElse(b.config.Topic)
	if r == (Rates{}) {
		return nil
	}
	b.hosts.mu.Lock()
	defer b.hosts.mu.Unlock()
	b.hosts.bounded.Store(true)
	q := b.hosts.quotas[t.ID]
	if q == nil {
		q = newQuota(fmt.Sprintf("topic %q", t.Name), r, wire.LimitTopicBytes, wire.LimitTopicRequests)
		b.hosts.quotas[t.ID] = q
	}
	return q
}

// quotaOf returns the quota of a partition's topic.
func quotaOf(p *repl.Partition) *quota {
	q, _ := p.Owner().(*quota)
	return q
}

// readQuota returns the quota of the topic of a partition to be read.
func (b *Broker) readQuota(id wire.PartitionID) *quota {
	if !b.hosts.bounded.Load() {
		return nil // without looking it up
	}
	p, err := b.set.Leader(id)
	if err != nil {
		return nil
	}
	return quotaOf(p)
}
