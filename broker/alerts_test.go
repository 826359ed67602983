package broker

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const alertsFile = "../deploy/prometheus/alerts.yml"

// alertExprs returns the expressions of the alerts, by name.
func alertExprs(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	rules := regexp.MustCompile(`(?ms)^      - alert: (\w+)\n        expr: (.*?)\n        (?:for|labels):`).FindAllStringSubmatch(string(text), -1)
	if n := strings.Count(string(text), "- alert:"); n != len(rules) {
		t.Fatalf("%d of %d alerts are understood", len(rules), n)
	}
	all := map[string]string{}
	for _, r := range rules {
		if all[r[1]] != "" {
			t.Errorf("%s is there twice", r[1])
		}
		all[r[1]] = r[2]
	}
	return all
}

// metricsIn returns the names of metrics in an expression.
func metricsIn(expr string) []string {
	return regexp.MustCompile(`\b(?:teralog|process|go)_[a-z_]+`).FindAllString(expr, -1)
}

// TestAlerts expects every metric that an alert names, and every label it sums
// by or asks for, to be served.
func TestAlerts(t *testing.T) {
	served := map[string]string{}
	for _, m := range metricRows {
		served[m.name] = m.kind
		if m.kind == "histogram" {
			served[m.name+"_bucket"], served[m.name+"_sum"], served[m.name+"_count"] = "counter", "counter", "counter"
			delete(served, m.name)
		}
	}
	exprs, named := alertExprs(t), 0
	for alert, expr := range exprs {
		for _, name := range metricsIn(expr) {
			named++
			if served[name] == "" {
				t.Errorf("%s: nobody serves %s", alert, name)
			}
			rated := regexp.MustCompile(`(?:rate|increase)\(` + name + `\b`).MatchString(expr)
			if rated != (served[name] == "counter") {
				t.Errorf("%s: %s is a %s: %s", alert, name, served[name], expr)
			}
		}
	}
	if named < len(exprs)-1 { // up is Prometheus's own
		t.Fatalf("%d metrics in %d alerts", named, len(exprs))
	}
}

// TestAlertLabels expects the labels that alerts rely on in what is served.
func TestAlertLabels(t *testing.T) {
	r := newRig(t)
	defer r.stop()
	r.create("t", 1)
	labels := map[string]string{}
	for _, s := range scraped(t, r.b) {
		labels[s.name] += s.labels + "\n"
	}
	f := func(name, label string) {
		t.Helper()
		if !strings.Contains(labels[name], label) {
			t.Errorf("%s has labels %q, not %s", name, labels[name], label)
		}
	}

	f("teralog_directory_up", `dir="data"`)
	f("teralog_directory_mark", `dir="data"`)
	f("teralog_directory_free_bytes", `dir="data"`)
	f("teralog_directory_total_bytes", `dir="data"`)
	f("teralog_flush_running_seconds", `dir="data"`)
	f("teralog_flush_seconds_bucket", `dir="data",le="1"`)
	f("teralog_request_seconds_bucket", `api="Produce",le="1"`)
	f("teralog_refused_total", `reason="`)
	for _, want := range []string{"teralog_ready", "teralog_metadata_leader_known"} {
		if valueOf(t, scraped(t, r.b), want, "") != 1 {
			t.Errorf("%s is not 1", want)
		}
	}
}

// TestAlertNames expects what an operator is to be told of.
func TestAlertNames(t *testing.T) {
	exprs := alertExprs(t)
	for _, want := range []string{
		"teralog_directory_up", "teralog_directory_mark", "teralog_unflushed_seconds", "teralog_flush_running_seconds", "teralog_refused_total",
		"teralog_damaged_ranges", "process_open_fds", "teralog_metadata_leader_known", "teralog_ready",
	} {
		if !slices.ContainsFunc(slices.Collect(maps.Values(exprs)), func(e string) bool { return strings.Contains(e, want) }) {
			t.Errorf("no alert looks at %s", want)
		}
	}
}
