package broker

import (
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"

	"github.com/teralog/teralog/wire"
)

// The keys of quotas.

func bytesRate(name, doc string, field func(*Config) *Rates) Key {
	return size(name, doc+"; 0: no bound", 0, 1<<50, func(c *Config) *int64 { return &field(c).Bytes })
}

func requestRate(name, doc string, field func(*Config) *Rates) Key {
	return count(name, doc+"; 0: no bound", 0, math.MaxInt32, func(c *Config) *int { return &field(c).Requests })
}

// maxTenants bounds the listeners of one node, inclusive, and maxTenantName the
// bytes of a name.
const (
	maxTenants    = 64
	maxTenantName = 64
)

// setTenants reads "batch@10.0.0.1:7410 bytes=64MiB requests=500, web@10.0.0.1:7411".
func setTenants(c *Config, s string) error {
	var all []Tenant
	for one := range strings.SplitSeq(s, ",") {
		if strings.TrimSpace(s) == "" {
			break
		}
		t, err := parseTenant(one)
		if err != nil {
			return err
		}
		for _, other := range all {
			if other.Name == t.Name {
				return fmt.Errorf("%q names the tenant %s twice", s, t.Name)
			}
		}
		all = append(all, t)
	}
	if len(all) > maxTenants {
		return fmt.Errorf("%d tenants; the limit is %d", len(all), maxTenants)
	}
	c.Tenants = all
	return nil
}

func parseTenant(s string) (t Tenant, err error) {
	words := strings.Fields(s)
	if len(words) == 0 {
		return t, fmt.Errorf("%q names no tenant; write one like batch@10.0.0.1:7410 bytes=64MiB", s)
	}
	var ok bool
	t.Name, t.Listen, ok = strings.Cut(words[0], "@")
	_, port, err := net.SplitHostPort(t.Listen)
	if err == nil {
		_, err = strconv.ParseUint(port, 10, 16)
	}
	if !ok || err != nil || !tenantName(t.Name) {
		return t, fmt.Errorf("%q is not a tenant and its address; write them like batch@10.0.0.1:7410", words[0])
	}
	for _, w := range words[1:] {
		name, value, _ := strings.Cut(w, "=")
		switch name {
		case "bytes":
			t.Rates.Bytes, err = wire.ParseSize(value)
		case "requests":
			t.Rates.Requests, err = strconv.Atoi(value)
			if err != nil || t.Rates.Requests < 1 || t.Rates.Requests > math.MaxInt32 {
				err = fmt.Errorf("%q is not a number of requests", value)
			}
		case "tls":
			if t.TLS = true; w != "tls" {
				err = fmt.Errorf("tls takes no value")
			}
		case "advertise":
			t.Advertise = value
			_, _, err = net.SplitHostPort(value)
		default:
			err = fmt.Errorf("%q is none of tls, bytes=, requests= and advertise=", w)
		}
		if err != nil {
			return t, fmt.Errorf("tenant %s: %w", t.Name, err)
		}
	}
	return t, nil
}

// tenantName reports whether s may be a tenant's name. That of the main listener
// is taken.
func tenantName(s string) bool {
	fits := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.'
	}
	return s != "" && len(s) <= maxTenantName && s != theDefault && strings.IndexFunc(s, func(r rune) bool { return !fits(r) }) < 0
}

func joinTenants(ts []Tenant) string {
	all := make([]string, len(ts))
	for i, t := range ts {
		all[i] = t.Name + "@" + t.Listen
		if t.TLS {
			all[i] += " tls"
		}
		if t.Rates.Bytes > 0 {
			all[i] += " bytes=" + wire.FormatSize(t.Rates.Bytes)
		}
		if t.Rates.Requests > 0 {
			all[i] += " requests=" + strconv.Itoa(t.Rates.Requests)
		}
		if t.Advertise != "" {
			all[i] += " advertise=" + t.Advertise
		}
	}
	return strings.Join(all, ", ")
}
