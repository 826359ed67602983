// Package wire is the protocol: batches, messages, and the connections that
// carry them; the same code for brokers and clients. All integers are
// little-endian. CRCs are CRC-32C.
//
// # Batches
//
// One form of a batch serves producer, leader, log file and consumer. The
// leader stamps the header in place and never reads or rewrites the records.
//
//	 0 magic "TLB\x01"      4 headerCRC u32          8 batchLength u32     12 recordsCRC u32
//	16 baseOffset i64                               24 appendTime i64
//	32 baseTime i64                                 40 maxTime i64
//	48 producerID i64                               56 topicID u64
//	64 leaderEpoch i32     68 lastOffsetDelta i32   72 recordCount i32     76 baseSequence i32
//	80 partition i32       84 recordsLength u32     88 attributes u16      90 producerEpoch i16
//	92 reserved u32        96 records, batchLength-96 bytes
//
// headerCRC covers bytes 8 to 95 and is renewed by the stamp, which sets
// baseOffset, appendTime, leaderEpoch and the time type. recordsCRC covers
// everything from byte 96 on, as stored, and stays the producer's.
// recordsLength is the length of the records once uncompressed. Attributes:
//
//	| codec: bits 0-2 | append time is the records' time: 3 | transactional: 4 | control: 5 | 0 |
//
// The records section, compressed by the codec as one piece, holds records
// back to back. Here integers are zigzag varints, need not be minimal, and
// length -1 is null:
//
//	| length | attributes 1 byte, 0 | time - baseTime | offset - baseOffset |
//	| key length | key | value length | value | header count | headers |
//	header: | key length | key | value length | value |
//
// Batch reads and checks headers, Decoder and Batch.Records read records,
// Builder makes batches.
//
// # Frames and messages
//
//	request   | size u32 | api u16 | version u16 | correlation u32 | flags u32 | body |
//	response  | size u32 | correlation u32 | code u16 | flags u16 | throttleMillis u32 | body |
//
// size counts what follows it. A response whose code is not 0 has one string
// as its body, a message for people. A body is exactly the fields of its
// version: fixed integers, strings and bytes after their length, arrays after
// their count; lengths and counts are minimal uvarints. Bytes left over are an
// error, but in Hello, whose reader skips what it does not know.
//
// A Message encodes and decodes one body. Decoders read through a Reader,
// which checks each count and length against the bytes left before anything is
// made from it.
//
// # Versions
//
// Numbers of APIs, codes, codecs and attribute bits never change their
// meaning. A form that was released never changes either: another body is a
// new version of its API, listed in the table of apis.go, and Hello's answer
// tells the client which ones a broker speaks. Another batch is a new last
// byte of the magic. testdata/wire holds a frozen body of every message.
package wire
