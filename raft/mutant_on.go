//go:build mutants

package raft

import "sync/atomic"

var planted atomic.Pointer[string]

// mutant reports whether the named bug is planted: a deliberate fault in the
// code that asks, by which the simulator is tested. Only one is at a time.
func mutant(name string) bool {
	p := planted.Load()
	return p != nil && *p == name
}

// Plant plants the named bug in place of the one before; "" plants none.
func Plant(name string) { planted.Store(&name) }
