//go:build !linux

package mem

// Prompt does nothing on this system.
func Prompt() error { return nil }

// Yield does nothing on this system.
func Yield() {}
