package rights

import (
	"fmt"
	"slices"
)

// Addresses that are no nodes.
const (
	gatekeeperAt = 999
	copiesAt     = 1000 // the first copy of the memory machine; the second one follows
)

// code is how a request or a call has ended.
type code int

const (
	ok code = iota
	wasDenied
	unavail
	unbegun // it never began, and never will
	notFound
	inUse
	tooOld
	noSpace
	overloaded
)

func (c code) String() string {
	return [...]string{"ok", "permission denied", "unavailable", "never began", "not found", "in use", "too old", "no space", "overloaded"}[c]
}

// arg is a pointer in a payload, and what its sender knows of it.
type arg struct {
	Region
	by       Ref  // the use of a slot by which its holder has it; none: its holder owns it
	value    int  // the content
	block    int  // of the packet
	standing bool // by is a standing lease
	handle   bool // it is a value: the packet does not list it
}

// message is a packet on its way, with what the switch does not look at.
type message struct {
	Packet
	src, dst     int
	args         []arg
	id, does     string // the call, and its handler; of plain messages: what it is about
	bound        uint32 // the incarnation of its callee that a call of policy none is for
	light        bool   // its caller keeps no ledger
	unlogged     bool   // nobody takes a write back
	code         code
	request      int // of memory
	copy         int // the copy of a memory machine that has answered
	value        int
	of           Kind   // what memory answers
	client       uint32 // and to which incarnation
	ref          Ref    // of a standing lease
	byGatekeeper bool   // a packet-out, which is not judged
	passed       bool   // it is behind the switch
	turned       Reason // and was turned around
	again        bool   // it answers a call that is closed
}

func (m *message) String() string {
	t := m.Kind.String()
	if m.turned != 0 {
		t += " turned around: " + m.turned.String()
	}
	t += fmt.Sprintf(" %d(i%d)→%d", m.src, m.Incarnation, m.dst)
	if m.Ref != (Ref{}) {
		t += fmt.Sprintf(" slot %d#%d.%d", m.Ref.Slot, m.Ref.Number.Incarnation(), m.Ref.Number&0xffff)
	}
	t += " " + m.id + ":" + m.does
	for _, a := range m.args {
		t += fmt.Sprintf(" r%d.g%d", a.Slot, a.Generation)
		if a.by != (Ref{}) {
			t += fmt.Sprintf("(by slot %d)", a.by.Slot)
		}
	}
	if m.Region != (Region{}) {
		t += fmt.Sprintf(" r%d.g%d", m.Region.Slot, m.Region.Generation)
	}
	if m.code != ok {
		t += " " + m.code.String()
	}
	if m.passed {
		t += " [past the switch]"
	}
	return t
}

// clone is a copy that shares nothing that anybody changes.
func (m *message) clone() *message {
	c := *m
	c.args = slices.Clone(m.args)
	return &c
}

// pack spreads regions over the blocks of a call: all that a block lends on came in one slot. It returns how many blocks
// there are.
func pack(s Sizes, args []arg) int {
	var have [slotRegions * slotRegions]int
	var from [slotRegions * slotRegions]Ref
	blocks := 1
	for i := range args {
		a := &args[i]
		if a.handle {
			continue
		}
		for b := range have {
			if have[b] < s.PerSlot && (a.by == Ref{} || from[b] == Ref{} || from[b] == a.by) {
				a.block = b
				have[b]++
				if a.by != (Ref{}) {
					from[b] = a.by
				}
				blocks = max(blocks, b+1)
				break
			}
		}
	}
	return blocks
}

// blocksOf is how a call's header lists its arguments.
func blocksOf(args []arg, blocks int) []Block {
	all := make([]Block, blocks)
	for _, a := range args {
		if a.handle {
			continue
		}
		b := &all[a.block]
		b.Regions = append(b.Regions, a.Region)
		if a.by != (Ref{}) {
			b.Parent = a.by
		}
	}
	return all
}

func regionsOf(args []arg) (all []Region) {
	for _, a := range args {
		all = append(all, a.Region)
	}
	return all
}

// judge has the switch judge a message, and returns what goes on.
func (w *world) judge(m *message) []*message {
	m.Source, m.To, m.Machine = Source{uint16(m.src), at(m.src)}, at(m.dst), 1
	if m.byGatekeeper {
		if w.sw.Rebuilding || w.sw.Routes[m.Source.Address].Row == 0 && m.src != gatekeeperAt {
			return nil
		}
		m.passed = true
		return []*message{m}
	}
	var before picture
	if w.watched {
		before = w.sw.picture()
	}
	v := w.sw.Judge(&m.Packet)
	if w.watched {
		if err := w.sw.step(before, &m.Packet, v); err != nil {
			w.fail("STEP %v", err)
		}
	} else if err := w.sw.Check(); err != nil && !w.sw.Rebuilding {
		w.fail("INVARIANT %v", err)
	}
	switch v.Action {
	case Drop:
		w.log("     dropped: %s", v.Row)
		return nil
	case TurnAround:
		m = m.clone()
		m.src, m.dst, m.turned, m.passed = m.dst, m.src, v.Reason, true
		return []*message{m}
	case PassToAll:
		a, b := m.clone(), m.clone()
		a.passed, b.passed = true, true
		a.dst, b.dst = copiesAt, copiesAt+1
		return []*message{a, b}
	case Pass:
	}
	m.passed = true
	if m.Kind == Read {
		m.dst = copiesAt
	}
	if m.Kind == Reply {
		m.again = v.Row == "answer-copy"
		if v.Had != 0 && !m.again {
			w.had(m)
		}
	}
	return []*message{m}
}
