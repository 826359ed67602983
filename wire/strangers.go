package wire

import (
	"net"
	"net/netip"
)

// strangers counts connections that have not said Hello yet. Each costs memory
// and a goroutine, and nobody knows whose it is but for where it comes from.
type strangers struct {
	all  int
	from map[netip.Addr]int // by source, those without any left out
}

// enter counts one in, or says which bound is in its way.
func (s *strangers) enter(source netip.Addr, most, mostOfSource int) Limit {
	switch {
	case s.all >= most:
		return LimitUnidentified
	case source.IsValid() && s.from[source] >= mostOfSource:
		return LimitUnidentifiedSource
	}
	s.all++
	s.from[source]++
	return NoLimit
}

// leave counts one out that was counted in.
func (s *strangers) leave(source netip.Addr) {
	s.all--
	if s.from[source]--; s.from[source] == 0 {
		delete(s.from, source)
	}
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
