// Package mem holds bounded, domain-free memory parts: buffers and their
// pools, the mailbox with its turn, a ring, a timing wheel, budgets, buckets,
// a histogram, and the two clocks everything else is told about.
//
// Each part has a fixed bound and no idea what it carries. Time comes in as an
// argument; only run.go reads the machine's clock.
//
// Built with the tag "checked", released buffers are poisoned and watched, and
// a queue's turn is tied to the goroutine that took it, so that misuse ends in
// a panic near its cause instead of wrong bytes far from it.
package mem
