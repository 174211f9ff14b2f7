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
//	begin NAME [expires=D] [rtt=METHOD] [held] [kept] [node=N] [id=N] [slots=N]   take slots and, if there is one, begin a call
//	take NAME [...]                       take a slot only
//	go NAME                               begin a call that has got a slot
//	return NAME, leave NAME               give the slot back; do not wait any more
//	grant BLOCK..., want                  more slots
//	reply NAME|SLOT/COUNT [exception]     an answer arrives
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
	case "begin", "take":
		return m.begin(args)
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
			to := fmt.Sprint("node ", l.Node[15])
			if l.Node == controller {
				to = "the Gatekeeper"
			}
			slot, n := l.Call.Place()
			s += fmt.Sprintf("%v: %s is to forget %d/%d\n", m.now, to, slot, n.Count())
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
		case "held":
			c.Held = true
		case "kept":
			c.Kept = true
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

// nodeOf is the node with a number.
func nodeOf(number string) [16]byte {
	n, _ := strconv.Atoi(number)
	return [16]byte{15: byte(n)}
}

func (m *callerMachine) reply(args []string) string {
	msg := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply}}
	var from [16]byte
	if c := m.calls[args[1]]; c != nil {
		msg.Call, from = c.ID, c.Node
	} else {
		var slot, count uint64
		_, _ = fmt.Sscanf(args[1], "%d/%d", &slot, &count)
		msg.Call = rpcpacket.PlainID(self, rpcpacket.Slot(slot), rpcpacket.NumberOf(7, count))
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

// Only what the Gatekeeper has released answers a call whose rights it judges: the call's id can be
// guessed by those who know the id of its parent.
func TestForgedAnswer(t *testing.T) {
	c, begin := caller()
	call := &Call{RTT: &RTT{}, Released: true, ID: ChildID(nil, rpcpacket.ID{1}, 0, 1)}
	begin(call)
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: call.ID}}
	if c.Receive(0, netip.AddrFrom16(call.Node), &m) != nil {
		t.Error("a forged answer counts")
	}
	if m.Flags |= rpcpacket.FlagReleased; c.Receive(0, netip.Addr{}, &m) != call {
		t.Error("the released answer does not count")
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
	last.count = rpcpacket.MaxCount - 1
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

// TestCaller_Random: a slot has one call at a time, under numbers that rise. A call has slots next to each other in a block. Whoever waits gets them in
// turn, if its node has not half of all, and as soon as there are some.
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
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			switch rapid.IntRange(0, 5).Draw(t, "act") {
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
					for s := range slotsOf(k) {
						delete(holds, k.Slot+rpcpacket.Slot(s))
					}
					c.Return(k)
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
			perNode := map[[16]byte]int{}
			for _, k := range holds {
				perNode[k.Node]++
			}
			total := int(blocks) * rpcpacket.BlockSlots
			for node, n := range perNode {
				if n > total/2 {
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
