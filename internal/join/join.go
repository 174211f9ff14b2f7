// Package join is the seam between a program and its blade's compute daemon:
// how a process becomes a node. Package rpc uses it; package daemon serves it,
// over a Unix socket for real processes and directly in the simulated rack.
package join

import (
	"cmp"
	"context"
	"net/netip"
	"os"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// SocketName is the abstract Unix socket of a blade's compute daemon. Abstract
// sockets belong to a network namespace, so every program finds its own blade's.
const SocketName = "@bifrost/compute"

// SocketVariable is the environment variable with the path of another socket, as that of `bifrost dev` is.
const SocketVariable = "BIFROST_JOIN_SOCKET"

// Socket is where a program of this environment joins.
func Socket() string { return cmp.Or(os.Getenv(SocketVariable), SocketName) }

// Joiner makes nodes.
type Joiner interface {
	// Join makes the calling program a node. When it returns, the switch knows
	// the node's address and lets its packets pass.
	Join(ctx context.Context, name string) (Session, error)
}

// joinerKey is the key of a context's Joiner.
type joinerKey struct{}

// NewContext returns a context in which rpc.Join asks this Joiner: a simulated rack and
// tests bring their own.
func NewContext(ctx context.Context, j Joiner) context.Context {
	return context.WithValue(ctx, joinerKey{}, j)
}

// FromContext returns a context's Joiner, or the given one if it has none.
func FromContext(ctx context.Context, none Joiner) Joiner {
	if j, ok := ctx.Value(joinerKey{}).(Joiner); ok {
		return j
	}
	return none
}

// Session is one node's tie to its daemon. Methods may be called concurrently.
type Session interface {
	// Node tells the node's identity; it does not change.
	Node() Identity
	// Stack is the network to open endpoints on.
	Stack() netio.Network
	// Rack is the newest view of the rack that the daemon has.
	Rack() control.Rack
	// Policies is what operators and deployments say about methods, as of now: they
	// hold for calls that are sent from now on. It costs little.
	Policies() *Policies
	// Export registers a service of this node; it returns when the route is in
	// place. The node must be ready to receive by then. Node and Incarnation
	// are filled in by the session. With e.Withdraw it takes all services of the
	// node away again: see control.Export.
	Export(ctx context.Context, e control.Export) (control.Exported, error)
	// BeginMain asks whether the node may run a durable main; see control.BeginMain. Node and Incarnation are filled
	// in by the session.
	BeginMain(ctx context.Context, m control.BeginMain) (control.BegunMain, error)
	// Who tells what the Gatekeeper knows of the node at an address: NotFound if there is
	// none. Its daemon asks each time.
	Who(ctx context.Context, node netip.Addr) (control.NodeInfo, error)
	// Service tells what the Gatekeeper knows of a service: NotFound if no node exports it.
	Service(ctx context.Context, name string) (control.ServiceInfo, error)
	// Serving lists the nodes that take the calls of a method. The switch and the nodes' blades answer; the Gatekeeper, if no node
	// serves the method now. It waits while nobody answers.
	Serving(ctx context.Context, q control.Serving) (control.ServingList, error)
	// Sharing asks whose a caller is, and whether it may share its fate with this node; see control.Sharing. Node and Incarnation are filled in by
	// the session.
	Sharing(ctx context.Context, q control.Sharing) (control.SharingReply, error)
	// Calls tells the Gatekeeper what direct calls the node serves. Node and Incarnation are
	// filled in by the session.
	Calls(ctx context.Context, c control.NodeCalls) error
	// Blocks asks for call slots, so that the node has so many blocks in all, and lists all blocks that it has then: fewer if it may
	// not have more.
	Blocks(ctx context.Context, want int) ([]uint32, error)
	// Batches asks for region slots of a memory machine, in batches, so that the node has so many there, and lists all that it has there then:
	// fewer if it may not have more.
	Batches(ctx context.Context, machine uint8, want int) ([]uint32, error)
	// Share gives a standing lease, or takes it back; see control.Share. Node and Incarnation are filled in by the session.
	Share(ctx context.Context, s control.Share) (control.ShareReply, error)
	// Ledger asks where the node keeps its ledger; nil as long as no memory machine is in service.
	Ledger(ctx context.Context) (*control.LedgerPlace, error)
	// Holdings tells what the switch's registers have of a node that has joined again, as of before it has; see control.Holdings. A node
	// whose Identity has a Row and a Before must ask, once, before it does anything with its rights: they are forgotten then. With now it tells which
	// regions the node owns at some time before it returns; that may take a second, and as long as there is no Gatekeeper.
	Holdings(ctx context.Context, now bool) (control.Holdings, error)
	// Done is closed when the node has lost its identity: the daemon is gone, or
	// the node has been stopped or fenced.
	Done() <-chan struct{}
	// Close ends the node in an orderly way: when it returns, its identity,
	// regions and leases are gone or about to go.
	Close(ctx context.Context) error
	// Crash ends the node as Close does, but without an orderly end: its next incarnation, if the rack
	// starts one, goes on with what it has begun. It does not wait.
	Crash(reason string)
}

// Pinged is a Session whose daemon asks now and then whether the program still works.
type Pinged interface {
	// OnPing has f called for each question, from a goroutine of the session's; f must not
	// block. From then on the daemon expects an answer: Alive, before the next question.
	OnPing(f func())
	// Alive answers a question. Stalled says that a service has calls waiting and has taken
	// up none since the last answer. It does not block.
	Alive(stalled bool)
}

// Canceller is a Session by which operators cancel calls, and the rack ends deadlocks.
type Canceller interface {
	// OnCancel has f called with the id of each call that this node is to cancel, in
	// hexadecimal; with why it would wait for itself if it is to be refused instead, while it
	// still waits for its turn. f must not block.
	OnCancel(f func(call, deadlock string))
}

// Accountant is a Session by which a node gives its account, when the switch has lost its registers.
type Accountant interface {
	// OnAccount has f called when the node is to give its account, with the number of the question. f must not block.
	OnAccount(f func(rebuild uint64))
	// Account gives a page of it. Node and Incarnation are filled in by the session.
	Account(ctx context.Context, p control.AccountPage) error
}

// Identity is who a node is.
type Identity struct {
	Name        string
	Blade       string
	Address     netip.Addr
	Incarnation uint32
	// Ledger is where the node keeps its ledger; nil in a rack without ledgers.
	Ledger *control.LedgerPlace
	// Blocks are the blocks of call slots that it has.
	Blocks []uint32 `json:",omitempty"`
	// Before is the incarnation before this one, 0 for none. Exited says that it has ended with its program.
	Before uint32 `json:",omitempty"`
	Exited bool   `json:",omitempty"`
	// Row is control.Joined's: the node's row in the switch, 0 if rights are not there.
	Row uint16 `json:",omitempty"`
}
