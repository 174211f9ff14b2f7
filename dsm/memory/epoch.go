package memory

import "time"

// epochStart is when the addresses of EpochAt begin.
var epochStart = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

// epochShift is log2 of the addresses between one millisecond's epoch and the
// next: 16 MiB, so that a machine would have to allocate 16 GiB a second all
// its life to reach the epoch of its next boot. 64 bits last until 2059.
const epochShift = 24

// EpochAt returns an epoch for a machine that boots at t. A later boot gets a
// higher one as long as the clock is not set back; that it may have been is why the
// Gatekeeper remembers how far a machine's addresses have got (control.Welcome).
func EpochAt(t time.Time) uint64 {
	return uint64(max(1, t.Sub(epochStart).Milliseconds())) << epochShift
}
