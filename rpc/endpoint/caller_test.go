package endpoint

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/script"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// callerMachine drives the Caller of incarnation 7 of a node by script. It has block 1 from the start.
//
//	begin NAME [expires=D] [rtt=METHOD] [kept] [holds] [node=N] [id=N] [slots=N]   take slots and, if there is one, begin a call
//	take NAME [...]                       take a slot only
//	go NAME                               begin a call that has got a slot
//	return NAME, leave NAME               give the slot back; do not wait any more
//	grant BLOCK..., want                  more slots
//	reply NAME|SLOT/COUNT [exception]     an answer arrives
//	hold SLOT/COUNT node=N                incarnation 6 has used the slot
//	unhold SLOT/COUNT [slots=N], held SLOT/COUNT
//	ask NAME SLOT/COUNT [node=N] [slots=N] [id=N] [holds]
//	orphan NAME HEIR                      nobody waits for a call any more, which goes on as another one
//	turned NAME lent|denied|gone [ask]    a packet comes back
//	detach NAME D, end NAME, tick, due, left   as the methods
//	restarted N                           a node takes direct calls again
//	after D                               time passes
type callerMachine struct {
	caller *Caller
	now    time.Duration
	calls  map[string]*Call
	rtts   map[string]*RTT
	served []string
}

var self = netip.AddrFrom16([16]byte{15: 9})

func newCallerMachine() script.Command {
	m := &callerMachine{calls: map[string]*Call{}, rtts: map[string]*RTT{"": {}}}
	m.caller = NewCaller(self, 7, func(c *Call) { m.served = append(m.served, c.Tag.(string)) })
	m.caller.Grant([]uint32{1})
	return func(out io.Writer, words []string) error {
		text := m.step(words)
		for _, name := range m.served {
			text += fmt.Sprintf("%s has slot %d\n", name, m.calls[name].Slot)
		}
		m.served = nil
		_, err := io.WriteString(out, text)
		return err
	}
}

func (m *callerMachine) step(args []string) string {
	switch args[0] {
	case "begin", "take", "ask":
		return m.begin(args)
	case "orphan":
		heir := &Call{Tag: args[2]}
		m.caller.Orphan(m.calls[args[1]], heir)
		m.calls[args[2]] = heir
		return ""
	case "hold", "unhold", "held":
		return m.hold(args)
	case "turned":
		return m.turned(args)
	case "go":
		return m.start(m.calls[args[1]])
	case "return":
		m.caller.Return(m.calls[args[1]])
		return ""
	case "leave":
		return fmt.Sprintln(m.caller.Leave(m.calls[args[1]]))
	case "grant":
		var blocks []uint32
		for _, a := range args[1:] {
			n, _ := strconv.Atoi(a)
			blocks = append(blocks, uint32(n))
		}
		return fmt.Sprintln(m.caller.Grant(blocks))
	case "want":
		return fmt.Sprintln(m.caller.Want())
	case "reply":
		return m.reply(args)
	case "end":
		return fmt.Sprintln(m.caller.End(m.calls[args[1]]))
	case "detach":
		d, _ := time.ParseDuration(args[2])
		return fmt.Sprintln(m.caller.Detach(m.calls[args[1]], m.now+d))
	case "age":
		return fmt.Sprintln(m.calls[args[1]].Age(m.now), m.calls[args[1]].Resent())
	case "after":
		d, _ := time.ParseDuration(args[1])
		m.now += d
		return ""
	case "due":
		at, ok := m.caller.Due()
		return fmt.Sprintln(at, ok)
	case "tick":
		return m.tick()
	case "restarted":
		at, ok := m.caller.Restarted(m.now, nodeOf(args[1]))
		return fmt.Sprintln(at, ok)
	case "left":
		s := ""
		for _, l := range m.caller.Left(m.now) {
			slot, n := l.Call.Place()
			s += fmt.Sprintf("%v: node %d is to forget %d/%d\n", m.now, l.Node[15], slot, n.Count())
		}
		return s
	}
	return "what?\n"
}

func (m *callerMachine) begin(args []string) string {
	c := &Call{Tag: args[1]}
	method := ""
	for _, a := range args[2:] {
		k, v, _ := strings.Cut(a, "=")
		switch k {
		case "expires":
			d, _ := time.ParseDuration(v)
			c.Expires = m.now + d
		case "rtt":
			method = v
		case "kept":
			c.Kept = true
		case "holds":
			c.Holds = true
		case "node":
			c.Node = nodeOf(v)
		case "slots":
			c.Slots, _ = strconv.Atoi(v)
		case "id":
			n, _ := strconv.Atoi(v)
			c.ID = rpcpacket.ID{15: byte(n)}
			c.ID.Derive()
		}
	}
	if m.rtts[method] == nil {
		m.rtts[method] = &RTT{}
	}
	c.RTT = m.rtts[method]
	m.calls[args[1]] = c
	switch {
	case args[0] == "ask":
		c.Slot, c.Number = formerPlace(args[2])
		if !m.caller.Ask(m.now, c) {
			return "refused\n"
		}
		return fmt.Sprintf("%s is asked, due %v\n", c.Tag, c.Due())
	case !m.caller.Take(c):
		return fmt.Sprintf("%s waits\n", c.Tag)
	case args[0] == "take":
		return fmt.Sprintf("%s has slot %d\n", c.Tag, c.Slot)
	}
	return m.start(c)
}

func (m *callerMachine) start(c *Call) string {
	if !m.caller.Begin(m.now, c) {
		return "refused\n"
	}
	return fmt.Sprintf("%s: slot %d, number %s, due %v\n", c.Tag, c.Slot, c.Number, c.Due())
}

// formerPlace is a call's of incarnation 6.
func formerPlace(text string) (rpcpacket.Slot, rpcpacket.Number) {
	var slot, count uint64
	_, _ = fmt.Sscanf(text, "%d/%d", &slot, &count)
	return rpcpacket.Slot(slot), rpcpacket.NumberOf(6, count)
}

func (m *callerMachine) hold(args []string) string {
	slot, n := formerPlace(args[1])
	slots, node := 1, [16]byte{}
	for _, a := range args[2:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "slots":
			slots, _ = strconv.Atoi(v)
		case "node":
			node = nodeOf(v)
		}
	}
	switch args[0] {
	case "hold":
		m.caller.Hold(slot, n, node)
	case "unhold":
		m.caller.Unhold(slot, n, slots)
	default:
		return fmt.Sprintln(m.caller.Held(slot, n))
	}
	return ""
}

func (m *callerMachine) turned(args []string) string {
	c := m.calls[args[1]]
	h := rpcpacket.Header{Type: rpcpacket.Call, Call: c.ID, Slot: c.Slot, Number: c.Number}
	h.Turned = map[string]rpcpacket.Turned{"lent": rpcpacket.Lent, "denied": rpcpacket.Denied, "gone": rpcpacket.Gone}[args[2]]
	if len(args) > 3 {
		h.Type = rpcpacket.Ask
	}
	switch k, over := m.caller.Turned(m.now, &rpcpacket.Message{Header: h}); {
	case k == nil:
		return "ignored\n"
	case over:
		return fmt.Sprintf("%s is over\n", k.Tag)
	default:
		return fmt.Sprintf("%s, due %v\n", k.Tag, k.Due())
	}
}

// nodeOf is the node with a number.
func nodeOf(number string) [16]byte {
	n, _ := strconv.Atoi(number)
	return [16]byte{15: byte(n)}
}

func (m *callerMachine) reply(args []string) string {
	msg := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply}}
	var from [16]byte
	if c := m.calls[args[1]]; c != nil {
		msg.Call, msg.Slot, msg.Number, from = c.ID, c.Slot, c.Number, c.Node
	} else {
		var slot, count uint64
		_, _ = fmt.Sscanf(args[1], "%d/%d", &slot, &count)
		msg.Slot, msg.Number = rpcpacket.Slot(slot), rpcpacket.NumberOf(7, count)
		msg.Call = rpcpacket.PlainID(self, msg.Slot, msg.Number)
	}
	if len(args) > 2 {
		n, _ := map[string]rpcpacket.Type{"exception": rpcpacket.Exception, "call": rpcpacket.Call, "ack": rpcpacket.Ack}[args[2]]
		msg.Type = n
	}
	c := m.caller.Receive(m.now, netip.AddrFrom16(from), &msg)
	if c == nil {
		return "ignored\n"
	}
	return fmt.Sprintf("%s is answered; next timeout %v\n", c.Tag, c.RTT.Timeout())
}

func (m *callerMachine) tick() string {
	var b strings.Builder
	resend, expired := m.caller.Tick(m.now, nil, nil)
	for _, c := range resend {
		fmt.Fprintf(&b, "%v: resend %s, due %v\n", m.now, c.Tag, c.Due())
	}
	for _, c := range expired {
		fmt.Fprintf(&b, "%v: %s has expired\n", m.now, c.Tag)
	}
	if b.Len() == 0 {
		return fmt.Sprintf("%v: nothing\n", m.now)
	}
	return b.String()
}

func TestCallerScripts(t *testing.T) {
	script.Run(t, "testdata/caller-*.txt", newCallerMachine)
}

// caller is one with a block, and calls that begin at once.
func caller() (c *Caller, begin func(*Call) bool) {
	c = NewCaller(self, 7, func(*Call) {})
	c.Grant([]uint32{1})
	return c, func(call *Call) bool { return c.Take(call) && c.Begin(0, call) }
}

// Only the node that was called answers a call, in the call's place: the call's id can be guessed by those who know the id of its parent.
func TestForgedAnswer(t *testing.T) {
	c, begin := caller()
	call := &Call{RTT: &RTT{}, Node: [16]byte{15: 7}, ID: ChildID(nil, rpcpacket.ID{1}, 0, 1)}
	begin(call)
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: call.ID, Slot: call.Slot, Number: call.Number}}
	if c.Receive(0, netip.AddrFrom16([16]byte{15: 8}), &m) != nil {
		t.Error("another node's answer counts")
	}
	m.Slot++
	if c.Receive(0, netip.AddrFrom16(call.Node), &m) != nil {
		t.Error("the answer to another place counts")
	}
	if m.Slot--; c.Receive(0, netip.AddrFrom16(call.Node), &m) != call {
		t.Error("the answer does not count")
	}
}

// A question about a slot of which the ledger has no call brings the call's id: it is answered by its place, from the node that was asked.
func TestQuestionWithoutID(t *testing.T) {
	c, _ := caller()
	q := &Call{RTT: &RTT{}, Node: [16]byte{15: 7}, Slot: rpcpacket.BlockSlots, Number: rpcpacket.NumberOf(6, 8)}
	c.Hold(q.Slot, q.Number, q.Node)
	if !c.Ask(0, q) {
		t.Fatal("it cannot be asked about")
	}
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: ChildID(nil, rpcpacket.ID{1}, 0, 1), Slot: q.Slot, Number: q.Number}}
	if c.Receive(0, netip.AddrFrom16([16]byte{15: 8}), &m) != nil {
		t.Error("another node's answer counts")
	}
	m.Number += 2
	if c.Receive(0, netip.AddrFrom16(q.Node), &m) != nil {
		t.Error("the answer to another call of the slot counts")
	}
	if m.Number -= 2; c.Receive(0, netip.AddrFrom16(q.Node), &m) != q || c.Held(q.Slot, q.Number) {
		t.Error("the answer does not count")
	}
}

// A late copy of a refusal does not end a call that is sent to the same node again: the node may
// have begun to run it.
func TestLateRefusal(t *testing.T) {
	c, begin := caller()
	to, id := [16]byte{15: 7}, ChildID(nil, rpcpacket.ID{1}, 0, 1)
	refuse := func(call *Call) *Call {
		h := rpcpacket.Header{Type: rpcpacket.Exception, Code: fault.Unavailable, Flags: rpcpacket.FlagUnbegun, Call: id, Slot: call.Slot, Number: call.Number}
		return c.Receive(0, netip.AddrFrom16(to), &rpcpacket.Message{Header: h})
	}
	first, again := &Call{RTT: &RTT{}, Node: to, ID: id}, &Call{RTT: &RTT{}, Node: to, ID: id}
	begin(first)
	if refuse(first) != first {
		t.Fatal("the refusal does not count")
	}
	begin(again)
	if refuse(first) != nil {
		t.Error("a late refusal counts")
	}
	if refuse(again) != again {
		t.Error("the second refusal does not count")
	}
}

// TestCaller_Counts: an incarnation uses a slot until it cannot count the calls there any more, and then its other ones.
func TestCaller_Counts(t *testing.T) {
	c, begin := caller()
	last := c.idle[len(c.idle)-1]
	last.count = rpcpacket.MaxCount - 2
	one, two := &Call{RTT: &RTT{}}, &Call{RTT: &RTT{}}
	begin(one)
	if one.Number.Count() != rpcpacket.MaxCount || one.Number.Incarnation() != 7 {
		t.Errorf("the last call has number %s", one.Number)
	}
	c.End(one)
	if begin(two); two.Slot == one.Slot || c.slots != rpcpacket.BlockSlots-1 || len(c.idle) != rpcpacket.BlockSlots-2 {
		t.Errorf("slot %d follows %d; %d slots, %d are free", two.Slot, one.Slot, c.slots, len(c.idle))
	}
}

// TestCaller_Quota: a node asks for one block more as soon as half of its slots are used, for as many as its calls need, and never for more than it may have.
func TestCaller_Quota(t *testing.T) {
	c := NewCaller(self, 7, nil)
	have := func(blocks uint32) {
		for b := uint32(len(c.blocks)) + 1; b <= blocks; b++ { //nolint:gosec // few
			c.Grant([]uint32{b})
		}
	}
	took := byte(0)
	take := func(n int) {
		for range n {
			if took++; !c.Take(&Call{RTT: &RTT{}, Node: [16]byte{15: took}}) {
				t.Fatal("no slot is free")
			}
		}
	}
	have(2)
	for _, step := range []struct {
		take, want int
	}{{rpcpacket.BlockSlots, 0}, {1, 3}, {rpcpacket.BlockSlots - 1, 4}} {
		if take(step.take); c.Want() != step.want {
			t.Errorf("with %d calls in 2 blocks it wants %d blocks, not %d", took, c.Want(), step.want)
		}
	}
	have(rpcpacket.MaxBlocks - 1)
	to := [16]byte{14: 1}
	for range rpcpacket.MaxBlocks * rpcpacket.BlockSlots { // to one node: half of them wait
		c.Take(&Call{RTT: &RTT{}, Node: to})
	}
	if c.Want() != rpcpacket.MaxBlocks {
		t.Errorf("it wants %d blocks, not the last one that it may have", c.Want())
	}
	c.served = func(*Call) {}
	if have(rpcpacket.MaxBlocks); c.Want() != 0 {
		t.Errorf("it wants %d blocks, and has all that it may have", c.Want())
	}
}

// TestCaller_Unhold: a late word about an earlier call of a slot does not free the slot, which another one holds by now.
func TestCaller_Unhold(t *testing.T) {
	c, begin := caller()
	call := &Call{RTT: &RTT{}, Holds: true}
	begin(call)
	slot, number := call.Slot, call.Number
	c.End(call)
	c.Unhold(slot, number-2, 1)
	if !c.Held(slot, number) || c.Held(slot, number-2) {
		t.Error("the word about another call has freed the slot")
	}
	if c.Unhold(slot, number, 1); c.Held(slot, number) {
		t.Error("the slot is held still")
	}
}

// TestCaller_Random: a slot has one call at a time, under numbers that rise. A call has slots next to each other in a block. Whoever waits gets them in
// turn, if its node has not half of all, and as soon as there are some. Slots that are held nobody gets: of a former incarnation's call, until the question about
// it is answered, and of calls that hold them.
func TestCaller_Random(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		holds, numbers := map[rpcpacket.Slot]*Call{}, map[rpcpacket.Slot]rpcpacket.Number{}
		waiting := map[*Call]bool{}
		out := []*Call(nil)
		got := func(k *Call) {
			for i := range slotsOf(k) {
				s := k.Slot + rpcpacket.Slot(i)
				if holds[s] != nil || k.Number <= numbers[s] || s.Block() != k.Slot.Block() {
					t.Fatalf("slot %d, number %s: held by %v, last number %s", s, k.Number, holds[s], numbers[s])
				}
				holds[s], numbers[s] = k, k.Number
			}
			delete(waiting, k)
			out = append(out, k)
		}
		c := NewCaller(self, 7, got)
		blocks := uint32(0)
		var held []*Call
		for i := range rapid.IntRange(0, 6).Draw(t, "former calls") {
			k := &Call{RTT: &RTT{}, Node: [16]byte{15: rapid.Byte().Draw(t, "node") % 3}, Slots: rapid.IntRange(1, rpcpacket.MaxLists).Draw(t, "slots")}
			k.Slot, k.Number = rpcpacket.Slot(rpcpacket.BlockSlots+4*i), rpcpacket.NumberOf(6, 9)
			for i := range k.Slots {
				s := k.Slot + rpcpacket.Slot(i)
				holds[s], numbers[s] = k, k.Number
				c.Hold(s, k.Number, k.Node)
			}
			held = append(held, k)
		}
		free := func(k *Call) {
			for s := range slotsOf(k) {
				delete(holds, k.Slot+rpcpacket.Slot(s))
			}
		}
		answer := func(k *Call) {
			m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: k.ID, Slot: k.Slot, Number: k.Number}}
			if k.Holds {
				held = append(held, k)
			} else {
				free(k)
			}
			if c.Receive(0, netip.AddrFrom16(k.Node), &m) != k {
				t.Fatal("the answer does not count")
			}
		}
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 7).Draw(t, "act") {
			case 0:
				blocks++
				c.Grant([]uint32{blocks})
			case 1, 2, 3:
				k := &Call{RTT: &RTT{}, Node: [16]byte{15: rapid.Byte().Draw(t, "node") % 3}, Slots: rapid.IntRange(0, rpcpacket.MaxLists).Draw(t, "slots")}
				if c.Take(k) {
					got(k)
				} else {
					waiting[k] = true
				}
			case 4:
				if len(out) > 0 {
					i := rapid.IntRange(0, len(out)-1).Draw(t, "which")
					k := out[i]
					out = append(out[:i:i], out[i+1:]...)
					if k.Holds = rapid.Bool().Draw(t, "holds"); rapid.Bool().Draw(t, "begins") {
						if !c.Begin(0, k) {
							t.Fatal("it does not begin")
						}
						answer(k)
					} else {
						free(k)
						c.Return(k)
					}
				}
			case 6, 7:
				if len(held) == 0 {
					break
				}
				i := rapid.IntRange(0, len(held)-1).Draw(t, "which")
				k := held[i]
				granted := k.Slot.Block() <= blocks
				held = append(held[:i:i], held[i+1:]...)
				if rapid.Bool().Draw(t, "unhold") {
					free(k)
					c.Unhold(k.Slot, k.Number, k.Slots)
					break
				}
				q := &Call{RTT: k.RTT, ID: k.ID, Slot: k.Slot, Number: k.Number, Slots: k.Slots, Node: k.Node, Holds: rapid.Bool().Draw(t, "again")}
				for s := range slotsOf(k) {
					holds[k.Slot+rpcpacket.Slot(s)] = q
				}
				if asked := c.Ask(0, q); asked != granted {
					t.Fatalf("block %d of %d, asked: %t", k.Slot.Block(), blocks, asked)
				}
				if granted {
					answer(q)
				} else {
					held = append(held, q)
				}
			case 5:
				for k := range waiting {
					if !c.Leave(k) {
						t.Fatal("it does not wait")
					}
					delete(waiting, k)
					break
				}
			}
			perNode, former := map[[16]byte]int{}, map[[16]byte]bool{}
			for _, k := range holds {
				perNode[k.Node]++
				former[k.Node] = former[k.Node] || k.Number.Incarnation() == 6
			}
			total := int(blocks) * rpcpacket.BlockSlots
			for node, n := range perNode {
				if n > total/2 && !former[node] {
					t.Fatalf("node %x has %d of %d slots", node, n, total)
				}
			}
			for k := range waiting {
				if perNode[k.Node]+slotsOf(k) > total/2 || !c.next(k) {
					continue
				}
				for s := rpcpacket.Slot(rpcpacket.BlockSlots); int(s) < (int(blocks)+1)*rpcpacket.BlockSlots; s++ {
					free := (s + rpcpacket.Slot(slotsOf(k)-1)).Block() == s.Block()
					for i := range slotsOf(k) {
						free = free && holds[s+rpcpacket.Slot(i)] == nil
					}
					if free {
						t.Fatalf("a call waits for %d slots, and slot %d is free, and those behind it", slotsOf(k), s)
					}
				}
			}
			if want := c.Want(); want != 0 && (want <= int(blocks) || want > rpcpacket.MaxBlocks) {
				t.Fatalf("it wants %d blocks, and has %d", want, blocks)
			}
		}
		if all := c.Abandon(); len(all) != len(waiting) {
			t.Fatalf("%d calls wait, want %d", len(all), len(waiting))
		}
	})
}

func slotsOf(k *Call) int { return max(k.Slots, 1) }

// next reports whether a call is the first one to its node that waits.
func (c *Caller) next(k *Call) bool {
	for _, q := range c.waiting {
		if q.calls[0] == k {
			return true
		}
	}
	return false
}
