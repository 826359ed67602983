package wire

// A Limit is what a refusal met: a queue that was full, a quota, a disk. It has
// a name for messages and counters.
type Limit uint8

// The limits. NoLimit is that of an error which is no refusal for want of
// something.
const (
	NoLimit                 Limit = iota
	LimitConnections              // clients connected at once
	LimitUnidentified             // of these, those that have not said Hello
	LimitUnidentifiedSource       // of these, those from one address
	LimitFiles                    // descriptors of the process
	LimitMemory                   // bytes of requests held, over all connections
	LimitConnectionMemory         // by one connection
	LimitConnectionBytes          // a second
	LimitConnectionRequests       // a second
	LimitTenantBytes              // a second
	LimitTenantRequests           // a second
	LimitTopicBytes               // a second
	LimitTopicRequests            // a second
	LimitPartitionsCreated        // a second
	LimitPartitionQueue           // what waits to be appended to a partition
	LimitPartitionAcks            // appended writes that wait for their acknowledgement
	LimitPartitionProducers       // producers a partition knows
	LimitPartitionParked          // fetches parked on a partition
	LimitPartitionTrims           // trims of a partition that wait
	LimitParked                   // fetches parked on the broker
	LimitWork                     // look-ups and decodings that wait for a worker
	LimitMetadata                 // metadata changes that wait
	LimitDiskFull                 // a data directory's watermark, or its last byte
	LimitDiskSlow                 // what a flush or an append may take
	LimitDirty                    // bytes of a data directory that wait for its disk
	NumLimits
)

var limitNames = [NumLimits]string{
	LimitConnections:        "connections",
	LimitUnidentified:       "unidentified",
	LimitUnidentifiedSource: "unidentified-source",
	LimitFiles:              "descriptors",
	LimitMemory:             "memory",
	LimitConnectionMemory:   "connection-memory",
	LimitConnectionBytes:    "connection-bytes",
	LimitConnectionRequests: "connection-requests",
	LimitTenantBytes:        "tenant-bytes",
	LimitTenantRequests:     "tenant-requests",
	LimitTopicBytes:         "topic-bytes",
	LimitTopicRequests:      "topic-requests",
	LimitPartitionsCreated:  "partitions-created",
	LimitPartitionQueue:     "partition-queue",
	LimitPartitionAcks:      "partition-acks",
	LimitPartitionProducers: "partition-producers",
	LimitPartitionParked:    "partition-parked",
	LimitPartitionTrims:     "partition-trims",
	LimitParked:             "parked",
	LimitWork:               "work",
	LimitMetadata:           "metadata",
	LimitDiskFull:           "disk-full",
	LimitDiskSlow:           "disk-slow",
	LimitDirty:              "dirty",
}

// String returns the name, "" of NoLimit.
func (l Limit) String() string { return limitNames[l] }
