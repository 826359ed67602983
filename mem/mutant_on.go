//go:build mutants

package mem

import (
	"os"
	"sync/atomic"
)

var planted atomic.Pointer[string]

// Mutant reports whether the named bug is planted: a deliberate fault in the
// code that asks, by which the simulator is tested. Only one is at a time.
func Mutant(name string) bool {
	p := planted.Load()
	return p != nil && *p == name
}

// A process, such as the child of a test, may be born with one.
func init() {
	if name := os.Getenv("TERALOG_MUTANT"); name != "" {
		Plant(name)
	}
}

// Plant plants the named bug in place of the one before; "" plants none.
func Plant(name string) { planted.Store(&name) }
