package broker

import "math"

var tlsRows = []metric{
	{name: "teralog_tls_certificate_expires_seconds", kind: "gauge", help: "Unix time at which the certificate in use, or one above it, expires.", value: func(s *scrape) float64 {
		if s.b.secure == nil {
			return math.NaN()
		}
		return float64(s.b.secure.now.Load().expires.Unix())
	}},
	{name: "teralog_tls_handshakes_total", kind: "counter", help: "Connections that came by TLS.", value: func(s *scrape) float64 { return float64(s.server.Handshakes) }},
	{name: "teralog_tls_handshakes_failed_total", kind: "counter", help: "Connections ended for a handshake that failed, plaintext among them.", value: func(s *scrape) float64 { return float64(s.server.BadHandshakes) }},
	{name: "teralog_tls_spoken_to_plaintext_total", kind: "counter", help: "Connections ended for speaking TLS to the address for plaintext.", value: func(s *scrape) float64 { return float64(s.server.SpokeTLS) }},
}
