package broker

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// onlyReads lets through what the operator's view has an answer for: GET and HEAD,
// without a body. Who reaches it by a loopback address must also call it by an
// address or as localhost: else a page from elsewhere, whose name was made to
// lead here, could read it in the browser of somebody on this machine.
func onlyReads(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		guardHeaders(w.Header())
		switch {
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			w.Header().Set("Allow", "GET, HEAD")
			refuse(w, "only GET and HEAD are answered here", http.StatusMethodNotAllowed)
		case r.ContentLength != 0:
			refuse(w, "no page takes a body", http.StatusRequestEntityTooLarge)
		case viaLoopback(r) && !namesMachine(r.Host):
			refuse(w, "call this machine by an address, or localhost", http.StatusMisdirectedRequest)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// refuse answers and ends the connection: what is still to come on it is read
// no more.
func refuse(w http.ResponseWriter, why string, status int) {
	w.Header().Set("Connection", "close")
	http.Error(w, why, status)
}

// viaLoopback reports whether the client connected to a loopback address.
func viaLoopback(r *http.Request) bool {
	local, ok := r.Context().Value(http.LocalAddrContextKey).(*net.TCPAddr)
	return ok && local.IP.IsLoopback()
}

// namesMachine reports whether a host, with a port or without, is an address or
// localhost: names that nobody can make lead elsewhere.
func namesMachine(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	_, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil || host == "localhost"
}

// isLoopback reports whether an address to listen on is a loopback one.
func isLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}
