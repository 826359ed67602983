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
	APIIntroduce      API = 12 // this and the next two: on the peer listener only
	APIRaft           API = 13
	APICommand        API = 14
)

// apis has one row per API.
var apis = [...]struct {
	name              string
	min, max          Version
	request, response func() Message
	memory            int // heap a decoded request takes at most, per byte of its body
}{
	APIHello:          {"Hello", 0, 0, fresh[HelloRequest], fresh[HelloResponse], 2},
	APIMetadata:       {"Metadata", 0, 0, fresh[MetadataRequest], fresh[MetadataResponse], 40},
	APIProduce:        {"Produce", 0, 0, fresh[ProduceRequest], fresh[ProduceResponse], 1},
	APIFetch:          {"Fetch", 0, 0, fresh[FetchRequest], fresh[FetchResponse], 4},
	APIListOffsets:    {"ListOffsets", 0, 0, fresh[ListOffsetsRequest], fresh[ListOffsetsResponse], 4},
	APIInitProducer:   {"InitProducer", 0, 0, fresh[InitProducerRequest], fresh[InitProducerResponse], 1},
	APICreateTopic:    {"CreateTopic", 0, 0, fresh[CreateTopicRequest], fresh[CreateTopicResponse], 40},
	APIDeleteTopic:    {"DeleteTopic", 0, 0, fresh[DeleteTopicRequest], fresh[DeleteTopicResponse], 1},
	APIDescribeTopics: {"DescribeTopics", 0, 0, fresh[DescribeTopicsRequest], fresh[DescribeTopicsResponse], 40},
	APITrim:           {"Trim", 0, 0, fresh[TrimRequest], fresh[TrimResponse], 1},
	APIRecovery:       {"Recovery", 0, 0, fresh[RecoveryRequest], fresh[RecoveryResponse], 1},
	APIIntroduce:      {"Introduce", 0, 0, fresh[IntroduceRequest], fresh[IntroduceResponse], 1},
	APIRaft:           {"Raft", 0, 0, fresh[RaftRequest], fresh[RaftResponse], 40},
	APICommand:        {"Command", 0, 0, fresh[CommandRequest], fresh[CommandResponse], 1},
}

func fresh[T any, P interface {
	*T
	Message
}]() Message {
	return P(new(T))
}

// Known reports whether this build speaks the API in any version.
func (a API) Known() bool { return a > 0 && int(a) < len(apis) }

// Supports reports whether this build speaks version v of the API.
func (a API) Supports(v Version) bool {
	return a.Known() && apis[a].min <= v && v <= apis[a].max
}

// String returns the API's name, such as Produce.
func (a API) String() string {
	if a.Known() {
		return apis[a].name
	}
	return fmt.Sprintf("API %d", uint16(a))
}

// NewRequest returns an empty request of the API, which must be known.
func (a API) NewRequest() Message { return apis[a].request() }

// NewResponse returns an empty response of the API, which must be known.
func (a API) NewResponse() Message { return apis[a].response() }

// RequestMemory returns the bytes that a request of the API with a body of
// that many bytes may hold once decoded, the body included: what admission
// takes from a budget before it decodes. The API must be known.
func (a API) RequestMemory(body int) int64 { return int64(body) * int64(1+apis[a].memory) }

// APIs returns the versions this build speaks, as Hello's answer lists them.
func APIs() []APIRange {
	var all []APIRange
	for a := range API(len(apis)) {
		if a.Known() {
			all = append(all, APIRange{a, apis[a].min, apis[a].max})
		}
	}
	return all
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
