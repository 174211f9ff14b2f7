package main

import (
	"os"
	"runtime"
)

// ballastSize is how much garbage there is at least between two collections.
const ballastSize = 32 << 20

// ballast is never touched, so it takes no memory.
var ballast []byte //nolint:unused // it is there to be there

// collectRarely makes the garbage collector of a process with a small heap run
// less often. It runs when the heap has doubled, and that of a switch or a
// Gatekeeper is a few megabytes: under load it ran hundreds of times a second, and
// took half the time of a P4Runtime Write. With what is live counted larger by
// the ballast it leaves some 32 MiB of garbage, whatever the size of the tables.
// Who sets GOGC or GOMEMLIMIT knows better.
func collectRarely() {
	if os.Getenv("GOGC") == "" && os.Getenv("GOMEMLIMIT") == "" {
		ballast = make([]byte, ballastSize)
	}
}

// processors gives Go's scheduler n processors, unless GOMAXPROCS says otherwise.
//
// One is best for a process that does one thing after the other, each on a goroutine
// of its own, as a Gatekeeper, a switch on eBPF and a memory daemon do: with more, every hand-over
// wakes a thread that looks for work and finds that it has been done. A held packet
// then takes a fifth longer, and 64 callers get a sixth less.
func processors(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}
