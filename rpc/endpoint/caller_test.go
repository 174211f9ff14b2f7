package endpoint

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/script"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// callerMachine drives a Caller by script:
//
//	begin NAME [expires=D] [rtt=METHOD] [held] [node=N]   begin a call in a session
//	begin-as NAME ID                      begin a call with a hash id
//	reply NAME|SESSION/SEQ [exception]    an answer arrives
//	settled SESSION/FLOOR                 the Gatekeeper knows of a settlement
//	detach NAME D, end NAME, tick, due, settle   as the methods
//	restarted N                           a node takes direct calls again
//	after D                               time passes
type callerMachine struct {
	caller *Caller
	now    time.Duration
	calls  map[string]*Call
	rtts   map[string]*RTT
}

func newCallerMachine() script.Command {
	m := &callerMachine{calls: map[string]*Call{}, rtts: map[string]*RTT{"": {}}}
	// Sessions are 1, 2, …; their sequences start at 0.
	m.caller = NewCaller(netip.Addr{}, func() uint64 { return 0 })
	return func(out io.Writer, words []string) error {
		_, err := io.WriteString(out, m.step(words))
		return err
	}
}

func (m *callerMachine) step(args []string) string {
	switch args[0] {
	case "begin", "begin-as":
		return m.begin(args)
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
	case "settle":
		s := ""
		for _, o := range m.caller.Settle(m.now, nil) {
			s += fmt.Sprintf("%v: session %d is settled below %d\n", m.now, o.Session, o.Floor)
		}
		return s
	case "settled":
		var s Settlement
		_, _ = fmt.Sscanf(args[1], "%d/%d", &s.Session, &s.Floor)
		m.caller.Settled(s)
		return ""
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
		case "node":
			c.Node, c.Kept = nodeOf(v), true
		}
	}
	if m.rtts[method] == nil {
		m.rtts[method] = &RTT{}
	}
	c.RTT = m.rtts[method]
	m.calls[args[1]] = c
	if args[0] == "begin-as" {
		n, _ := strconv.Atoi(args[2])
		if !m.caller.BeginIn(m.now, c, rpcpacket.ID{15: byte(n)}) {
			return "refused\n"
		}
		return fmt.Sprintf("%s: id %d, due %v\n", c.Tag, n, c.Due())
	}
	m.caller.Begin(m.now, c)
	return fmt.Sprintf("%s: session %d, sequence %d, floor %d, due %v\n", c.Tag, c.ID.Session(), c.ID.Sequence(), c.Floor, c.Due())
}

// nodeOf is the node with a number.
func nodeOf(number string) [16]byte {
	n, _ := strconv.Atoi(number)
	return [16]byte{15: byte(n)}
}

func (m *callerMachine) reply(args []string) string {
	msg := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Flags: rpcpacket.FlagSession}}
	if c := m.calls[args[1]]; c != nil {
		msg.Call = c.ID
		if !c.Session {
			msg.Flags = 0
		}
	} else {
		var session, seq uint64
		_, _ = fmt.Sscanf(args[1], "%d/%d", &session, &seq)
		msg.Call = rpcpacket.SessionID(session, seq)
	}
	if len(args) > 2 {
		n, _ := map[string]rpcpacket.Type{"exception": rpcpacket.Exception, "call": rpcpacket.Call, "ack": rpcpacket.Ack}[args[2]]
		msg.Type = n
	}
	c := m.caller.Receive(m.now, netip.Addr{}, &msg)
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

// Only what the Gatekeeper has released answers a call whose rights it judges: the call's id can be
// guessed by those who know the id of its parent.
func TestForgedAnswer(t *testing.T) {
	c := NewCaller(netip.Addr{}, func() uint64 { return 1 })
	call := &Call{RTT: &RTT{}, Released: true}
	c.BeginIn(0, call, ChildID(nil, rpcpacket.ID{1}, 0, 1))
	m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Reply, Call: call.ID}}
	if c.Receive(0, netip.Addr{}, &m) != nil {
		t.Error("a forged answer counts")
	}
	if m.Flags |= rpcpacket.FlagReleased; c.Receive(0, netip.Addr{}, &m) != call {
		t.Error("the released answer does not count")
	}
}

// A late copy of a refusal does not end a call that is sent to the same node again: the node may
// have begun to run it.
func TestLateRefusal(t *testing.T) {
	c := NewCaller(netip.Addr{}, func() uint64 { return 1 })
	to, id := [16]byte{15: 7}, ChildID(nil, rpcpacket.ID{1}, 0, 1)
	refuse := func(call *Call) *Call {
		h := rpcpacket.Header{Type: rpcpacket.Exception, Code: fault.Unavailable, Flags: rpcpacket.FlagUnbegun, Call: id, Order: call.Lane(), Floor: call.Floor}
		return c.Receive(0, netip.AddrFrom16(to), &rpcpacket.Message{Header: h})
	}
	first, again := &Call{RTT: &RTT{}, Node: to}, &Call{RTT: &RTT{}, Node: to}
	c.BeginIn(0, first, id)
	if refuse(first) != first {
		t.Fatal("the refusal does not count")
	}
	c.BeginIn(0, again, id)
	if refuse(first) != nil {
		t.Error("a late refusal counts")
	}
	if refuse(again) != again {
		t.Error("the second refusal does not count")
	}
}

// TestNamed: a call has the id under which it begins before that, and no other call has it. One that does not begin gives
// its session back, and its id is not used again.
func TestNamed(t *testing.T) {
	c, rtt := NewCaller(netip.Addr{}, func() uint64 { return 0 }), new(RTT)
	first, second, dropped := &Call{RTT: rtt}, &Call{RTT: rtt}, &Call{RTT: rtt}
	c.Name(first)
	id := first.ID
	if c.Out(id) != nil {
		t.Error("it is out before it has begun")
	}
	c.Begin(0, second)
	c.Name(dropped)
	c.Unname(dropped)
	c.Begin(0, first)
	if first.ID != id || second.ID == id || c.Out(id) != first || c.Outstanding() != 2 {
		t.Errorf("named %s, began as %s, another one as %s; %d are out", id, first.ID, second.ID, c.Outstanding())
	}
	next := &Call{RTT: rtt}
	c.Begin(0, next)
	if next.ID.Session() != dropped.ID.Session() || next.ID.Sequence() <= dropped.ID.Sequence() {
		t.Errorf("%s follows %s, which has not begun", next.ID, dropped.ID)
	}
}
