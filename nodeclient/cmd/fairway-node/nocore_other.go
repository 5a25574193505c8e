//go:build !linux

package main

// noCore does something on Linux only.
func noCore() {}
