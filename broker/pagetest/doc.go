// Package pagetest looks at the broker's console as a person does, in a
// Chromium without a window. It has tests only, which need a browser in PATH
// and are skipped, saying so, where there is none.
package pagetest
