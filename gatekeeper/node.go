package gatekeeper

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// node is a logical processor: one program with an address and an incarnation.
type node struct {
	name        string
	address     netip.Addr
	incarnation uint32
	token       uint64 // of the join
	blade       *blade
	joined      bool // its rules are in place
	gone        bool
	orderly     bool   // it has said goodbye
	exited      bool   // it has ended with its program
	first       uint32 // its first incarnation
	before      uint32 // the incarnation before this one, 0 for none
	afterExit   bool   // that has ended with its program
	whyBefore   string // why that has ended; "" if that was in a former run of the Gatekeeper
	exports     map[netip.Addr]*exported
	blocks      []uint32           // of call slots
	row         uint16             // its place in the switch's registers; 0 if its rights are not there
	going       bool               // it is gone for good
	unheard     bool               // it has not heard yet what its row has
	held        *holding           // that; nil if it is not asked for
	image       *image             // what its row had when its former incarnation, or that of a node that has ended, had ended; nil if it is not known
	batches     map[uint8][]uint32 // of region slots, by memory machine
	instance    string             // of a deployment, "" for none
	user        uint32             // that its program runs as, by the word of its blade
	why         string             // it has ended
	empties     bool               // it gets no new calls, and is stopped when it has none
	moves       bool               // and goes on elsewhere then
	named       time.Time          // when a caller was last told of it
	bound       time.Time          // when a caller of policy none was, whose calls only this incarnation takes
	lost        bool               // the ledger is lost that had the states of its services
	over        bool               // no direct call that is out to it has run, or will
	owes        bool               // its ledger may have one-ways that are not delivered; of a program that was started by hand
	farewell    func()             // called when its identity is gone
	ledger      *control.LedgerPlace
}

// logged is a node as the log knows it.
func (n *node) logged() wal.Node { return wal.Node{Address: n.address, Incarnation: n.incarnation} }

// mostLeft is of how many nodes that have left it is known that they did so in order. Callers
// ask within seconds. After a restart it is known of none: calls to them may have run.
const mostLeft = 1024

// who tells what is known of the node at an address.
func (c *controller) who(p *port, m control.Message) error {
	var q control.Who
	if err := m.Decode(&q); err != nil {
		return err
	}
	n := c.nodeOrFallen(q.Node)
	if n == nil || n.gone && !c.comesBack(n) || n.lost {
		if slices.Contains(c.left, q.Node) {
			p.answer(m, control.NodeInfo{Left: true})
			return nil
		}
		p.fail(m, fault.New(fault.NotFound, "who", "there is no node %s (any more)", q.Node))
		return nil // nodes ask about callers that have left: that is an answer like any other
	}
	info := control.NodeInfo{Name: n.name, Blade: n.blade.hello.Blade, Incarnation: n.incarnation, Away: n.gone}
	for _, x := range n.exports {
		info.Services = append(info.Services, x.service.name)
	}
	slices.Sort(info.Services)
	info.Services = info.Services[:min(len(info.Services), control.MaxServices)]
	info.Deployment, info.Program = c.fleet.ProgramAt(n.address)
	p.answer(m, info)
	return nil
}

// join makes a program a node. The same token again means the same program.
func (c *controller) join(p *port, m control.Message) error {
	var j control.Join
	if err := m.Decode(&j); err != nil {
		return err
	}
	b, err := p.bladeAt("join")
	if err != nil {
		return err
	}
	if b.hello.Blade != j.Blade || b.memory() {
		return fault.New(fault.BadRequest, "join", "blade %q cannot have nodes at port %d", j.Blade, p.num)
	}
	if err := checkName("join", j.Name); err != nil {
		return err
	}
	if j.Token == 0 {
		return fault.New(fault.BadRequest, "join", "program %q: the token must not be 0", j.Name)
	}
	n := b.joins[j.Token]
	if n == nil || n.gone {
		if len(c.nodes) >= maxNodes {
			return fault.New(fault.Overloaded, "join", "the rack has %d nodes, its maximum", len(c.nodes))
		}
		if err := c.mayHaveNode(b, &j); err != nil {
			return err
		}
		former, ready := c.awaitedBy(b, &j)
		if !ready {
			c.joins = append(c.joins, joining{former.address, p, m})
			return nil
		}
		identity, actions, err := c.registerNode(b, &j, former)
		if err != nil {
			c.act(actions)
			return err
		}
		n = c.newNode(b, &j, identity)
		c.act(actions)
		if len(n.blocks) == 0 { // it could never call anybody
			c.removeNodes("its owner has no call slots left", n)
			return fault.New(fault.Overloaded, "join", "user %d of blade %q has its share of the rack's call slots: end a program, or make fewer calls at once", n.user, b.hello.Blade)
		}
		if !n.rights() {
			c.removeNodes("the switch has no row left", n)
			return fault.New(fault.Overloaded, "join", "the rack has %d nodes, or is still about to end some: no more fit into the switch's registers", lastRow)
		}
		if j.NoLedger && n.ledger != nil {
			const why = "an earlier program of the node keeps a ledger, and this one would not go on with what is in it"
			c.removeNodes(why, n)
			return fault.New(fault.Unsupported, "join", "node %s: %s", n.address, why)
		}
	}
	if n.unheard && !n.joined && (n.held == nil || n.held.stage < holdRead) {
		c.hold(n, false, p, m)
		return nil
	}
	c.admitNode(p, m, n)
	return nil
}

// admitNode lets a node's packets pass, and answers its join.
func (c *controller) admitNode(p *port, m control.Message, n *node) {
	b := n.blade
	rules := slices.Concat(c.wantBlocks(n), c.wantBatches(n), c.want(nodeRoute(n)))
	c.change(func(err error) {
		switch {
		case n.gone:
			p.fail(m, fault.New(fault.Unavailable, "join", "the blade has failed meanwhile"))
			return
		case err != nil:
			c.removeNodes("the switch refuses its rules", n)
			p.fail(m, fault.New(fault.Internal, "join", "the switch refuses the node's rules: %v", err))
			return
		}
		if !n.joined {
			n.joined = true
			c.event(Event{Kind: NodeJoined, Blade: b.hello.Blade, Node: n.address, Name: n.name})
			c.logger.Info("node joined", "node", n.address, "name", n.name, "incarnation", n.incarnation, "blade", b.hello.Blade)
			c.recover(c.recoveries.Joined(n.logged()))
			if n.lost {
				c.beginLosing(n)
			}
		}
		p.answer(m, control.Joined{Address: n.address, Incarnation: n.incarnation, Rack: c.rack(c.cfg.MTU), Ledger: n.ledger, Blocks: n.blocks, Row: n.row, Before: n.before, Exited: n.afterExit})
	}, rules, c.want(nodeIdentity(p.num, n)))
}

// charged is who is charged for the node; zero while its blade is away.
func (n *node) charged() share.Owner {
	if n.blade.port == nil {
		return share.Owner{}
	}
	return share.Owner{Port: uint32(n.blade.port.num), User: n.user}
}

// charge tells memory blades who is charged for the regions of a node, unless its blade is away.
func (c *controller) charge(n *node) {
	if !n.charged().Known() {
		return
	}
	for _, machine := range slices.Sorted(maps.Keys(n.batches)) {
		var all []control.BatchOf
		for _, number := range n.batches[machine] {
			all = append(all, n.batch(number))
		}
		c.grant(machine, all)
	}
}

// newNode makes a program a node: a new one, or the next incarnation of one that has
// fallen.
func (c *controller) newNode(b *blade, j *control.Join, identity resources.Node) *node {
	n := &node{
		name: j.Name, address: identity.Address, incarnation: identity.Incarnation, blade: b, token: j.Token, instance: identity.Instance, user: j.User,
		exports: map[netip.Addr]*exported{},
	}
	c.lastIncarnation, n.first = n.incarnation, n.incarnation
	if n.address == rackaddr.Node(c.lastNode+1) {
		c.lastNode++ // registerNode's
	}
	c.succeed(n)
	c.rows.give(n)
	if !j.NoLedger || n.ledger != nil {
		c.grantLedger(n)
	}
	b.joins[j.Token], b.nodes[n.address], c.nodes[n.address] = n, n, n
	c.grantBlocks(n, joinBlocks)
	c.charge(n)
	c.keepRack()
	c.keepNode(n)
	c.keepExports(n)
	return n
}

// bladeAt returns the blade in service at a port.
func (p *port) bladeAt(op string) (*blade, error) {
	if p.blade == nil || p.blade.port != p {
		return nil, fault.New(fault.Stale, op, "no blade is registered at port %d: say hello first", p.num)
	}
	return p.blade, nil
}

// nodeAt returns a node of the blade at a port.
func (p *port) nodeAt(op string, a netip.Addr, incarnation uint32) (*node, error) {
	b, err := p.bladeAt(op)
	if err != nil {
		return nil, err
	}
	n := b.nodes[a]
	switch {
	case n == nil:
		return nil, fault.New(fault.NotFound, op, "blade %q has no node %s", b.hello.Blade, a)
	case n.incarnation != incarnation:
		return nil, fault.New(fault.Stale, op, "node %s is in incarnation %d, not %d", a, n.incarnation, incarnation)
	}
	return n, nil
}

// leave ends a node. A node that is gone already is no error.
func (c *controller) leave(p *port, m control.Message) error {
	var l control.Leave
	if err := m.Decode(&l); err != nil {
		return err
	}
	n, err := p.nodeAt("leave", l.Node, l.Incarnation)
	if fault.CodeOf(err) == fault.NotFound {
		p.answer(m, nil)
		return nil
	}
	if err != nil {
		return err
	}
	why := l.Reason
	if why == "" && l.Crashed {
		why = "crashed"
	}
	crashed := l.Crashed
	mains, open := c.mains.At(n.address)
	if !crashed && n.instance != "" && c.fleet.GoesOn(n.address) && !c.fleet.TakenBack(n.address) && open > 0 {
		crashed, why = true, "it has left, but its durable main is not over" // a job, which has to go on
		c.fleet.Paused(n.address)
	}
	n.exited = l.Exited
	n.orderly, n.farewell = !crashed, func() { p.answer(m, nil) }
	if n.orderly && n.over {
		n.owes = false
		c.left = append(c.left[max(0, len(c.left)+1-mostLeft):], n.address)
	}
	if n.orderly {
		if mains > 0 && open == 0 {
			c.fleet.Finish(n.address)
		}
		o := c.mains.Leave(n.logged()) // nobody asks for its mains that are over
		c.keepAll(o.Put, o.Delete)
	}
	c.removeNodes(why, n)
	return nil
}

// unidentify removes a node's identity, at whatever port it is.
func (t tables) unidentify(a netip.Addr, ports map[uint16]*port) phase {
	var u phase
	for num := range ports {
		u = append(u, t.unwant(identityEntry(num, host(a), p4.Node))...)
	}
	return u
}

// sender returns the node that sent a held packet, nil if the sender is not who
// the identity table says.
func (p *population) sender(h *held) *node {
	n := p.nodes[h.src]
	if n == nil || !n.joined || n.blade.port == nil || n.blade.port.num != h.port {
		return nil
	}
	return n
}

// The names of services and of durable mains have owners: a deployment, or a program that
// somebody started by hand. Only the owner's nodes export a service, and read what is
// logged of its state or of a main's checkpoint. A service that deployments declare is
// theirs; any other name belongs to whoever uses it first, until nothing of it is left. A
// deployment may take the name of a main over from a program that was started by hand.

// claim is a name of one kind.
type claim struct {
	Kind claimKind `json:"kind"`
	Name string    `json:"name"`
}

type claimKind string

const (
	claimService claimKind = "service"
	claimMain    claimKind = "main"
)

func (k claim) String() string { return string(k.Kind) + " " + k.Name }

// id is the claim's record in the log.
func (k claim) id() wal.ID { return wal.NameID(k.String()) }

// owner is who a name belongs to: an app, or else a program on a blade.
type owner struct {
	App     string `json:"app,omitempty"`
	Blade   string `json:"blade,omitempty"`
	Program string `json:"program,omitempty"`
}

func (o owner) String() string {
	if o.App != "" {
		return "deployment " + o.App
	}
	return fmt.Sprintf("program %s of blade %s", o.Program, o.Blade)
}

// owners are the owners of all names, how many names each has, and which name a key for calls belongs to.
type owners struct {
	of    map[claim]owner
	names map[owner]int
	keys  map[keyOf]claim
}

// keyOf is what a key for calls is derived from: the hash of a service or, if that is 0, the id of a durable main.
type keyOf struct {
	service uint64
	main    rpcpacket.ID
}

// key is that of the name.
func (k claim) key() keyOf {
	if k.Kind == claimMain {
		return keyOf{main: endpoint.MainID(k.Name)}
	}
	return keyOf{service: serviceHash(rackaddr.Service(k.Name))}
}

func newOwners() owners { return owners{map[claim]owner{}, map[owner]int{}, map[keyOf]claim{}} }

func (o *owners) set(k claim, by owner) {
	o.remove(k)
	o.of[k] = by
	o.names[by]++
	o.keys[k.key()] = k
}

func (o *owners) remove(k claim) {
	by, owned := o.of[k]
	if !owned {
		return
	}
	delete(o.of, k)
	delete(o.keys, k.key())
	if o.names[by]--; o.names[by] == 0 {
		delete(o.names, by)
	}
}

// owner is in whose name a node acts.
func (n *node) owner() owner {
	if app, _, ok := strings.Cut(n.instance, "/"); ok {
		return owner{App: app}
	}
	return owner{Blade: n.blade.hello.Blade, Program: n.name}
}

// ownerRecord is the data of KindOwner.
type ownerRecord struct {
	Claim claim `json:"claim"`
	Owner owner `json:"owner"`
}

// claim makes sure that a name is a node's to use. It fails with PermissionDenied if the
// name belongs to another owner.
func (c *controller) claim(n *node, k claim) error {
	o := n.owner()
	if k.Kind == claimService {
		switch apps := c.fleet.Declaring(k.Name); {
		case slices.Contains(apps, o.App):
			c.expel(k, apps)
			c.own(k, o)
			return nil
		case len(apps) > 0:
			return denied(k, owner{App: apps[0]})
		case c.cfg.ShareExports && o.App == "" && c.owners.of[k].App == "":
			return nil
		}
	}
	now, owned := c.owners.of[k]
	switch {
	case owned && now == o:
		c.yieldMain(k, o)
		return nil
	case owned && k.Kind == claimMain && now.App == "" && o.App != "":
		// Nobody keeps a deployment's main from running by starting one of its name by hand.
		c.yieldMain(k, o)
	case owned && !c.unused(k):
		return denied(k, now)
	}
	if mine := c.owners.names[o]; mine >= maxClaims {
		return fault.New(fault.Overloaded, string(k.Kind), "the %s has %d names, its maximum", o, mine)
	}
	c.own(k, o)
	return nil
}

func denied(k claim, by owner) error {
	return fault.New(fault.PermissionDenied, string(k.Kind), "%s belongs to the %s", k, by)
}

// own writes down who a name belongs to.
func (c *controller) own(k claim, o owner) {
	if now, owned := c.owners.of[k]; owned && now == o {
		return
	}
	if len(c.owners.of) >= maxOwners {
		c.disownUnused()
	}
	c.owners.set(k, o)
	c.putData(wal.Record{Kind: wal.KindOwner, ID: k.id()}, ownerRecord{k, o})
}

// expel takes a service that deployments declare away from other nodes, which came
// before them.
func (c *controller) expel(k claim, apps []string) {
	s := c.services[rackaddr.Service(k.Name)]
	if s == nil {
		return
	}
	for _, x := range slices.Clone(s.exports) {
		if slices.Contains(apps, x.node.owner().App) {
			continue
		}
		c.logger.Warn("export withdrawn", "service", s.name, "node", x.node.address, "reason", "deployment "+apps[0]+" declares it")
		c.change(nil, c.withdraw(x.node, s.address)...)
	}
}

// unused reports whether nothing is left of what a name stood for.
func (c *controller) unused(k claim) bool {
	if k.Kind == claimMain {
		return !c.mains.Known(endpoint.MainID(k.Name))
	}
	s := c.services[rackaddr.Service(k.Name)]
	return s == nil || len(s.exports) == 0
}

// disownUnused forgets the owners of names of which nothing is left.
func (c *controller) disownUnused() {
	for k := range maps.Clone(c.owners.of) {
		if c.unused(k) {
			c.owners.remove(k)
			c.drop(wal.KindOwner, k.id())
		}
	}
}

// restore brings an owner back.
func (o *owners) restore(r *wal.Record) error {
	var s ownerRecord
	if err := data(r, &s); err != nil {
		return err
	}
	o.set(s.Claim, s.Owner)
	return nil
}

// sharing tells a node whose a caller is, and whether it may share its fate with it.
func (c *controller) sharing(p *port, m control.Message) error {
	var q control.Sharing
	if err := m.Decode(&q); err != nil {
		return err
	}
	n, err := p.nodeAt("sharing", q.Node, q.Incarnation)
	if err != nil {
		return err
	}
	r := control.SharingReply{Declared: c.fleet.PolicyOf(resources.ExportedPolicy{Service: q.Service, Method: q.Method}).Policy.SharesFates()}
	if caller := c.nodeOrFallen(q.Caller); caller != nil {
		r.Kin, r.Owner = c.kin(n, caller), caller.charged()
	}
	p.answer(m, r)
	return nil
}
