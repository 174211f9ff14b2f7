package endpoint

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// calleeMachine drives a Callee of incarnation 3 by script:
//
//	call NODE SESSION/SEQ FLOOR [oneway] [callee=N] [released] [age=D]
//	exact ID RUN.NUMBER [forged] an exactly-once call, as the Gatekeeper delivers it
//	finish SESSION/SEQ REPLY     the handler has returned; - is no reply
//	commit ID REPLY              it has, and the Gatekeeper must log the reply
//	answer SESSION/SEQ REPLY, forget SESSION/SEQ|ID, ack ID RUN.NUMBER
//	after D, size, tick, due
//	serve                        the service begins now
type calleeMachine struct {
	callee *Callee
	now    time.Duration
	since  time.Duration
	runs   map[string]*Entry
}

var tightLimits = Limits{Sessions: 4, NodeSessions: 3, Exact: 3, Window: 3, ReplyBytes: 12, Lifetime: time.Minute}

func newCalleeMachine() func([]string) string {
	m := &calleeMachine{callee: NewCallee(3, tightLimits), runs: map[string]*Entry{}}
	return m.step
}

func (m *calleeMachine) step(args []string) string {
	c := m.callee
	switch args[0] {
	case "call":
		return m.call(args)
	case "exact":
		msg := rpcpacket.Message{Header: rpcpacket.Header{Type: rpcpacket.Call, Call: hashID(args[1]), Floor: delivery(args[2])}}
		msg.Flags = (rpcpacket.FlagHeld | rpcpacket.FlagReleased).WithPolicy(rpcpacket.PolicyRecover)
		if len(args) > 3 {
			msg.Flags &^= rpcpacket.FlagReleased
		}
		return m.print(args[1], c.Receive(m.now, m.since, netip.Addr{}, &msg))
	case "finish":
		c.Finish(m.runs[args[1]], replyBytes(args[2]), nil)
	case "answer":
		c.Answer(m.runs[args[1]], replyBytes(args[2]))
	case "forget":
		c.Forget(m.runs[args[1]])
	case "commit":
		c.Commit(m.now, m.runs[args[1]], replyBytes(args[2]), args[1])
	case "ack":
		if tag := c.Acknowledge(hashID(args[1]), delivery(args[2])); tag != nil {
			return fmt.Sprintln(tag, "is committed")
		}
	case "serve":
		m.since = m.now
	case "due":
		return fmt.Sprintln(c.Due())
	case "tick":
		var s string
		for _, e := range c.Tick(m.now, nil) {
			s += fmt.Sprintf("send %s\n", e.Reply())
		}
		return s
	case "after":
		d, _ := time.ParseDuration(args[1])
		m.now += d
	case "size":
		return fmt.Sprintf("%d sessions, %d exact, %d replies of %d bytes\n", len(c.sessions), len(c.exact), c.replies.len, c.replyBytes)
	default:
		return "what?\n"
	}
	return ""
}

func hashID(s string) rpcpacket.ID {
	n, _ := strconv.Atoi(s)
	return rpcpacket.ID{15: byte(n)}
}

// delivery reads RUN.NUMBER.
func delivery(s string) uint64 {
	var run, number uint64
	_, _ = fmt.Sscanf(s, "%d.%d", &run, &number)
	return rpcpacket.DeliveryNumber(run, number)
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

func TestCalleeScripts(t *testing.T) { runScripts(t, "callee-*.txt", newCalleeMachine) }
