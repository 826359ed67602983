package wire

import (
	"errors"
	"fmt"
	"time"
)

// ErrCorrupt is the base of every error that says: these bytes are damaged,
// or were never what they claim to be. Test for it with errors.Is.
var ErrCorrupt = errors.New("corrupt")

// A Code is the outcome of a request, or of one part of it, as the protocol
// numbers it. It is an error; numbers never change their meaning.
type Code uint16

// The codes of the protocol. The table below says what each means for a write
// and for the one who asks again.
const (
	CodeOK                           Code = 0
	CodeUnsupportedVersion           Code = 1
	CodeUnsupported                  Code = 2
	CodeInvalidRequest               Code = 3
	CodeHelloRequired                Code = 4
	CodeTooLarge                     Code = 5
	CodeCorruptBatch                 Code = 6
	CodeInvalidBatch                 Code = 7
	CodeUnknownTopic                 Code = 8
	CodeUnknownPartition             Code = 9
	CodeTopicExists                  Code = 10
	CodeTopicRecreated               Code = 11 // the topic id is not, or no longer, known
	CodeInvalidName                  Code = 12
	CodeInvalidSetting               Code = 13
	CodeBusy                         Code = 14
	CodeQuota                        Code = 15
	CodeDiskFull                     Code = 16
	CodeDiskSlow                     Code = 17
	CodeNotLeader                    Code = 18
	CodeFencedEpoch                  Code = 19
	CodeUnknownEpoch                 Code = 20
	CodeOutOfRange                   Code = 21
	CodeOffsetNotAvailable           Code = 22
	CodeTruncated                    Code = 23
	CodeCorrupt                      Code = 24
	CodeStorageError                 Code = 25
	CodeTimeout                      Code = 26
	CodeUnknownProducer              Code = 27
	CodeOutOfOrderSequence           Code = 28
	CodeSequenceReused               Code = 29
	CodeFencedProducer               Code = 30
	CodeNotEnoughReplicas            Code = 31
	CodeNotEnoughReplicasAfterAppend Code = 32
	CodeShuttingDown                 Code = 33
	CodeOffline                      Code = 34
	CodeInternal                     Code = 35
	CodeConflict                     Code = 36
	CodeOffsetLimit                  Code = 37
)

const (
	definite  = true
	open      = false // the write may still become visible
	retriable = true
	final     = false
)

// codes has one row per code: its name, whether this attempt's write will
// surely never become visible, and whether the same request may succeed later
// (perhaps elsewhere, after new metadata).
var codes = [...]struct {
	name      string
	definite  bool
	retriable bool
}{
	CodeOK:                           {"OK", open, final},
	CodeUnsupportedVersion:           {"UNSUPPORTED_VERSION", definite, final},
	CodeUnsupported:                  {"UNSUPPORTED", definite, final},
	CodeInvalidRequest:               {"INVALID_REQUEST", definite, final},
	CodeHelloRequired:                {"HELLO_REQUIRED", definite, final},
	CodeTooLarge:                     {"TOO_LARGE", definite, final},
	CodeCorruptBatch:                 {"CORRUPT_BATCH", definite, retriable}, // the sender still has the good bytes
	CodeInvalidBatch:                 {"INVALID_BATCH", definite, final},
	CodeUnknownTopic:                 {"UNKNOWN_TOPIC", definite, retriable}, // metadata may lag behind a create
	CodeUnknownPartition:             {"UNKNOWN_PARTITION", definite, retriable},
	CodeTopicExists:                  {"TOPIC_EXISTS", definite, final},
	CodeTopicRecreated:               {"TOPIC_RECREATED", definite, final}, // records meant for the old topic must not enter the new one
	CodeInvalidName:                  {"INVALID_NAME", definite, final},
	CodeInvalidSetting:               {"INVALID_SETTING", definite, final},
	CodeBusy:                         {"BUSY", definite, retriable},
	CodeQuota:                        {"QUOTA", definite, retriable},
	CodeDiskFull:                     {"DISK_FULL", definite, retriable},
	CodeDiskSlow:                     {"DISK_SLOW", definite, retriable},
	CodeNotLeader:                    {"NOT_LEADER", definite, retriable},
	CodeFencedEpoch:                  {"FENCED_EPOCH", definite, retriable},
	CodeUnknownEpoch:                 {"UNKNOWN_EPOCH", definite, retriable},
	CodeOutOfRange:                   {"OUT_OF_RANGE", definite, final},
	CodeOffsetNotAvailable:           {"OFFSET_NOT_AVAILABLE", definite, retriable},
	CodeTruncated:                    {"TRUNCATED", definite, final},
	CodeCorrupt:                      {"CORRUPT", definite, final},
	CodeStorageError:                 {"STORAGE_ERROR", open, retriable},
	CodeTimeout:                      {"TIMEOUT", open, retriable},
	CodeUnknownProducer:              {"UNKNOWN_PRODUCER", definite, final},
	CodeOutOfOrderSequence:           {"OUT_OF_ORDER_SEQUENCE", definite, final},
	CodeSequenceReused:               {"SEQUENCE_REUSED", definite, final},
	CodeFencedProducer:               {"FENCED_PRODUCER", definite, final},
	CodeNotEnoughReplicas:            {"NOT_ENOUGH_REPLICAS", definite, retriable},
	CodeNotEnoughReplicasAfterAppend: {"NOT_ENOUGH_REPLICAS_AFTER_APPEND", open, retriable},
	CodeShuttingDown:                 {"SHUTTING_DOWN", definite, retriable},
	CodeOffline:                      {"OFFLINE", definite, retriable},
	CodeInternal:                     {"INTERNAL", open, final},
	CodeConflict:                     {"CONFLICT", definite, final},
	CodeOffsetLimit:                  {"OFFSET_LIMIT", definite, final},
}

// Error returns the name of the code, such as NOT_LEADER; a number without a
// row is CODE_n.
func (c Code) Error() string {
	if int(c) < len(codes) {
		return codes[c].name
	}
	return fmt.Sprintf("CODE_%d", uint16(c))
}

// Definite reports whether the write of this attempt will surely never become
// visible. A code without a row promises nothing.
func (c Code) Definite() bool { return int(c) < len(codes) && codes[c].definite }

// Retriable reports whether asking again may succeed.
func (c Code) Retriable() bool { return int(c) < len(codes) && codes[c].retriable }

// An Error is a Code with what a person needs to know: a message, and of a
// refusal the time after which to ask again (0: none given).
type Error struct {
	Code       Code
	Message    string
	RetryAfter time.Duration
	Limit      Limit // what a refusal met; not sent
}

// Error returns the code's name and the message.
func (e *Error) Error() string {
	if e.Message == "" {
		return e.Code.Error()
	}
	return e.Code.Error() + ": " + e.Message
}

// Unwrap returns the Code, so that errors.Is(err, CodeBusy) holds.
func (e *Error) Unwrap() error { return e.Code }

// Errorf returns an *Error with the code c and a formatted message.
func Errorf(c Code, format string, args ...any) error {
	return &Error{Code: c, Message: fmt.Sprintf(format, args...)}
}

// CodeOf returns the code that err wraps: CodeOK for nil, CodeInternal for an
// error without any.
func CodeOf(err error) Code {
	if err == nil {
		return CodeOK
	}
	var c Code
	if errors.As(err, &c) {
		return c
	}
	return CodeInternal
}
