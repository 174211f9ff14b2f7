package endpoint

import (
	"math/bits"
	"time"
)

// Balance spreads the calls to one service over its nodes. The switch chooses the node by
// the last byte of a call's id: each node has some of the 256 values. So the caller chooses
// the byte of each new call, and learns from the answers whose it is. A copy of a call has
// the same id, and so goes to the same node.
//
//   - Calls alternate: the bytes follow each other in bit-reversed order (0, 128, 64, 192 …),
//     which visits every range of values in proportion to its size.
//   - A node that has answered that it is overloaded, that has not answered in time, or that
//     takes much longer than others is left out for a moment, while there are others.
type Balance struct {
	turn  uint8
	at    [256]uint64 // the node that has answered last, by byte; 0 while none has
	nodes map[uint64]*standing
}

// standing is what is known of a node.
type standing struct {
	avoid time.Duration // until then
	pace  float64       // smoothed: an answer's time in relation to its method's mean
}

const (
	// avoidFor is for how long a node is left out. Then calls find out how it is now.
	avoidFor = 100 * time.Millisecond
	// slowPace is how much slower than the fastest node one is that is left out, and
	// slowTime how long an answer must take at least for that.
	slowPace = 4.0
	slowTime = time.Millisecond
	// maxPace bounds what one answer counts.
	maxPace = 16.0
	// maxTries bounds the search for a node that is not left out.
	maxTries = 32
)

// NewBalance returns a Balance that begins at a place of its own, so that callers that begin
// together do not all begin at the same node.
func NewBalance(turn uint8) *Balance {
	return &Balance{turn: turn, nodes: make(map[uint64]*standing)}
}

// Pick chooses the byte of the next call.
func (b *Balance) Pick(now time.Duration) uint8 {
	first := bits.Reverse8(b.turn)
	b.turn++
	for at, n := first, 0; n < maxTries; n++ {
		if s := b.nodes[b.guess(at)]; s == nil || s.avoid <= now {
			return at
		}
		at = bits.Reverse8(b.turn)
		b.turn++
	}
	return first // all are as bad
}

// Node is the node that answered the last call with this byte: the low half of its address,
// 0 if none has, or another one than before has answered since.
func (b *Balance) Node(at uint8) uint64 { return b.at[at] }

// guess is the node that a byte probably leads to: that of the byte itself, or that of the
// nearest bytes on both sides, since a node has ranges of values.
func (b *Balance) guess(at uint8) uint64 {
	below, above := int(at), int(at)
	for below > 0 && b.at[below] == 0 {
		below--
	}
	for above < 255 && b.at[above] == 0 {
		above++
	}
	if b.at[below] == b.at[above] {
		return b.at[below]
	}
	return 0
}

// Only is the only node that has answered so far, 0 if there are none or several.
func (b *Balance) Only() uint64 {
	if len(b.nodes) != 1 {
		return 0
	}
	for n := range b.nodes {
		return n
	}
	return 0
}

// Answered learns that a node has answered a call with this byte after d; mean is how long
// answers to the method take. It says whether the node was overloaded.
func (b *Balance) Answered(now time.Duration, at uint8, node uint64, d, mean time.Duration, overloaded bool) {
	if old := b.at[at]; old != node {
		b.at[at] = node
		b.forget(old)
	}
	s := b.nodes[node]
	if s == nil {
		s = &standing{pace: 1}
		b.nodes[node] = s
	}
	if overloaded {
		s.avoid = now + avoidFor
		return
	}
	if mean > 0 {
		s.pace += (min(float64(d)/float64(mean), maxPace) - s.pace) / 8
	}
	if d >= slowTime && s.pace > slowPace*b.fastest() {
		s.avoid, s.pace = now+avoidFor, 1
	}
}

// Late says that a call with this byte has not been answered in time.
func (b *Balance) Late(now time.Duration, at uint8) {
	if s := b.nodes[b.guess(at)]; s != nil {
		s.avoid = now + avoidFor
	}
}

// fastest is the pace of the fastest node.
func (b *Balance) fastest() float64 {
	least := maxPace
	for _, s := range b.nodes {
		least = min(least, s.pace)
	}
	return least
}

// forget drops a node that no byte leads to.
func (b *Balance) forget(node uint64) {
	if b.nodes[node] == nil {
		return
	}
	for _, n := range b.at {
		if n == node {
			return
		}
	}
	delete(b.nodes, node)
}
