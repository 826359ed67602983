package wire

import (
	"net"
	"net/netip"
	"time"
)

// strangers counts connections that have not said Hello yet. Each costs memory
// and a goroutine, and nobody knows whose it is but for where it comes from.
//
// When thousands of clients of one address come back at once, many are counted
// that have said Hello and were not heard yet. So a source is refused only once
// it has had too many for strangerTime, or a share of all that others need too.
type strangers struct {
	all  int
	from map[netip.Addr]source // those without any left out
}

// A source is whom strangers are from.
type source struct {
	n    int
	full time.Duration // since when there are as many as there may be; 0: fewer
}

const (
	strangerTime  = time.Second
	strangerShare = 4 // the part of all that one source may have for a moment
)

// enter counts one in at a time > 0, or says which bound is in its way.
func (s *strangers) enter(from netip.Addr, now time.Duration, most, mostOfSource int) Limit {
	of := s.from[from]
	switch {
	case s.all >= most:
		return LimitUnidentified
	case !from.IsValid():
	case of.n >= max(most/strangerShare, mostOfSource), of.full > 0 && now-of.full >= strangerTime:
		return LimitUnidentifiedSource
	}
	s.all++
	if of.n++; of.n == mostOfSource {
		of.full = now
	}
	s.from[from] = of
	return NoLimit
}

// leave counts one out that was counted in.
func (s *strangers) leave(from netip.Addr, mostOfSource int) {
	s.all--
	of := s.from[from]
	if of.n--; of.n == 0 {
		delete(s.from, from)
		return
	}
	if of.n < mostOfSource {
		of.full = 0
	}
	s.from[from] = of
}

// sourceOf returns whom a connection is from: an IPv4 address, or the network
// of an IPv6 one, since whoever has one of its addresses has them all. The zero
// one stands for all connections without such an address, as of a test's network.
func sourceOf(addr net.Addr) netip.Addr {
	if addr == nil {
		return netip.Addr{}
	}
	at, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		network, _ := ip.Prefix(64)
		ip = network.Addr()
	}
	return ip
}
