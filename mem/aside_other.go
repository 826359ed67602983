//go:build !linux

package mem

// StepAside does nothing here.
func StepAside(int) bool { return false }
