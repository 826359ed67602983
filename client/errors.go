package client

import (
	"errors"
	"fmt"

	"github.com/teralog/teralog/wire"
)

var (
	// ErrIndefinite is wrapped by the error of a record that may be in the
	// log, or may still appear there, although it was never acknowledged. An
	// error of Produce without it is a promise: the record is not in the log
	// and will never be.
	ErrIndefinite = errors.New("the outcome is not known: the record may be in the log or appear later")

	// ErrUnanswered is wrapped by the error of a change to topics that may have
	// been made, or be under way, although no broker has said so. An error
	// without it is a promise that it was not.
	ErrUnanswered = errors.New("the outcome is not known: the change may have been made or be under way")

	// ErrTimeout says that the delivery timeout of a record passed.
	ErrTimeout = errors.New("delivery timeout")

	// ErrBufferFull is what TryProduce returns when the record does not fit
	// into the buffer now.
	ErrBufferFull = errors.New("the producer's buffer is full")

	// ErrClosed is returned by everything that is used after its Close.
	ErrClosed = errors.New("closed")

	// ErrEnd is returned by Poll once every assigned range was read to its
	// end; with no end set it never is.
	ErrEnd = errors.New("end of the assigned ranges")

	// ErrNotAssigned is returned for a partition that was never assigned.
	ErrNotAssigned = errors.New("partition not assigned")
)

// A DeliveryError says why a batch of records was not acknowledged. All
// records of the batch share it.
type DeliveryError struct {
	Topic      string
	Partition  int32
	Attempts   int  // requests that carried its records, 0 if none did
	Indefinite bool // at least one of them may have been carried out
	Err        error
}

func (e *DeliveryError) Error() string {
	doubt := ""
	if e.Indefinite {
		doubt = "; " + ErrIndefinite.Error()
	}
	return fmt.Sprintf("produce to %s/%d (attempts: %d): %v%s", e.Topic, e.Partition, e.Attempts, e.Err, doubt)
}

// Unwrap returns the cause and, if the outcome is not known, ErrIndefinite.
func (e *DeliveryError) Unwrap() []error {
	if e.Indefinite {
		return []error{e.Err, ErrIndefinite}
	}
	return []error{e.Err}
}

// A FetchError stops one partition of a consumer until Seek or Assign gives it
// a new position. What else it carries depends on its cause; errors.Is tells
// them apart by their wire.Code:
//
//   - OUT_OF_RANGE: Offset lies outside the bounds Start (inclusive) and End
//     (exclusive).
//   - TRUNCATED: the log no longer holds what was read below Offset; it and
//     what the consumer saw agree up to MatchEnd (exclusive), and no further.
//   - CORRUPT: offsets From (inclusive) to To (exclusive) are damaged on the
//     broker. Nothing is skipped unasked; a Seek to To goes on behind them.
//   - TOPIC_RECREATED: the topic was deleted; if its name is in use again, it
//     is another topic, for which the old offsets mean nothing.
//
// An error that wraps wire.ErrCorrupt says that bytes the broker sent did not
// pass their checks here.
type FetchError struct {
	Topic     string
	Partition int32
	Offset    wire.Offset // the position at which reading stopped

	Start, End         wire.Offset // OUT_OF_RANGE
	MatchEpoch         wire.Epoch  // TRUNCATED
	MatchEnd, From, To wire.Offset // TRUNCATED; CORRUPT

	Err error
}

func (e *FetchError) Error() string {
	where := fmt.Sprintf("read %s/%d at offset %d: %v", e.Topic, e.Partition, e.Offset, e.Err)
	switch wire.CodeOf(e.Err) {
	case wire.CodeOutOfRange:
		return fmt.Sprintf("%s: the log holds %d to %d", where, e.Start, e.End)
	case wire.CodeTruncated:
		return fmt.Sprintf("%s: the log matches up to offset %d of epoch %d", where, e.MatchEnd, e.MatchEpoch)
	case wire.CodeCorrupt:
		return fmt.Sprintf("%s: offsets %d to %d are damaged", where, e.From, e.To)
	}
	return where
}

// Unwrap returns the cause.
func (e *FetchError) Unwrap() error { return e.Err }
