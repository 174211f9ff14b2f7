package pool

import "github.com/bifrost-rack/bifrost/dsm/dsmpacket"

// Lend notes that a call carries a pointer.
func (p *Pool) Lend(ptr dsmpacket.Pointer) {
	delete(p.gained, ptr.Bare())
	if r := p.Find(ptr); r != nil && !r.idle {
		r.out++
	}
}

// Back notes that the call has been answered, so that its lease has ended.
func (p *Pool) Back(ptr dsmpacket.Pointer) {
	if r := p.Find(ptr); r != nil && r.out > 0 {
		r.out--
	}
}

// Gained notes that control of a region has come to the node by an answer. Its extent
// is not known, so it is not kept when it is freed.
func (p *Pool) Gained(ptr dsmpacket.Pointer) {
	if r := p.Find(ptr); r != nil {
		p.forget(r) // it has come back after it had gone: what was known of it is old
	}
	if len(p.gained) < maxKnown {
		p.gained[ptr.Bare()] = struct{}{}
	}
}
