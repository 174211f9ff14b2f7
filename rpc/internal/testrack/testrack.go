// Package testrack is a rack for the runtime's tests and examples: hosts on a
// virtual wire, and a router in place of switch and Gatekeeper. Calls are routed
// by service address; nothing is held, lent or denied.
package testrack

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// Rack is one wire and the nodes on it.
type Rack struct {
	Net *wire.Net

	mu       sync.Mutex
	hosts    uint64
	sessions []*Session
}

// New returns a rack on a wire of this kind.
func New(cfg wire.Config) *Rack {
	r := &Rack{Net: wire.New(cfg)}
	r.Net.Connect(r.Net.Router())
	return r
}

// Run drives a scheduled wire until stop is called, which waits for its end.
func (r *Rack) Run() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.Net.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Host adds a host to the rack.
func (r *Rack) Host(name string) *wire.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hosts++
	h, err := r.Net.AddHost(wire.HostConfig{Name: name, Port: datapath.Port(r.hosts), Address: rackaddr.Blade(r.hosts)})
	if err != nil {
		panic(err) // two hosts of one name: a mistake in the test
	}
	return h
}

// Joiner makes nodes on a host of their own, named as the node.
func (r *Rack) Joiner() join.Joiner { return joiner{r} }

// Sessions are those made so far.
func (r *Rack) Sessions() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]*Session(nil), r.sessions...)
}

type joiner struct{ rack *Rack }

// Join implements join.Joiner.
func (j joiner) Join(_ context.Context, name string) (join.Session, error) {
	h := j.rack.Host(name)
	j.rack.mu.Lock()
	defer j.rack.mu.Unlock()
	s := NewSession(h, join.Identity{Name: name, Blade: name, Address: rackaddr.Node(j.rack.hosts), Incarnation: 1})
	s.MTU = h.MTU()
	j.rack.sessions = append(j.rack.sessions, s)
	return s, h.AddAddress(s.identity.Address)
}

// Session is one node's tie to the rack, which tests can cut.
type Session struct {
	MTU int
	// OnExport, if set, is asked about each export.
	OnExport func(control.Export) error
	// OnState, if set, tells what is logged; the default is nothing.
	OnState func(control.State) (control.StatePart, error)
	// OnWho, if set, tells what is known of nodes; the default is nothing.
	OnWho func(netip.Addr) (control.NodeInfo, error)
	// OnService, if set, tells what is known of services; the default is nothing.
	OnService func(string) (control.ServiceInfo, error)
	// OnServing, if set, tells which nodes take direct calls; the default is none.
	OnServing func(control.Serving) (control.ServingList, error)
	// Explicit is what operators and deployments say of methods.
	Explicit atomic.Pointer[join.Policies]

	identity join.Identity
	stack    netio.Stack
	done     chan struct{}
	once     sync.Once
}

// NewSession returns the session of a node on a stack.
func NewSession(stack netio.Stack, id join.Identity) *Session {
	return &Session{identity: id, stack: stack, done: make(chan struct{})}
}

// Node implements join.Session.
func (s *Session) Node() join.Identity { return s.identity }

// Stack implements join.Session.
func (s *Session) Stack() netio.Stack { return s.stack }

// Rack implements join.Session.
func (s *Session) Rack() control.Rack {
	return control.Rack{DSMPrefix: rackaddr.DefaultDSMPrefix, MTU: s.MTU}
}

// Policies implements join.Session.
func (s *Session) Policies() *join.Policies { return s.Explicit.Load() }

// Export implements join.Session.
func (s *Session) Export(_ context.Context, e control.Export) (control.Exported, error) {
	if s.OnExport != nil {
		return control.Exported{}, s.OnExport(e)
	}
	return control.Exported{}, nil
}

// Who implements join.Session.
func (s *Session) Who(_ context.Context, a netip.Addr) (control.NodeInfo, error) {
	if s.OnWho == nil {
		return control.NodeInfo{}, fault.New(fault.NotFound, "who", "a testrack knows no nodes")
	}
	return s.OnWho(a)
}

// Service implements join.Session.
func (s *Session) Service(_ context.Context, name string) (control.ServiceInfo, error) {
	if s.OnService == nil {
		return control.ServiceInfo{}, fault.New(fault.NotFound, "service", "a testrack knows no services")
	}
	return s.OnService(name)
}

// StatePart implements join.Session.
func (s *Session) StatePart(_ context.Context, ask control.State) (control.StatePart, error) {
	if s.OnState != nil {
		return s.OnState(ask)
	}
	return control.StatePart{}, nil
}

// Done implements join.Session.
func (s *Session) Done() <-chan struct{} { return s.done }

// Cut takes the node's identity away.
func (s *Session) Cut() { s.once.Do(func() { close(s.done) }) }

// Close implements join.Session.
func (s *Session) Close(context.Context) error {
	s.Cut()
	return nil
}

// Crash implements join.Session.
func (s *Session) Crash(string) { s.Cut() }

// Fixed is a joiner that always gives this session out.
func Fixed(s *Session) join.Joiner { return fixed{s} }

type fixed struct{ session *Session }

// Join implements join.Joiner.
func (f fixed) Join(context.Context, string) (join.Session, error) { return f.session, nil }

// Serving implements join.Session.
func (s *Session) Serving(_ context.Context, q control.Serving) (control.ServingList, error) {
	if s.OnServing == nil {
		return control.ServingList{}, nil
	}
	return s.OnServing(q)
}

// Calls implements join.Session.
func (s *Session) Calls(context.Context, control.NodeCalls) error { return nil }
