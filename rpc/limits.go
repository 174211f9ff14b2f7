package rpc

import "time"

// Defaults and limits of the runtime, in one place.
const (
	// DefaultPolicy is that of calls of which nobody has said another: not the
	// operator, the caller, nor the service's IDL.
	DefaultPolicy = PolicyRecover

	// DefaultMaxMessage is how many bytes the Thrift message of a call or answer of
	// policy none has at most: 1 GiB and what a struct around such a value takes.
	DefaultMaxMessage = 1<<30 + 64<<10

	// DefaultWorkers is how many handlers of an export run at once. Handlers
	// mostly wait for memory, so it is far more than there are CPUs; one that
	// waits for a nested call does not count.
	DefaultWorkers = 64

	// DefaultQueue is how many calls of an export wait for a worker. At 64
	// workers and a millisecond a call, the last in the queue waits 16 ms.
	DefaultQueue = 1024

	// maxStarted bounds the handlers of an export that have begun, those
	// waiting for nested calls included: 4096 of them are some 64 MiB.
	maxStarted = 4096

	// withdrawPatience is how long Close waits for the rack to send calls elsewhere, and
	// for those that are held for the node: less than the 3 s after which a daemon that
	// stops kills its programs.
	withdrawPatience = 2 * time.Second

	// onewayLifetime is how long a one-way whose context has no deadline is
	// re-sent until its callee has it.
	onewayLifetime = 30 * time.Second

	// maxDetached is how many one-ways, and calls given up that lend memory, are
	// out at once; a further one waits.
	maxDetached = 1024

	// journalRetry is how long to wait after a journal could not be fetched.
	journalRetry = 100 * time.Millisecond

	// minMTU is the smallest MTU of IPv6 (RFC 8200), in bytes.
	minMTU = 1280

	// maxMessage is how many bytes an error's message has at most that travels.
	maxMessage = 4096

	// readBatch is how many datagrams a reader takes at once. Their buffers are
	// 64 KiB each.
	readBatch = 8
)
