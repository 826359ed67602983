//go:build !linux

package mem

import "time"

func nap(time.Duration) {}

const canNap = false
