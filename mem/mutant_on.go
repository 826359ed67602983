//go:build mutants

package mem

import "sync/atomic"

var planted atomic.Pointer[string]

// Mutant reports whether the named bug is planted: a deliberate fault in the
// code that asks, by which the simulator is tested. Only one is at a time.
func Mutant(name string) bool {
	p := planted.Load()
	return p != nil && *p == name
}

// Plant plants the named bug in place of the one before; "" plants none.
func Plant(name string) { planted.Store(&name) }
