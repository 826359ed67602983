//go:build !checked

package mem

// Checked reports whether this build watches for misuse of buffers and turns.
// It is set by the build tag "checked".
const Checked = false

// caller names the goroutine it is called on; 0 in builds that do not check.
func caller() uint64 { return 0 }
