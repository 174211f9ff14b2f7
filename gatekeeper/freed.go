package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
)

// maxGranted is how many frees are remembered: more than clients have out.
const maxGranted = 1024

// grantedFree is a free that was let go on. Its rules were revoked before that, so a copy
// that its client sends meanwhile, because the network or the memory blade is slow,
// meets none: the switch denies it, and the client finds out that the first one was
// applied. That is no denial for people to look at.
type grantedFree struct {
	node    netip.Addr
	region  packet.Pointer
	request uint64
}

// grantedFrees are the latest, from next on round the ring.
type grantedFrees struct {
	ring []grantedFree
	next int
}

func (g *grantedFrees) note(f grantedFree) {
	if len(g.ring) < maxGranted {
		g.ring = append(g.ring, f)
		return
	}
	g.ring[g.next] = f
	g.next = (g.next + 1) % maxGranted
}

func (g *grantedFrees) has(f grantedFree) bool {
	for i := range g.ring {
		if g.ring[i] == f {
			return true
		}
	}
	return false
}
