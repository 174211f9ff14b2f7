package pool

import (
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Region is one that the node controls.
type Region struct {
	dsmpacket.Region
	// Stale is what earlier users have left in it, to be zeroed before it is seen.
	Stale Span
	// Turn is the caller's own: whoever changes Stale.
	Turn chan struct{}

	written Span // by the one who has it now
	under   int  // operations under way
	out     int  // calls that it is lent to
	idle    bool
	since   time.Duration // idle since then
}

// Idle reports whether the region has been freed.
func (r *Region) Idle() bool { return r.idle }

// Lent reports whether a call has the region out.
func (r *Region) Lent() bool { return r.out > 0 }

// Span is the n bytes at p, as far as they are in the region.
func (r *Region) Span(p dsmpacket.Pointer, n int) Span {
	from := p.Offset() - r.Base.Offset()
	return Span{from, min(from+uint64(n), r.Size())}
}

// Enter begins an operation; write is what it writes, or empty.
func (r *Region) Enter(write Span) {
	r.under++
	r.written = r.written.Hull(write)
}

// Leave ends it.
func (r *Region) Leave() { r.under-- }

// Span is the bytes From..To of a region; empty if To is not above From.
type Span struct{ From, To uint64 }

// Empty reports whether there is nothing in it.
func (s Span) Empty() bool { return s.To <= s.From }

// Overlaps reports whether two spans share a byte.
func (s Span) Overlaps(o Span) bool {
	return !s.Empty() && !o.Empty() && s.From < o.To && o.From < s.To
}

// Hull is the smallest span that holds both.
func (s Span) Hull(o Span) Span {
	switch {
	case s.Empty():
		return o
	case o.Empty():
		return s
	}
	return Span{min(s.From, o.From), max(s.To, o.To)}
}

// Without takes o out of s. It is false if that would leave two pieces.
func (s Span) Without(o Span) (Span, bool) {
	switch {
	case !s.Overlaps(o):
		return s, true
	case o.From <= s.From:
		return Span{o.To, s.To}, true
	case o.To >= s.To:
		return Span{s.From, o.From}, true
	}
	return s, false
}
