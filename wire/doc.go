// Package wire is the protocol: batches, messages, and the connections that
// carry them; the same code for brokers and clients.
package wire
