// Package raft will hold consensus, as a pure machine: the control plane of
// several nodes will stand on it.
//
// There is nothing in it yet. One node needs no agreement: coord keeps the
// metadata as the log of a Raft cluster of one, in the format and by the rules
// of docs/ARCHITECTURE.md (terms, a durable vote, one entry a batch), so that
// nothing on disk changes when there are three.
package raft
