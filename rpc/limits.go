package rpc

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

// Limits bound what a node keeps and does at a time (see WithLimits). What goes beyond
// waits, or is dropped and sent again by its caller; Stats counts that. A field that
// is 0 stands for its default.
type Limits struct {
	// Started bounds the handlers of a service that have begun, those that wait for
	// nested calls included. Default: 4096, some 64 MiB.
	Started int
	// Detached is how many one-ways, and calls given up that lend memory, are out at
	// once; a further one waits. Default: 1024.
	Detached int
	// Exact is how many exactly-once calls run, or wait for their answers to be
	// acknowledged, at a time; some 200 bytes each, and the answers. Default: 65,536.
	Exact int
	// Sessions is how many callers' sessions are remembered, NodeSessions how many of one
	// node, at some 200 bytes each, and Window how many calls of one session above the
	// first that is not settled. Defaults: 262,144, 65,536 and 1024.
	Sessions, NodeSessions, Window int
	// ReplyBytes is how many bytes of answers are kept to be sent again. Default: 64 MiB.
	ReplyBytes int
	// MemoryWindow is how many bytes may be under way to or from one memory blade; one
	// packet may in any case. Default: what the receive buffer takes (dsm.Config.Window).
	MemoryWindow int
	// Lifetime is for how long nothing must have been heard of a session until it is
	// forgotten. No packet may live as long in the network, and no caller be silent as
	// long while it waits. Default: 10 minutes.
	Lifetime time.Duration
}

// DefaultLimits are the defaults.
var DefaultLimits = Limits{
	Started: 4096, Detached: 1024, Exact: endpoint.DefaultLimits.Exact, Sessions: endpoint.DefaultLimits.Sessions,
	NodeSessions: endpoint.DefaultLimits.NodeSessions, Window: endpoint.DefaultLimits.Window, ReplyBytes: endpoint.DefaultLimits.ReplyBytes,
	Lifetime: endpoint.DefaultLimits.Lifetime,
}

// withDefaults fills in what is left out. What is negative is an error.
func (l Limits) withDefaults() (Limits, error) {
	d := DefaultLimits
	for _, f := range []struct {
		name      string
		value     *int
		otherwise int
	}{
		{"Started", &l.Started, d.Started}, {"Detached", &l.Detached, d.Detached}, {"Exact", &l.Exact, d.Exact}, {"Sessions", &l.Sessions, d.Sessions},
		{"NodeSessions", &l.NodeSessions, d.NodeSessions}, {"Window", &l.Window, d.Window}, {"ReplyBytes", &l.ReplyBytes, d.ReplyBytes}, {"MemoryWindow", &l.MemoryWindow, d.MemoryWindow},
	} {
		switch {
		case *f.value < 0:
			return l, fault.New(BadRequest, "join", "Limits.%s of %d: want 1 at least, or 0 for the default of %d", f.name, *f.value, f.otherwise)
		case *f.value == 0:
			*f.value = f.otherwise
		}
	}
	switch {
	case l.Lifetime < 0:
		return l, fault.New(BadRequest, "join", "Limits.Lifetime of %v: want more than 0, or 0 for the default of %v", l.Lifetime, d.Lifetime)
	case l.Lifetime == 0:
		l.Lifetime = d.Lifetime
	}
	return l, nil
}

// callee are those of the calls that the node serves.
func (l *Limits) callee() endpoint.Limits {
	return endpoint.Limits{
		Sessions: l.Sessions, NodeSessions: l.NodeSessions, Exact: l.Exact, Window: l.Window, ReplyBytes: l.ReplyBytes, Lifetime: l.Lifetime,
	}
}

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

	// withdrawPatience is how long Close waits for the rack to send calls elsewhere, and
	// for those that are held for the node: less than the 3 s after which a daemon that
	// stops kills its programs.
	withdrawPatience = 2 * time.Second

	// onewayLifetime is how long a one-way whose context has no deadline is
	// re-sent until its callee has it.
	onewayLifetime = 30 * time.Second

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
