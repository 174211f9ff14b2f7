// Package testrack is a rack for the runtime's tests: hosts on a virtual wire, a router in
// place of the switch, and a memory machine that keeps the nodes' ledgers. Of the Gatekeeper there is
// what direct calls need: who serves what, which incarnation of a node is there, and who may run a
// durable main. Nothing is held, lent or denied, and nobody can allocate memory.
package testrack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Rack is one wire, the nodes on it, and what the Gatekeeper knows of them.
type Rack struct {
	Net *wire.Net
	// Explicit is what operators and deployments say of methods.
	Explicit atomic.Pointer[join.Policies]

	memory *memory.Server

	mu         sync.Mutex
	hosts      uint64
	nodes      map[netip.Addr]*node
	services   map[string][]netip.Addr
	mains      map[control.ExecutionID]*control.BegunMain
	sessions   []*Session
	blocks     uint32 // given out
	batches    uint32 // likewise, of region slots
	impairment wire.Impairment
}

// node is what the Gatekeeper knows of a node.
type node struct {
	control.NodeInfo
	address netip.Addr
	host    *wire.Host // of its present incarnation
	blocks  []uint32   // of call slots
	session *Session   // likewise; nil if the test plays the node
}

// machine is the number of the memory machine.
const machine = 1

// LedgerSpace is how many bytes the ledger of a node may take.
const LedgerSpace = 4 << 20

// New returns a rack on a wire of this kind. It runs until the test ends.
func New(t testing.TB, cfg wire.Config) *Rack {
	t.Helper()
	r := empty()
	r.Net = wire.New(cfg)
	r.Net.Connect(r.Net.Router())
	var err error
	r.memory, err = memory.NewServer(memory.Config{
		Stack: r.Host("memory"), Prefix: rackaddr.DefaultDSMPrefix, Machine: machine, Capacity: 1 << 20,
		Ledgers: memory.LedgerConfig{Space: LedgerSpace},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { r.Net.Run(ctx) })
	running.Go(func() {
		if err := r.memory.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return r
}

func empty() *Rack {
	return &Rack{nodes: map[netip.Addr]*node{}, services: map[string][]netip.Addr{}, mains: map[control.ExecutionID]*control.BegunMain{}}
}

// Host adds a host to the rack.
func (r *Rack) Host(name string) *wire.Host {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.host(name)
}

func (r *Rack) host(name string) *wire.Host {
	r.hosts++
	h, err := r.Net.AddHost(wire.HostConfig{Name: name, Port: datapath.Port(r.hosts), Address: rackaddr.Blade(r.hosts)})
	if err != nil {
		panic(err) // two hosts of one name: a mistake in the test
	}
	return h
}

// Joiner makes nodes on hosts of their own, named as the node. A node whose name is that of one
// which has failed is its next incarnation: the former one is fenced first.
func (r *Rack) Joiner() join.Joiner { return joiner{r} }

type joiner struct{ rack *Rack }

// Join implements join.Joiner.
func (j joiner) Join(_ context.Context, name string) (join.Session, error) {
	r := j.rack
	r.mu.Lock()
	defer r.mu.Unlock()
	n, hostName := r.named(name), name
	if n == nil {
		n = &node{NodeInfo: control.NodeInfo{Name: name, Blade: name}, address: rackaddr.Node(r.hosts + 1)}
		r.nodes[n.address] = n
	} else {
		n.crash()
		if _, err := r.memory.Fence(control.Fence{Node: n.address, Incarnation: n.Incarnation}); err != nil {
			return nil, err
		}
		hostName = fmt.Sprint(name, ".", n.Incarnation+1)
	}
	n.Incarnation++
	n.host = r.host(hostName)
	n.host.Impair(r.impairment, r.impairment)
	granted, err := r.memory.GrantLedger(control.LedgerGrant{
		Birth: r.memory.Birth(), Name: control.LedgerOf(n.address), Node: n.address, Incarnation: n.Incarnation,
	})
	if err != nil || granted.Code != fault.OK {
		return nil, fault.New(fault.Internal, "join", "no ledger: %s, %v", granted.Message, err)
	}
	r.grant(n, 2)
	n.session = &Session{rack: r, MTU: n.host.MTU(), stack: n.host, done: make(chan struct{}), identity: join.Identity{
		Name: name, Blade: name, Address: n.address, Incarnation: n.Incarnation,
		Ledger: &control.LedgerPlace{Machine: machine, Birth: granted.Birth, Since: 1}, Blocks: slices.Clone(n.blocks), Before: n.Incarnation - 1,
	}}
	r.sessions = append(r.sessions, n.session)
	return n.session, n.host.AddAddress(n.address)
}

// named is the node of a name that has joined and not left. The caller holds r.mu.
func (r *Rack) named(name string) *node {
	for _, n := range r.nodes {
		if n.Name == name && n.session != nil {
			return n
		}
	}
	return nil
}

// Sessions are those made so far.
func (r *Rack) Sessions() []*Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sessions)
}

// Crash ends the blade of a node. It reports false if the node is not there.
func (r *Rack) Crash(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.named(name)
	if n == nil {
		return false
	}
	n.crash()
	return true
}

func (n *node) crash() {
	n.session.Cut() // first: what the program does when it sees that is too late
	n.host.Crash()
}

// Failed reports whether a node has failed, and has no next incarnation yet.
func (r *Rack) Failed(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := r.named(name)
	return n != nil && n.session.ended()
}

// Impair makes the network of all nodes bad, also of those to come.
func (r *Rack) Impair(i wire.Impairment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.impairment = i
	for _, n := range r.nodes {
		if n.host != nil {
			n.host.Impair(i, i)
		}
	}
}

// Play makes known that the test plays a node that serves something.
func (r *Rack) Play(address netip.Addr, services ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.nodes[address] = &node{address: address, NodeInfo: control.NodeInfo{Incarnation: 1}}
	for _, s := range services {
		r.services[s] = append(r.services[s], address)
	}
}

// Leave has a node leave for good.
func (r *Rack) Leave(address netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.withdraw(address)
	delete(r.nodes, address)
}

// withdraw has a node serve nothing any more. The caller holds r.mu.
func (r *Rack) withdraw(address netip.Addr) {
	for s, nodes := range r.services {
		r.services[s] = slices.DeleteFunc(nodes, func(a netip.Addr) bool { return a == address })
	}
}

// Ledger returns the records in a node's ledger.
func (r *Rack) Ledger(address netip.Addr) (records [][]byte) {
	chunks, _, _ := r.memory.ReadLedger(control.LedgerOf(address))
	var reader dsmpacket.Records
	for _, c := range chunks {
		if err := reader.Chunk(c, func(b []byte) { records = append(records, b) }); err != nil {
			panic(err) // the memory server's mistake
		}
	}
	return records
}

// Session is one incarnation's tie to the rack, which tests can cut.
type Session struct {
	MTU int
	// OnExport, if set, is asked about each export.
	OnExport func(control.Export) error

	rack     *Rack
	identity join.Identity
	stack    netio.Network
	batches  []uint32 // of region slots
	done     chan struct{}
	once     sync.Once
}

// NewSession returns the session of a node on a stack, in a rack that has nothing else.
func NewSession(stack netio.Network, id join.Identity) *Session {
	if id.Blocks == nil {
		id.Blocks = []uint32{1, 2, 3, 4}
	}
	return &Session{rack: empty(), identity: id, stack: stack, done: make(chan struct{})}
}

// Play is that of the rack.
func (s *Session) Play(address netip.Addr, services ...string) { s.rack.Play(address, services...) }

// Node implements join.Session.
func (s *Session) Node() join.Identity { return s.identity }

// Stack implements join.Session.
func (s *Session) Stack() netio.Network { return s.stack }

// Rack implements join.Session.
func (s *Session) Rack() control.Rack {
	return control.Rack{DSMPrefix: rackaddr.DefaultDSMPrefix, MTU: s.MTU}
}

// Policies implements join.Session.
func (s *Session) Policies() *join.Policies { return s.rack.Explicit.Load() }

// Export implements join.Session.
func (s *Session) Export(_ context.Context, e control.Export) (control.Exported, error) {
	if s.OnExport != nil {
		if err := s.OnExport(e); err != nil {
			return control.Exported{}, err
		}
	}
	r, a := s.rack, s.identity.Address
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case s.ended():
		return control.Exported{}, fault.New(fault.Stale, "export", "%s has lost its identity", s.identity.Name)
	case e.Withdraw:
		r.withdraw(a)
	case !slices.Contains(r.services[e.Service], a):
		r.services[e.Service] = append(r.services[e.Service], a)
	}
	return control.Exported{}, nil
}

// Who implements join.Session.
func (s *Session) Who(_ context.Context, a netip.Addr) (control.NodeInfo, error) {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	n := s.rack.nodes[a]
	if n == nil {
		return control.NodeInfo{}, fault.New(fault.NotFound, "who", "no node has the address %s", a)
	}
	return n.NodeInfo, nil
}

// Service implements join.Session.
func (s *Session) Service(_ context.Context, name string) (info control.ServiceInfo, err error) {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	for _, a := range s.rack.services[name] {
		info.Nodes = append(info.Nodes, control.ServiceNode{Node: a})
	}
	if len(info.Nodes) == 0 {
		return info, fault.New(fault.NotFound, "service", "no node exports %s", name)
	}
	return info, nil
}

// Serving implements join.Session.
func (s *Session) Serving(_ context.Context, q control.Serving) (control.ServingList, error) {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	list := control.ServingList{Nodes: slices.Clone(s.rack.services[q.Service])}
	for _, a := range list.Nodes {
		list.Incarnations = append(list.Incarnations, s.rack.nodes[a].Incarnation)
	}
	return list, nil
}

// grant gives a node blocks of call slots until it has so many. The caller holds r.mu.
func (r *Rack) grant(n *node, want int) {
	for len(n.blocks) < min(want, rpcpacket.MaxBlocks) {
		r.blocks++
		n.blocks = append(n.blocks, r.blocks)
	}
}

// Blocks implements join.Session.
func (s *Session) Blocks(_ context.Context, want int) ([]uint32, error) {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	n := s.rack.nodes[s.identity.Address]
	if n == nil {
		return s.identity.Blocks, nil
	}
	s.rack.grant(n, want)
	return slices.Clone(n.blocks), nil
}

// Holdings implements join.Session.
func (s *Session) Holdings(context.Context, bool) (control.Holdings, error) {
	return control.Holdings{}, nil
}

// Batches implements join.Session.
func (s *Session) Batches(_ context.Context, _ uint8, want int) ([]uint32, error) {
	s.rack.mu.Lock()
	defer s.rack.mu.Unlock()
	for len(s.batches) < want {
		s.rack.batches++
		s.batches = append(s.batches, s.rack.batches)
	}
	var g control.Grant
	for _, b := range s.batches {
		g.Batches = append(g.Batches, control.BatchOf{Batch: b, Node: s.identity.Address})
	}
	return s.batches, s.rack.memory.Grant(g)
}

// Share implements join.Session: there is no switch here that knows of leases.
func (s *Session) Share(_ context.Context, q control.Share) (control.ShareReply, error) {
	if q.End {
		return control.ShareReply{State: control.ShareEnded}, nil
	}
	return control.ShareReply{State: control.ShareHolds, Slot: rpcpacket.Slot(q.ID), Number: rpcpacket.Number(q.ID)}, nil //nolint:gosec // few
}

// Sharing implements join.Session: all programs are of one deployment.
func (s *Session) Sharing(context.Context, control.Sharing) (control.SharingReply, error) {
	return control.SharingReply{Kin: true}, nil
}

// BeginMain implements join.Session.
func (s *Session) BeginMain(_ context.Context, ask control.BeginMain) (control.BegunMain, error) {
	r, id := s.rack, control.ExecutionID(endpoint.MainID(ask.Name))
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mains[id] == nil {
		r.mains[id] = &control.BegunMain{Memory: id}
	}
	r.mains[id].Run++
	return *r.mains[id], nil
}

// Calls implements join.Session: what is told is heard, and no call has leases.
func (s *Session) Calls(_ context.Context, c control.NodeCalls) error {
	if c.Main != nil {
		s.rack.mu.Lock()
		defer s.rack.mu.Unlock()
		is := s.rack.mains[c.Main.Execution]
		is.Over, is.Index = true, c.Main.Index
	}
	return nil
}

// Done implements join.Session.
func (s *Session) Done() <-chan struct{} { return s.done }

// Cut takes the node's identity away.
func (s *Session) Cut() { s.once.Do(func() { close(s.done) }) }

// ended reports whether the node has lost its identity.
func (s *Session) ended() bool {
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// Close implements join.Session.
func (s *Session) Close(context.Context) error {
	if !s.ended() {
		s.rack.Leave(s.identity.Address)
	}
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

// Ledger implements join.Session.
func (s *Session) Ledger(context.Context) (*control.LedgerPlace, error) {
	return s.identity.Ledger, nil
}
