package main

import "golang.org/x/sys/unix"

// noCore keeps what is in memory out of core dumps, and from being read by other processes of the same user: a credential may be there for the moment in
// which a request's head is written. Best effort: neither call can fail on a kernel that Go runs on, but for a policy that forbids it.
func noCore() {
	_ = unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{})
}
