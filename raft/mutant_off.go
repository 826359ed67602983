//go:build !mutants

package raft

// mutant reports whether the named bug is planted. Without the build tag
// `mutants` none ever is, and the compiler drops the code that asks.
func mutant(string) bool { return false }
