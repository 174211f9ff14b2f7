package rights

import (
	"cmp"
	"maps"
	"slices"
)

// made is a call on record of the execution that makes it.
type made struct {
	id, does string
	to       int
	refs     []Ref // under which it was sent; the last one counts
	slots    int
	oneway   bool
	none     bool   // its caller keeps no ledger
	bound    uint32 // the incarnation of its callee that it is for; 0: any
	givenUp  bool
	over     bool // its outcome is on record
	code     code
	decided  bool // by this side: it was refused, or never sent
	settled  bool // its callee has forgotten it
	spent    Ref  // the callee has answered under it that the call never began
	sent     []arg
	closed   map[Ref]bool
}

// shared is a standing lease that an execution has asked for.
type shared struct {
	id     string
	region Region
	to     int
	ref    Ref
	ended  bool
}

// record is what a ledger has of one execution.
type record struct {
	id        string
	program   *program
	caller    int
	callerInc uint32
	light     bool // its caller keeps no ledger
	root      bool // a main
	ref       Ref  // under which the call came first
	args      []arg
	changed   bool // it may have changed memory
	calls     map[int]*made
	allocs    map[int]Region
	shares    map[int]*shared
	done      bool
	code      code
	result    []arg
	frees     map[Region]bool
	oneways   []*made
	forgotten bool // nobody asks for its answer again
	swept     bool // the results that nobody has got were freed
}

func newRecord(id, does string) *record {
	return &record{id: id, program: programs[does], calls: map[int]*made{}, allocs: map[int]Region{}, shares: map[int]*shared{}}
}

func (r *record) all() []*made {
	var all []*made
	for _, at := range sorted(r.calls) {
		all = append(all, r.calls[at])
	}
	return append(all, r.oneways...)
}

// unshared reports whether no standing lease of the execution is left, as far as its node knows.
func (r *record) unshared() bool {
	for _, s := range r.shares {
		if !s.ended {
			return false
		}
	}
	return true
}

// execution is a run of an execution.
type execution struct {
	*record
	at    int // step
	vars  [8]arg
	own   map[Region]bool
	waits string
	refs  map[Ref]bool // under which its call has come
	dirty bool         // what a former run has changed is to be taken back first
	short int          // how often it has found too few call slots in a row
}

// begin starts an execution, or runs it again.
func (n *node) begin(r *record, refs map[Ref]bool) *execution {
	e := &execution{record: r, own: map[Region]bool{}, refs: refs}
	for i, a := range r.args {
		e.vars[i] = a
		if r.program.oneway {
			e.own[a.Region] = true
			e.vars[i].by = Ref{}
		}
	}
	n.runs[r.id] = e
	return e
}

// writes puts an execution on its node's ledger.
func (n *node) writes(r *record) { n.ledger[r.id] = r }

// tidy forgets an execution of which nobody owes anything.
func (w *world) tidy(n *node, r *record) {
	if !r.done || len(r.frees) > 0 || !r.forgotten || !r.unshared() {
		return
	}
	for _, c := range r.all() {
		if !c.settled && (c.oneway || len(c.refs) > 0) {
			return
		}
	}
	if w.has(forgetFrees) && !r.swept && !r.root { // results that nobody has got
		if w.has(sweepLate) && len(n.runs) > 0 {
			return
		}
		r.swept = true
		for _, a := range r.result {
			if !n.holds(a.Region) && (!w.has(handedOn) || !n.handsOn(a.Region, r)) {
				r.frees[a.Region] = true
				w.free(n, a.Region, r)
			}
		}
		if len(r.frees) > 0 {
			return
		}
	}
	n.forgot[r.id] = true
	delete(n.ledger, r.id)
}

// holds reports whether an execution that runs here has a region, or owes something about it.
func (n *node) holds(g Region) bool {
	for _, e := range n.runs {
		if e.own[g] {
			return true
		}
	}
	for _, r := range n.ledger {
		if r.done && r.frees[g] {
			return true
		}
		for _, c := range r.oneways {
			if !c.over && slices.ContainsFunc(c.sent, func(a arg) bool { return a.Region == g }) {
				return true
			}
		}
	}
	return false
}

// handsOn reports whether another execution has the region among its results: then that one frees it, if nobody gets it.
func (n *node) handsOn(g Region, but *record) bool {
	for _, r := range n.ledger {
		if r != but && r.done && !r.swept && slices.ContainsFunc(r.result, func(a arg) bool { return a.Region == g }) {
			return true
		}
	}
	return false
}

// accounts reports whether something on record, or under way, explains that the node has a region.
func (n *node) accounts(g Region) bool {
	if n.holds(g) {
		return true
	}
	for _, q := range n.requests {
		if q.m.Region == g {
			return true
		}
	}
	for _, r := range n.ledger {
		if !r.done && slices.Contains(slices.Collect(maps.Values(r.allocs)), g) {
			return true
		}
		if r.done && (!r.forgotten || !r.swept) && slices.ContainsFunc(r.result, func(a arg) bool { return a.Region == g }) {
			return true
		}
	}
	return false
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func byNumber(a, b Ref) int {
	return cmp.Or(cmp.Compare(a.Number, b.Number), cmp.Compare(a.Slot, b.Slot))
}

func sortedRefs[V any](m map[Ref]V) []Ref {
	return slices.SortedFunc(maps.Keys(m), byNumber)
}

func sortedRegions(m map[Region]bool) []Region {
	return slices.SortedFunc(maps.Keys(m), func(a, b Region) int {
		return cmp.Or(cmp.Compare(a.Slot, b.Slot), cmp.Compare(a.Generation, b.Generation))
	})
}
