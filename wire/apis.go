package wire

import "fmt"

// An API numbers a kind of request. Numbers never change their meaning.
type API uint16

// A Version numbers the form of one API's messages.
type Version uint16

// The APIs. 0 is none, so that a frame of zeros asks for nothing.
const (
	APIHello          API = 1
	APIMetadata       API = 2
	APIProduce        API = 3
	APIFetch          API = 4
	APIListOffsets    API = 5
	APIInitProducer   API = 6
	APICreateTopic    API = 7
	APIDeleteTopic    API = 8
	APIDescribeTopics API = 9
	APITrim           API = 10
	APIRecovery       API = 11
)

// apis has one row per API.
var apis = [...]struct {
	name     string
	min, max Version
}{
	APIHello:          {"Hello", 0, 0},
	APIMetadata:       {"Metadata", 0, 0},
	APIProduce:        {"Produce", 0, 0},
	APIFetch:          {"Fetch", 0, 0},
	APIListOffsets:    {"ListOffsets", 0, 0},
	APIInitProducer:   {"InitProducer", 0, 0},
	APICreateTopic:    {"CreateTopic", 0, 0},
	APIDeleteTopic:    {"DeleteTopic", 0, 0},
	APIDescribeTopics: {"DescribeTopics", 0, 0},
	APITrim:           {"Trim", 0, 0},
	APIRecovery:       {"Recovery", 0, 0},
}

// A Message is the body of a request or response.
type Message interface {
	// API returns the API the message belongs to.
	API() API
	// AppendTo appends the body in the form of version v.
	AppendTo(dst []byte, v Version) []byte
	// Decode replaces the message by the body at r, whose form is version v.
	// Slices of the message are used again; byte slices and batches alias the
	// reader's bytes. Faults stay in r: use DecodeBody for a whole body.
	Decode(r *Reader, v Version)
}

// DecodeBody decodes the whole of body into m through r. Bytes left over are
// an error, except in Hello, where they may be fields of a version yet to
// come. Errors wrap ErrCorrupt; a server answers them with INVALID_REQUEST.
func DecodeBody(r *Reader, m Message, v Version, body []byte) error {
	r.Reset(body)
	m.Decode(r, v)
	err := r.Err()
	if m.API() != APIHello {
		err = r.Finish()
	}
	if err != nil {
		return fmt.Errorf("%s version %d: %w", m.API(), v, err)
	}
	return nil
}

// String returns the API's name, such as Produce.
func (a API) String() string {
	if a > 0 && int(a) < len(apis) {
		return apis[a].name
	}
	return fmt.Sprintf("API %d", uint16(a))
}
