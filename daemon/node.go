package daemon

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// node is one program's tie to the rack: a join.Hosted. It begins with host and
// ends once: by the program (Close), by its death (Crash), or because the rack
// has taken its identity away (forget).
type node struct {
	daemon   *Compute
	identity join.Identity
	program  join.Program
	token    uint64   // of its join
	started  *program // nil for one that was not started here
	stack    *nodeStack
	mark     uint32 // of its sockets
	done     chan struct{}
	once     sync.Once

	// Guarded by daemon.mu:
	endpoints map[netip.AddrPort]netio.Conn
	exports   map[netip.Addr]*offered     // by the services' addresses
	named     time.Time                   // when a caller was told of it last
	bound     time.Time                   // when a caller of policy none was
	ledger    bool                        // it keeps one
	cancel    func(call, deadlock string) // nil unless the program takes cancellations
	account   func(rebuild uint64)        // nil unless the program gives accounts
}

var _ join.Hosted = (*node)(nil)

// Join implements join.Joiner for a program in this process.
func (c *Compute) Join(ctx context.Context, name string) (join.Session, error) {
	return c.Host(ctx, join.Program{Name: name})
}

// Host implements join.Host.
func (c *Compute) Host(ctx context.Context, p join.Program) (join.Hosted, error) {
	if _, err := c.awaitRegistration(ctx); err != nil {
		return nil, err
	}
	type outcome struct {
		n   *node
		err error
	}
	answer := make(chan outcome)
	r := &request{leaves: p, done: make(chan struct{})}
	// The join goes on when the caller gives up: only its outcome tells whether
	// there is a node to be taken back.
	if !c.task(func(work context.Context) {
		defer c.endGivenUp(r)
		n, err := c.obtain(work, p)
		select {
		case answer <- outcome{n, err}:
		case <-ctx.Done():
			if err == nil {
				_ = n.end(work, control.Leave{Reason: "the program has given up joining", Crashed: true}) // logged there
			}
		}
	}) {
		return nil, stopping("join")
	}
	select {
	case o := <-answer:
		if o.err != nil {
			return nil, o.err
		}
		return o.n, nil
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		select {
		case <-r.done:
		default:
			c.givenUp[r] = true
		}
		return nil, fault.FromContext("join", ctx.Err())
	}
}

// endGivenUp says that a join is over, with what its program has left behind if it has given up.
func (c *Compute) endGivenUp(r *request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(r.done)
	delete(c.givenUp, r)
}

// request is a join or leave that is under way.
type request struct {
	leaves join.Program // of a leave, or of a join whose program has given up
	done   chan struct{}
}

// left waits until the Gatekeeper has heard of the end of all nodes of a program that have ended here, or that it has given up. So a program
// that somebody starts again by hand may be the next incarnation of such a node.
func (c *Compute) left(ctx context.Context, p join.Program) {
	var wait []*request
	c.mu.Lock()
	for _, r := range slices.AppendSeq(slices.Collect(maps.Keys(c.givenUp)), maps.Values(c.unsettled)) {
		if r.leaves.Name == p.Name && p.Instance == "" {
			wait = append(wait, r)
		}
	}
	c.mu.Unlock()
	for _, r := range wait {
		select {
		case <-r.done:
		case <-ctx.Done():
		}
	}
}

// obtain gets a new node from the Gatekeeper.
func (c *Compute) obtain(ctx context.Context, p join.Program) (*node, error) {
	c.left(ctx, p)
	c.mu.Lock()
	if err := c.takeNode(p); err != nil {
		c.mu.Unlock()
		return nil, err
	}
	c.token++
	ask := control.Join{Blade: c.cfg.Name, Name: p.Name, Token: c.token, Instance: p.Instance, NoLedger: p.NoLedger, User: p.UID}
	c.unsettled[ask.Token] = &request{done: make(chan struct{})}
	c.mu.Unlock()
	defer c.endRequest(ask.Token)
	var joined control.Joined
	err := c.askJoin(ctx, p.UID, ask, &joined)
	if err != nil {
		c.giveNode(p.UID)
		return nil, err
	}
	// Its first call has to go by the policies of now.
	err = c.learnPolicies(ctx, joined.Rack.PolicyVersion)
	var n *node
	if err == nil {
		n, err = c.adopt(p, ask.Token, joined)
	}
	if err != nil {
		c.giveNode(p.UID)
		gone := control.Leave{Node: joined.Address, Incarnation: joined.Incarnation, Reason: err.Error()}
		if e := c.reg.ask.Ask(ctx, control.KindLeave, gone, nil); e != nil {
			c.reg.log.Warn("leave", "node", joined.Address, "err", e)
		}
	}
	return n, err
}

// askJoin asks the Gatekeeper for a node. One that has forgotten the blade, which was
// silent for too long, is asked again when it knows it again.
func (c *Compute) askJoin(ctx context.Context, uid uint32, ask control.Join, joined *control.Joined) error {
	for {
		r, err := c.awaitRegistration(ctx)
		if err != nil {
			return err
		}
		err = c.askFor(ctx, uid, control.KindJoin, ask, joined)
		if fault.CodeOf(err) != fault.Stale || !c.registrationEnded(ctx, r) {
			return err
		}
	}
}

// endRequest says that a join or leave is over.
func (c *Compute) endRequest(token uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.unsettled[token]; r != nil {
		close(r.done)
		delete(c.unsettled, token)
	}
}

// adopt makes an identity a node of this blade. What still has the address here was
// an incarnation before, which the Gatekeeper has fenced.
func (c *Compute) adopt(p join.Program, token uint64, j control.Joined) (*node, error) {
	if old := c.node(j.Address); old != nil {
		c.reg.log.Warn("node has lost its identity", "node", j.Address, "name", old.identity.Name, "reason", "its next incarnation has joined")
		c.forget(old, false)
	}
	n := &node{
		daemon: c, program: p, token: token, mark: c.takeMark(), done: make(chan struct{}), endpoints: map[netip.AddrPort]netio.Conn{}, exports: map[netip.Addr]*offered{},
		identity: join.Identity{Name: p.Name, Blade: c.cfg.Name, Address: j.Address, Incarnation: j.Incarnation, Ledger: j.Ledger, Blocks: j.Blocks, Before: j.Before, Exited: j.Exited, Row: j.Row},
	}
	n.ledger = j.Ledger != nil
	n.stack = &nodeStack{n}
	c.lockUnlessChanging(j.Address)
	defer c.mu.Unlock()
	var err error
	added := !c.ended
	if added {
		c.change(j.Address, func() { err = c.addAddress(j.Address, p.UID, n.mark) })
	}
	switch {
	case err != nil:
		err = &fault.Error{Code: fault.Unavailable, Op: "join", Err: err}
	case c.ended && !added:
		err = stopping("join")
	case c.ended: // meanwhile
		c.change(j.Address, func() { err = c.removeAddress(j.Address) })
		err = errors.Join(stopping("join"), err)
	}
	if err != nil {
		delete(c.marks, n.mark)
		return nil, err
	}
	n.started = c.programs[p.Instance]
	c.nodes[j.Address] = n
	c.setRack(j.Rack) // newer than the last heartbeat's
	c.reg.log.Info("node joined", "node", j.Address, "name", p.Name, "incarnation", j.Incarnation)
	return n, nil
}

// takeMark takes a mark that no node's sockets bear.
func (c *Compute) takeMark() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.lastMark++; c.marks[rackaddr.Mark(c.lastMark)]; c.lastMark++ {
	}
	m := rackaddr.Mark(c.lastMark)
	c.marks[m] = true
	return m
}

// forget ends a node on this blade: its addresses go, its sockets end, and its program hears of
// it. If the Gatekeeper is to be told, that follows (tell). It is false if the node has
// ended before.
func (c *Compute) forget(n *node, telling bool) (first bool) {
	n.once.Do(func() {
		first = true
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.nodes, n.identity.Address)
		c.nodesOf.Release(n.program.UID, 1)
		if telling {
			c.unsettled[n.token] = &request{leaves: n.program, done: make(chan struct{})}
		}
		c.remove(n)
		if n.started != nil {
			n.started.spent = true
		}
		close(n.done)
		for at := range n.endpoints {
			n.closeEndpoint(at)
		}
		delete(c.marks, n.mark)
	})
	return first
}

// remove has the address of a node that has ended removed. Who waits to add it, such as the next incarnation, waits until it is
// gone. The caller holds c.mu.
func (c *Compute) remove(n *node) {
	a, over := n.identity.Address, make(chan struct{})
	c.changing[a] = over
	remove := func() {
		if err := c.removeAddress(a); err != nil {
			c.reg.log.Warn("address remains", "node", a, "err", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.changing, a)
		close(over)
	}
	if c.work.Err() == nil {
		c.tasks.Go(remove)
		return
	}
	c.mu.Unlock() // nothing goes on any more
	defer c.mu.Lock()
	remove()
}

// node returns the node with an address, nil if there is none here.
func (c *Compute) node(a netip.Addr) *node {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nodes[a]
}

// end ends the node here and tells the Gatekeeper.
func (n *node) end(ctx context.Context, l control.Leave) error {
	if !n.daemon.forget(n, true) {
		return nil
	}
	return n.tell(ctx, l)
}

// tell tells the Gatekeeper that the node has ended.
func (n *node) tell(ctx context.Context, l control.Leave) error {
	defer n.daemon.endRequest(n.token)
	log := n.daemon.reg.log.With("node", n.identity.Address, "name", n.identity.Name)
	l.Node, l.Incarnation = n.identity.Address, n.identity.Incarnation
	log.Info("node leaves", "reason", l.Reason, "crashed", l.Crashed)
	err := n.daemon.reg.ask.Ask(ctx, control.KindLeave, l, nil)
	if err != nil {
		log.Warn("leave", "err", err)
	}
	return err
}

// services are the names of those that the node exports, in order. The caller holds daemon.mu.
func (n *node) services() []string {
	names := make([]string, 0, len(n.exports))
	for _, x := range n.exports {
		names = append(names, x.name)
	}
	slices.Sort(names)
	return names
}

// Node implements join.Session.
func (n *node) Node() join.Identity { return n.identity }

// Stack implements join.Session.
func (n *node) Stack() netio.Network { return n.stack }

// Done implements join.Session.
func (n *node) Done() <-chan struct{} { return n.done }

// Rack implements join.Session.
func (n *node) Rack() control.Rack {
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	r := n.daemon.rack
	r.Memories = slices.Clone(r.Memories)
	return r
}

// Changed implements join.Hosted.
func (n *node) Changed() <-chan struct{} {
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	return n.daemon.changed
}

// Export implements join.Session.
func (n *node) Export(ctx context.Context, e control.Export) (x control.Exported, err error) {
	select {
	case <-n.done:
		return x, fault.New(fault.Stale, "export "+e.Service, "the node has ended")
	default:
	}
	e.Node, e.Incarnation = n.identity.Address, n.identity.Incarnation
	if err := n.ask(ctx, control.KindExport, e, &x); err != nil {
		return x, err
	}
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	if e.Withdraw {
		clear(n.exports)
		return x, nil
	}
	methods := make(map[rpcpacket.Method]bool, len(e.Methods))
	for _, m := range e.Methods {
		if wire, err := rpcpacket.MethodOf(m.Name); err == nil { // as the Gatekeeper has found
			methods[wire] = true
		}
	}
	n.exports[rackaddr.Service(e.Service)] = &offered{e.Service, methods}
	return x, nil
}

// BeginMain implements join.Session.
func (n *node) BeginMain(ctx context.Context, m control.BeginMain) (begun control.BegunMain, err error) {
	m.Node, m.Incarnation = n.identity.Address, n.identity.Incarnation
	err = n.ask(ctx, control.KindMain, m, &begun)
	return begun, err
}

// Who implements join.Session.
func (n *node) Who(ctx context.Context, a netip.Addr) (info control.NodeInfo, err error) {
	err = n.ask(ctx, control.KindWho, control.Who{Node: a}, &info)
	return info, err
}

// Service implements join.Session.
func (n *node) Service(ctx context.Context, name string) (info control.ServiceInfo, err error) {
	err = n.ask(ctx, control.KindService, control.Service{Name: name}, &info)
	return info, err
}

// Serving implements join.Session.
func (n *node) Serving(ctx context.Context, q control.Serving) (control.ServingList, error) {
	return n.daemon.lookUp(ctx, n.program.UID, q)
}

// Sharing implements join.Session.
func (n *node) Sharing(ctx context.Context, q control.Sharing) (r control.SharingReply, err error) {
	q.Node, q.Incarnation = n.identity.Address, n.identity.Incarnation
	err = n.ask(ctx, control.KindSharing, q, &r)
	return r, err
}

// Calls implements join.Session.
func (n *node) Calls(ctx context.Context, c control.NodeCalls) error {
	c.Node, c.Incarnation = n.identity.Address, n.identity.Incarnation
	return n.ask(ctx, control.KindCalls, c, nil)
}

// Blocks implements join.Session.
func (n *node) Blocks(ctx context.Context, want int) ([]uint32, error) {
	var r control.BlockReply
	err := n.ask(ctx, control.KindBlocks, control.BlockQuery{Node: n.identity.Address, Incarnation: n.identity.Incarnation, Want: want}, &r)
	return r.Blocks, err
}

// Batches implements join.Session.
func (n *node) Batches(ctx context.Context, machine uint8, want int) ([]uint32, error) {
	var r control.BatchReply
	err := n.ask(ctx, control.KindBatches, control.BatchQuery{Node: n.identity.Address, Incarnation: n.identity.Incarnation, Machine: machine, Want: want}, &r)
	return r.Batches, err
}

// Share implements join.Session.
func (n *node) Share(ctx context.Context, s control.Share) (r control.ShareReply, err error) {
	s.Node, s.Incarnation = n.identity.Address, n.identity.Incarnation
	err = n.ask(ctx, control.KindShare, s, &r)
	return r, err
}

// Ledger implements join.Session.
func (n *node) Ledger(ctx context.Context) (*control.LedgerPlace, error) {
	var r control.LedgerReply
	if err := n.ask(ctx, control.KindLedger, control.LedgerQuery{Node: n.identity.Address, Incarnation: n.identity.Incarnation}, &r); err != nil || r.Ledger == nil {
		return nil, err
	}
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	n.ledger = true
	return r.Ledger, nil
}

// Holdings implements join.Session.
func (n *node) Holdings(ctx context.Context, now bool) (control.Holdings, error) {
	return control.ReadHoldings(ctx, now, n.HoldingsPage)
}

// HoldingsPage implements join.Hosted.
func (n *node) HoldingsPage(ctx context.Context, q control.HoldingsQuery) (p control.HoldingsPage, err error) {
	q.Node, q.Incarnation = n.identity.Address, n.identity.Incarnation
	err = n.ask(ctx, control.KindHoldings, q, &p)
	return p, err
}

// OnAccount implements join.Accountant.
func (n *node) OnAccount(f func(rebuild uint64)) {
	n.daemon.mu.Lock()
	defer n.daemon.mu.Unlock()
	n.account = f
}

// Account implements join.Accountant.
func (n *node) Account(ctx context.Context, p control.AccountPage) error {
	p.Node, p.Incarnation = n.identity.Address, n.identity.Incarnation
	return n.ask(ctx, control.KindAccount, p, nil)
}

// Close implements join.Session. The Gatekeeper is told even if ctx ends first.
func (n *node) Close(ctx context.Context) error {
	told, first := n.endSoon(control.Leave{Reason: "closed"})
	if !first {
		return nil
	}
	select {
	case err := <-told:
		return err
	case <-ctx.Done():
		return fault.FromContext("leave", ctx.Err())
	}
}

// Crash implements join.Session.
func (n *node) Crash(reason string) { n.endSoon(control.Leave{Reason: reason, Crashed: true}) }

// Exited implements join.Hosted. Of a program that was killed because it hung, the reason is that.
func (n *node) Exited(reason string) {
	if p := n.started; p != nil {
		if hung := n.daemon.hung(p); hung != "" {
			reason = "program " + p.start.Name + " was killed: " + hung
		}
	}
	n.endSoon(control.Leave{Reason: reason, Crashed: true, Exited: true})
}

// endSoon ends the node here at once, and tells the Gatekeeper as part of the
// daemon's work. It is false if the node has ended before, or the daemon's work
// has: then nobody is told.
func (n *node) endSoon(l control.Leave) (told <-chan error, first bool) {
	if !n.daemon.forget(n, true) {
		return nil, false
	}
	result := make(chan error, 1)
	return result, n.daemon.task(func(work context.Context) { result <- n.tell(work, l) })
}
