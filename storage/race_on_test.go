//go:build race

package storage

// raceEnabled: the race detector pads what is allocated and empties pools at
// random, so nothing is measured under it.
const raceEnabled = true
