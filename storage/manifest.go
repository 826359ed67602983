package storage

import (
	"fmt"

	"github.com/teralog/teralog/wire"
)

// A manifest says what partition a folder holds. Paths bear names, decisions go
// by what stands here. It is the last file that Create writes: with it there is
// a partition, without it there is none.
type manifest struct {
	topic   string
	id      wire.PartitionID
	created int64 // ms since the Unix epoch
}

const manifestName = "partition-manifest"

var manifestFile = smallFile{magic: "TLpm", version: 1, max: 4 << 10}

// encode lays a manifest out:
//
//	| topicID u64 | partition u32 | created i64 | name length uvarint | name |
func (m manifest) encode() []byte {
	b := wire.Append64(nil, uint64(m.id.Topic))
	b = wire.Append32(b, m.id.Partition)
	b = wire.Append64(b, m.created)
	return wire.AppendString(b, m.topic)
}

func decodeManifest(b []byte) (manifest, error) {
	var m manifest
	r := wire.NewReader(b)
	m.id = readPartition(r)
	m.created = r.I64()
	m.topic = r.String()
	if m.id.Topic == wire.MetadataTopic {
		return m, r.Finish() // its name is fixed and is no topic's
	}
	if r.Err() == nil && !wire.ValidName(m.topic) {
		r.Failf("topic name %q", m.topic)
	}
	return m, r.Finish()
}

// readPartition reads | topicID u64 | partition u32 |.
func readPartition(r *wire.Reader) wire.PartitionID {
	id := wire.PartitionID{Topic: wire.TopicID(r.U64()), Partition: r.I32()}
	if r.Err() == nil && (id.Topic == 0 || id.Partition < 0) {
		r.Failf("partition %v", id)
	}
	return id
}

func readManifest(fs FS, dir string) (manifest, error) {
	b, err := manifestFile.read(fs, dir+"/"+manifestName)
	if err != nil {
		return manifest{}, err
	}
	m, err := decodeManifest(b)
	if err != nil {
		return m, fmt.Errorf("%s/%s: %w", dir, manifestName, err)
	}
	return m, nil
}

func writeManifest(fs FS, dir string, m manifest) error {
	return manifestFile.write(fs, dir+"/"+manifestName, m.encode())
}
