//go:build checked

package mem

import (
	"bytes"
	"runtime"
	"strconv"
)

// Checked reports whether this build watches for misuse of buffers and turns.
// It is set by the build tag "checked".
const Checked = true

// caller names the goroutine it is called on. Go offers no such name, so it is
// read from the first line of the stack trace, "goroutine 18 [running]:".
func caller() uint64 {
	var line [32]byte
	b := line[:runtime.Stack(line[:], false)]
	b = bytes.TrimPrefix(b, []byte("goroutine "))
	b, _, _ = bytes.Cut(b, []byte(" "))
	id, err := strconv.ParseUint(string(b), 10, 64)
	if err != nil {
		panic("BUG: no goroutine number in a stack trace: " + err.Error())
	}
	return id
}
