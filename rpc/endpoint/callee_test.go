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

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// calleeMachine drives a Callee of incarnation 3 by script:
//
//	call NODE SESSION/SEQ FLOOR [oneway] [exact] [callee=N] [released] [age=D]
//	finish SESSION/SEQ REPLY     the handler has returned; - is no reply
//	answer SESSION/SEQ REPLY, forget SESSION/SEQ
//	after D, size
//	serve                        the service begins now
type calleeMachine struct {
	callee *Callee
	now    time.Duration
	since  time.Duration
	runs   map[string]*Entry
}

var tightLimits = Limits{Sessions: 4, NodeSessions: 3, Window: 3, ReplyBytes: 12, Lifetime: time.Minute}

func newCalleeMachine() script.Command {
	m := &calleeMachine{callee: NewCallee(3, tightLimits, nil), runs: map[string]*Entry{}}
	return func(out io.Writer, words []string) error {
		_, err := io.WriteString(out, m.step(words))
		return err
	}
}

func (m *calleeMachine) step(args []string) string {
	c := m.callee
	switch args[0] {
	case "call":
		return m.call(args)
	case "finish":
		c.Finish(m.runs[args[1]], replyBytes(args[2]), nil)
	case "answer":
		c.Answer(m.runs[args[1]], replyBytes(args[2]))
	case "forget":
		c.Forget(m.runs[args[1]])
	case "serve":
		m.since = m.now
	case "after":
		d, _ := time.ParseDuration(args[1])
		m.now += d
	case "size":
		return fmt.Sprintf("%d sessions, %d replies of %d bytes\n", len(c.sessions), c.replies.len, c.replyBytes)
	default:
		return "what?\n"
	}
	return ""
}

func replyBytes(s string) []byte {
	if s == "-" {
		return nil
	}
	return []byte(s)
}

func (m *calleeMachine) call(args []string) string {
	node, _ := strconv.Atoi(args[1])
	var session, seq, floor uint64
	_, _ = fmt.Sscanf(args[2]+" "+args[3], "%d/%d %d", &session, &seq, &floor)
	msg := rpcpacket.Message{Header: rpcpacket.Header{
		Type: rpcpacket.Call, Flags: rpcpacket.FlagSession, Call: rpcpacket.SessionID(session, seq), Floor: floor,
	}}
	for _, a := range args[4:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "oneway":
			msg.Type = rpcpacket.Oneway
		case "exact":
			msg.Flags = msg.Flags.WithPolicy(rpcpacket.PolicyRecover)
		case "age":
			d, _ := time.ParseDuration(v)
			b := msg.Append(nil)
			rpcpacket.SetAge(b, d)
			msg, _ = rpcpacket.Parse(b)
		case "released":
			msg.Flags |= rpcpacket.FlagReleased
		case "callee":
			n, _ := strconv.Atoi(v)
			msg.CalleeIncarnation = uint32(n)
		}
	}
	return m.print(args[2], m.callee.Receive(m.now, m.since, rackaddr.Node(uint64(node)), &msg))
}

func (m *calleeMachine) print(name string, a Arrival) string {
	s := a.Verdict.String()
	switch a.Verdict {
	case Run:
		m.runs[name] = a.Entry
	case Resend:
		s += " " + string(a.Reply)
	}
	for _, e := range a.Abandoned {
		s += fmt.Sprintf("; %d/%d is given up", e.ID.Session(), e.ID.Sequence())
	}
	return s + "\n"
}

func TestCalleeScripts(t *testing.T) {
	script.Run(t, "testdata/callee-*.txt", newCalleeMachine)
}

// TestSessions_Owners: an owner's nodes take as many sessions as they get; another owner's node has room all the same. Nothing was known of the
// nodes when they began.
func TestSessions_Owners(t *testing.T) {
	known := false
	c := NewCallee(1, Limits{Sessions: 512, NodeSessions: 64, Window: 4, ReplyBytes: 100, Lifetime: time.Minute}, func(node netip.Addr) share.Owner {
		switch {
		case node == rackaddr.Node(99):
			return share.Owner{Port: 1, User: 2}
		case known:
			return share.Owner{Port: 1, User: 1}
		}
		return share.Stranger(node)
	})
	run := func(node uint64, session uint32) bool {
		m := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.FlagSession, Call: rpcpacket.SessionID(rpcpacket.SessionOf(rackaddr.Node(node), session), 1), Floor: 1}}
		v := c.Receive(time.Second, 0, rackaddr.Node(node), &m).Verdict
		if v != Run && v != Full {
			t.Fatal(v)
		}
		return v == Run
	}
	began := 0
	for session := range uint32(100) {
		for node := range uint64(16) {
			if run(1+node, session) {
				began++
			}
			if !known && c.Crowded() { // the shell asks then
				known = true
				for node := range uint64(16) {
					c.Learn(rackaddr.Node(1 + node))
				}
			}
		}
	}
	if began < 256 || !known {
		t.Errorf("%d sessions: that is no attack", began)
	}
	for session := range uint32(16) {
		if !run(99, session) {
			t.Errorf("session %d of another user of the blade is refused", session)
		}
	}
	if c.forgetOld(time.Hour); c.held.Used() != 0 && len(c.sessions) == 0 {
		t.Errorf("%d sessions are charged of none", c.held.Used())
	}
}
