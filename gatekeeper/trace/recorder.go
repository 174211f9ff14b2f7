package trace

import (
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// DefaultCalls is how many calls a Recorder of the Gatekeeper's keeps.
const DefaultCalls = 8192

// Recorder keeps the latest calls. It is not safe for concurrent use.
type Recorder struct {
	ring     []entry // of sequence s at (s-1) % size; it grows up to that
	size     int
	index    map[rpcpacket.ID]uint64
	children map[rpcpacket.ID]family // by parent, whether that is kept or not
	next     uint64                  // sequence number of the next call
	dropped  uint64                  // steps of calls that were not kept
	meter    meter
	// well and failed are the calls that TakeEnded returns.
	well, failed ended
}

// entry is a call, with its brothers: the sequence numbers of those that the same
// parent has made before and after it; 0 is none.
type entry struct {
	Call
	figures      *Method // those that count it; nil of one that was over when it became known
	older, newer uint64
}

// family is the first and the last child of a parent that are kept.
type family struct{ first, last uint64 }

// New returns a Recorder of so many calls, 1 at least. Has says whether some service has a method: the Recorder asks when it has no
// figures of it, so that nobody fills it with methods that do not exist. Nil means that each one does.
func New(calls int, has func(service, method string) bool) *Recorder {
	return &Recorder{meter: meter{has: has}, size: max(calls, 1), index: make(map[rpcpacket.ID]uint64), children: make(map[rpcpacket.ID]family), next: 1}
}

// Note tells what has happened to a call. A Sent of a call that is not known makes it
// so; another step of one that is not known is dropped. It reports whether the call is
// over with this step.
func (r *Recorder) Note(e *Event) (over bool) {
	seq, known := r.index[e.Call]
	switch {
	case known && e.Kind == Sent: // again
		if k := r.at(seq); !k.Over {
			k.Details = e.Details
		}
		return false
	case !known && e.Kind != Sent:
		r.dropped++
		return false
	case !known:
		seq = r.add(e)
		r.meter.began(r.at(seq))
	}
	k := r.at(seq)
	was := k.Over
	k.note(e)
	if !k.Over || was {
		return false
	}
	k.ended(e.Time)
	if k.Failed() {
		r.failed.note(seq)
	} else {
		r.well.note(seq)
	}
	return true
}

// Ended counts calls that have ended and of which no Event tells.
func (r *Recorder) Ended(service, method string, code fault.Code, calls uint64) {
	r.meter.of(service, method).Ended[code] += calls
}

// Methods returns what has become of the calls of each method since the Recorder began.
func (r *Recorder) Methods() []Method { return r.meter.all() }

// Knows reports whether a call is kept.
func (r *Recorder) Knows(id rpcpacket.ID) bool {
	_, known := r.index[id]
	return known
}

// Len is how many calls are kept.
func (r *Recorder) Len() int { return len(r.index) }

func (r *Recorder) at(seq uint64) *entry { return &r.ring[(seq-1)%uint64(r.size)] }

// add makes a call known in the place of the oldest.
func (r *Recorder) add(e *Event) uint64 {
	seq := r.next
	r.next++
	if len(r.ring) < r.size {
		r.ring = append(r.ring, entry{})
	}
	k := r.at(seq)
	if k.Sequence != 0 {
		if !k.Over {
			k.lost()
		}
		r.forget(k)
	}
	steps := k.Steps[:0]
	*k = entry{Call: Call{ID: e.Call, About: e.About, Details: e.Details, A1: e.Time, Steps: steps, Sequence: seq}}
	r.index[e.Call] = seq
	if !e.Parent.IsZero() {
		f := r.children[e.Parent]
		if k.older = f.last; k.older != 0 {
			r.at(k.older).newer = seq
		} else {
			f.first = seq
		}
		f.last = seq
		r.children[e.Parent] = f
	}
	return seq
}

// forget drops a call. It is the oldest, and so of its brothers.
func (r *Recorder) forget(k *entry) {
	delete(r.index, k.ID)
	if k.Parent.IsZero() {
		return
	}
	if k.newer == 0 {
		delete(r.children, k.Parent)
		return
	}
	r.at(k.newer).older = 0
	f := r.children[k.Parent]
	f.first = k.newer
	r.children[k.Parent] = f
}

// copy returns a call that nobody shares.
func (k *entry) copy() Call {
	c := k.Call
	c.Steps = slices.Clone(c.Steps)
	return c
}

// Call returns a call.
func (r *Recorder) Call(id rpcpacket.ID) (Call, bool) {
	seq, known := r.index[id]
	if !known {
		return Call{}, false
	}
	return r.at(seq).copy(), true
}

// Root is the outermost call on whose behalf a call was made, as far as that is kept;
// the call itself if it is not.
func (r *Recorder) Root(id rpcpacket.ID) rpcpacket.ID {
	if seq, known := r.root(id); known {
		return r.at(seq).ID
	}
	return id
}

func (r *Recorder) root(id rpcpacket.ID) (seq uint64, known bool) {
	if seq, known = r.index[id]; !known {
		return 0, false
	}
	for range maxDepth { // who has made a call is what nodes say: it might be a ring
		up, ok := r.index[r.at(seq).Parent]
		if !ok {
			break
		}
		seq = up
	}
	return seq, true
}

// maxDepth bounds how many calls stand above one.
const maxDepth = 1024

// Leaf is a call in a Tree.
type Leaf struct {
	Call
	Depth int // 0 for the root
}

// Tree returns the calls that belong together with one. The first is the outermost call on
// whose behalf it was made, as far as that is kept. Each call stands in front of those that
// it has made itself, which are in the order of their beginning. Limit bounds them; more tells that there are others. It is empty if the
// call is not known.
func (r *Recorder) Tree(id rpcpacket.ID, limit int) (tree []Leaf, more bool) {
	seq, known := r.root(id)
	if !known {
		return nil, false
	}
	type visit struct {
		seq   uint64
		depth int
	}
	seen := map[uint64]bool{}
	for todo := []visit{{seq, 0}}; len(todo) > 0; {
		p := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if seen[p.seq] {
			continue
		}
		if len(tree) >= limit {
			return tree, true
		}
		seen[p.seq] = true
		k := r.at(p.seq)
		tree = append(tree, Leaf{k.copy(), p.depth})
		first := len(todo)
		for child := r.children[k.ID].last; child != 0; child = r.at(child).older {
			todo = append(todo, visit{child, p.depth + 1})
		}
		// The latest first, since the last one is taken next; nodes tell of their calls in any order.
		slices.SortStableFunc(todo[first:], func(a, b visit) int { return r.at(b.seq).A1.Compare(r.at(a.seq).A1) })
	}
	return tree, false
}

// Query selects calls; the zero value selects all.
type Query struct {
	Node   netip.Addr // caller or callee
	Caller netip.Addr
	// Service and Method are those of the method; "" for any.
	Service, Method string
	Failed          bool // only those that Failed
	Rerun           bool // only those that were run again
	Roots           bool // only those that no other call that is kept has made
	// HasCode selects calls that are over and ended with Code, which may be fault.OK.
	HasCode bool
	Code    fault.Code
	// Longer selects calls that took as long at least, or have been under way for as long at Now.
	Longer time.Duration
	Now    time.Time
	// Since and Until bound the time when a call was sent; the zero time does not.
	Since, Until time.Time
	// Before, if not 0, is the sequence number of the last call of the page before.
	Before uint64
	Limit  int
}

// Recent returns calls, the latest first, after a look at scan of them at most; next is
// the Before of the page that follows, 0 if there is none.
func (r *Recorder) Recent(q Query, scan int) (page []Call, next uint64) {
	seq := r.next - 1
	if q.Before != 0 {
		seq = min(seq, q.Before-1)
	}
	for ; seq > 0 && seq+uint64(r.size) >= r.next; seq-- {
		if len(page) >= q.Limit || scan == 0 {
			return page, seq + 1
		}
		scan--
		if k := r.at(seq); k.Sequence == seq && q.matches(&k.Call) && (!q.Roots || !r.Knows(k.Parent)) {
			page = append(page, k.copy())
		}
	}
	return page, 0
}

func (q *Query) matches(c *Call) bool {
	return (!q.Node.IsValid() || c.Caller.Address == q.Node || c.Callee.Address == q.Node) &&
		(!q.Caller.IsValid() || c.Caller.Address == q.Caller) &&
		(q.Service == "" || c.Service == q.Service) && (q.Method == "" || c.Method == q.Method) &&
		(!q.Failed || c.Failed()) && (!q.Rerun || c.Attempts > 0) &&
		(!q.HasCode || c.Over && c.Code == q.Code) &&
		(q.Longer <= 0 || c.took(q.Now) >= q.Longer) &&
		(q.Since.IsZero() || !c.A1.Before(q.Since)) && (q.Until.IsZero() || c.A1.Before(q.Until))
}

// took is how long a call took, or has been under way.
func (c *Call) took(now time.Time) time.Duration {
	end := now
	if c.Over {
		end = c.A2
		if n := len(c.Steps); n > 0 && end.IsZero() {
			end = c.Steps[n-1].Time
		}
	}
	return end.Sub(c.A1)
}
