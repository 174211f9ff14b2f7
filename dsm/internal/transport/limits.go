package transport

import "time"

const (
	// DefaultWindow is how many bytes may be under way to or from one memory
	// machine: four full datagrams fit a default Linux socket buffer (212,992
	// bytes, and the datagram that passes the limit is still taken).
	DefaultWindow = 4 * (64<<10 + overhead)
	// LargeWindow keeps both ends at work at the same time: while the machine copies
	// one half, the client copies the other.
	LargeWindow = 3 * DefaultWindow
	// overhead is what a datagram takes of a socket buffer beside its data:
	// headers, and the kernel's own record of it.
	overhead = 1 << 10

	// maxSpan is how far the newest operation may lie above the floor: half of
	// what a server records (store.MaxSpan). The other half is for the settle
	// requests, of which there is at most one for each operation.
	maxSpan = 1 << 13

	// Retransmission. The first timeout is used until there is a round trip to
	// go by; a loaded scheduler adds milliseconds, hence the lowest one.
	firstTimeout = 20 * time.Millisecond
	minTimeout   = 10 * time.Millisecond
	maxTimeout   = time.Second
	// reordering is how much later than the round trip an answer may come before
	// answers to later requests make its request count as lost.
	reordering = 2 * time.Millisecond

	// giveUp is how long a machine may be silent on a request before its caller
	// is told that the machine is unavailable.
	giveUp = 30 * time.Second
)
