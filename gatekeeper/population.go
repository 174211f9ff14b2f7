package gatekeeper

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/mains"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// population is the nodes that there are, on the blades of an estate, and those that have failed and may come back: with
// their rows in the switch's registers, their slots, their durable mains, and how far their recoveries are. Like the estate it
// answers questions and chooses, and does nothing else.
type population struct {
	estate
	nodes      map[netip.Addr]*node
	fallen     map[netip.Addr]*node // nodes that have failed, until they are back or cleaned up after
	left       []netip.Addr         // nodes that have left in order, the latest last
	resting    []resting            // those that are over, the oldest first
	rows       rows                 // of nodes, in the switch's registers
	blocks     blocks               // of call slots
	batches    batches              // of region slots
	mains      *mains.Table
	recoveries *recovery.Machine

	shareExports bool // Config.ShareExports
}

func newPopulation(cfg *Config) population {
	return population{
		estate: newEstate(cfg), nodes: map[netip.Addr]*node{}, fallen: map[netip.Addr]*node{}, rows: rows{of: map[uint16]netip.Addr{}},
		blocks: blocks{of: map[uint32]netip.Addr{}}, batches: batches{of: map[uint32]batchOf{}, idle: map[uint8][]uint32{}, most: dsmpacket.Batches - 1},
		mains: mains.New(), recoveries: recovery.New(), shareExports: cfg.ShareExports,
	}
}

// everyone yields the nodes that are up, and those that have failed.
func (p *population) everyone(yield func(*node) bool) {
	for _, nodes := range []map[netip.Addr]*node{p.nodes, p.fallen} {
		for _, n := range nodes {
			if !yield(n) {
				return
			}
		}
	}
}

func (p *population) nodeOrFallen(a netip.Addr) *node {
	if n := p.nodes[a]; n != nil {
		return n
	}
	return p.fallen[a]
}

func byAddress(a, b *node) int { return a.address.Compare(b.address) }

func (p *population) sortedFallen() []*node {
	return slices.SortedFunc(maps.Values(p.fallen), byAddress)
}

// withRights are the nodes that have rows, those that have ended too.
func (p *population) withRights() (all []*node) {
	for n := range p.everyone {
		if n.rights() {
			all = append(all, n)
		}
	}
	slices.SortFunc(all, byAddress)
	return all
}

// rowOf is the node that has a row, nil if nobody has.
func (p *population) rowOf(row uint16) *node { return p.nodeOrFallen(p.rows.of[row]) }

// rowOfAddr is the row of a node, 0 if it has none.
func (p *population) rowOfAddr(a netip.Addr) uint16 {
	if n := p.nodeOrFallen(a); n != nil {
		return n.row
	}
	return 0
}

// deadUpTo is the last incarnation of a node that has ended, 0 if none has. Of a node that is gone for good all have, up to the one that
// is known.
func (p *population) deadUpTo(node netip.Addr, known uint32) uint32 {
	if n := p.nodes[node]; n != nil {
		return n.before
	}
	if n := p.fallen[node]; n != nil {
		return n.incarnation
	}
	return known
}

// mayHaveNode refuses a program that somebody has started by hand if its owner has its share of the rack's nodes: the blade
// among all blades, and its user among the blade's. Where programs of deployments run is the rack's own choice.
func (p *population) mayHaveNode(b *blade, j *control.Join) error {
	user := uint64(0)
	for _, n := range b.nodes {
		if n.user == j.User {
			user++
		}
	}
	if j.Instance != "" || share.RoomOf(user, uint64(len(b.nodes)), uint64(len(p.nodes)), maxNodes) > 0 {
		return nil
	}
	return fault.New(fault.Overloaded, "join", "user %d of blade %q has %d nodes, and the blade %d: its share of the rack's %d", j.User, b.hello.Blade, user, len(b.nodes), maxNodes)
}

// kin reports whether two nodes belong to one deployment or, of those that belong to none, run as one user of one blade.
func (p *population) kin(a, b *node) bool {
	one, other := a.owner(), b.owner()
	if one.App != "" || other.App != "" {
		return one.App == other.App
	}
	return p.shareExports || one.Blade == other.Blade && a.user == b.user
}

// room is how many more a node's owner may have of what a rack has so many of, and nodes have so many of already.
func (p *population) room(n *node, held func(*node) int, used, total int) int {
	user, blade := 0, 0
	count := func(o *node) {
		if blade += held(o); o.user == n.user {
			user += held(o)
		}
	}
	for _, o := range n.blade.nodes {
		count(o)
	}
	for _, o := range p.fallen {
		if o.blade == n.blade {
			count(o)
		}
	}
	return int(share.RoomOf(uint64(user), uint64(blade), uint64(used), uint64(total))) //nolint:gosec // not negative, and below total
}

// Exports answers the registry: an incarnation of a node exports a service, or did when it ended.
func (p *population) Exports(node netip.Addr, incarnation uint32, service string) bool {
	n := p.nodeOrFallen(node)
	if n == nil || n.incarnation != incarnation {
		return false
	}
	x := n.exports[rackaddr.Service(service)]
	return x != nil && (!x.away || n.gone)
}
