package broker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/teralog/teralog/wire"
)

// api returns a page that answers with what ask returns, as JSON. An error is
// answered as {"error":{"code":…,"message":…}} with the HTTP status that fits.
func api(ask func(*Broker, *http.Request) (any, error)) func(*Broker, http.ResponseWriter, *http.Request) {
	return func(b *Broker, w http.ResponseWriter, r *http.Request) {
		answer, err := ask(b, r)
		if err != nil {
			refuseJSON(w, err)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	}
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	h := w.Header()
	guardHeaders(h)
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false) // nobody may take it for HTML, and text stays short
	e.Encode(v)            // an error says that the client has gone
}

type jsonError struct {
	Error struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
}

func refuseJSON(w http.ResponseWriter, err error) {
	var e jsonError
	code := wire.CodeOf(err)
	e.Error.Code, e.Error.Message = code.Error(), err.Error()
	var told *wire.Error
	if errors.As(err, &told) && told.Message != "" {
		e.Error.Message = told.Message
		if told.RetryAfter > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(told.RetryAfter.Seconds()))))
		}
	}
	writeJSON(w, statusOf(code), &e)
}

// statusOf returns the HTTP status that says about what code says.
func statusOf(code wire.Code) int {
	switch code {
	case wire.CodeInvalidRequest:
		return http.StatusBadRequest
	case wire.CodeUnsupported:
		return http.StatusForbidden
	case wire.CodeUnknownTopic, wire.CodeUnknownPartition, wire.CodeTopicRecreated, wire.CodeOutOfRange:
		return http.StatusNotFound
	case wire.CodeBusy, wire.CodeNotLeader, wire.CodeShuttingDown, wire.CodeOffline:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}

// A question is the query of an address. Its methods note the first parameter
// that cannot be taken; one that is not known is such a parameter too, since
// a slip would else be answered as if it had not been said.
type question struct {
	values url.Values
	err    error
}

// askedOf reads the query of r, which may have the parameters known, each once.
func askedOf(r *http.Request, known ...string) *question {
	values, err := url.ParseQuery(r.URL.RawQuery)
	q := &question{values: values}
	if err != nil {
		q.bad("%v", err)
	}
	for name, all := range values {
		switch {
		case !slices.Contains(known, name):
			q.bad("there is no parameter %q; there are: %s", name, cmp.Or(strings.Join(known, ", "), "none"))
		case len(all) > 1:
			q.bad("%s is given %d times", name, len(all))
		}
	}
	return q
}

func (q *question) bad(format string, args ...any) {
	if q.err == nil {
		q.err = wire.Errorf(wire.CodeInvalidRequest, format, args...)
	}
}

func (q *question) text(name string) string { return q.values.Get(name) }

// number returns a whole number from low to high, otherwise if it is not given.
func (q *question) number(name string, low, high, otherwise int64) int64 {
	s := q.text(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || n < low || n > high {
		bounds := fmt.Sprintf("from %d to %d", low, high)
		if high == math.MaxInt64 {
			bounds = fmt.Sprintf("not below %d", low)
		}
		q.bad("%s is %q; it is a whole number %s", name, s, bounds)
		return otherwise
	}
	return n
}

// oneOf returns a word, the first of words if it is not given.
func (q *question) oneOf(name string, words ...string) string {
	s := q.text(name)
	if s == "" {
		return words[0]
	}
	if !slices.Contains(words, s) {
		q.bad("%s is %q; it is one of %s", name, s, strings.Join(words, ", "))
		return words[0]
	}
	return s
}

// Who may see records by the console, as http-records says.
const (
	recordsLocal = "local" // who connects from this machine
	recordsOn    = "on"
	recordsOff   = "off"
)

// mayRead returns an error if the asker may not see records. Who asks from this
// machine must also name it by an address or as localhost: else a page of
// another site could ask under a name of its own that leads here.
func (b *Broker) mayRead(r *http.Request) error {
	switch b.config.HTTPRecords {
	case recordsOn:
		return nil
	case recordsOff:
		return wire.Errorf(wire.CodeUnsupported, "records are shown to nobody here: http-records = off")
	}
	if !viaLoopback(r) {
		return wire.Errorf(wire.CodeUnsupported, "records are shown only to who connects from the broker's machine by 127.0.0.1 or ::1: http-records = local")
	}
	if !namesMachine(r.Host) {
		return wire.Errorf(wire.CodeUnsupported, "records are shown only under an IP address or localhost, not %q: http-records = local", r.Host)
	}
	return nil
}
