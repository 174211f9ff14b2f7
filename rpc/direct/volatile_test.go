package direct

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/script"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// volatileMachine drives the Volatile of incarnation 3 by script:
//
//	call NODE LANE/NUMBER [hash] [callee=N] [given-up] [of=NODE]   a copy of a call arrives, in a lane of the node
//	probe NODE LANE/NUMBER [callee=N]                              the Gatekeeper asks
//	finish LANE/NUMBER REPLY                                       the handler has returned; - is no reply
//	answer LANE/NUMBER REPLY, forget LANE/NUMBER
//	after D, size
type volatileMachine struct {
	table *Volatile
	now   time.Duration
	runs  map[string]*Entry
}

var tightLimits = Limits{Lanes: 4, NodeLanes: 3, ReplyBytes: 12, Lifetime: time.Minute}

func newVolatileMachine() script.Command {
	m := &volatileMachine{table: NewVolatile(3, tightLimits, nil), runs: map[string]*Entry{}}
	return func(out io.Writer, words []string) error {
		_, err := io.WriteString(out, m.step(words))
		return err
	}
}

func (m *volatileMachine) step(args []string) string {
	v := m.table
	switch args[0] {
	case "call", "probe":
		return m.call(args)
	case "finish":
		v.Finish(m.runs[args[1]], replyBytes(args[2]), nil)
	case "answer":
		v.Answer(m.runs[args[1]], replyBytes(args[2]))
	case "forget":
		v.Forget(m.runs[args[1]])
	case "after":
		d, _ := time.ParseDuration(args[1])
		m.now += d
	case "size":
		return fmt.Sprintf("%d lanes, %d replies of %d bytes\n", len(v.lanes), v.replies.len, v.replyBytes)
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

func (m *volatileMachine) call(args []string) string {
	from, _ := strconv.ParseUint(args[1], 10, 32)
	of := from
	h := rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.FlagSession, CalleeIncarnation: 3}
	for _, a := range args[3:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "hash":
			h.Flags &^= rpcpacket.FlagSession
		case "callee":
			n, _ := strconv.ParseUint(v, 10, 32)
			h.CalleeIncarnation = uint32(n) //nolint:gosec // 32 bits
		case "given-up":
			h.Flags |= rpcpacket.FlagGivenUp
		case "of":
			of, _ = strconv.ParseUint(v, 10, 32)
		}
	}
	var lane uint32
	var number uint64
	_, _ = fmt.Sscanf(args[2], "%d/%d", &lane, &number)
	h.Call = rpcpacket.SessionID(rpcpacket.SessionOf(rackaddr.Node(of), lane), number)
	if args[0] == "probe" {
		return m.print(args[2], m.table.Probe(m.now, rackaddr.Node(from), &h))
	}
	return m.print(args[2], m.table.Receive(m.now, rackaddr.Node(from), &h))
}

func (m *volatileMachine) print(name string, a Arrival) string {
	s := a.Verdict.String()
	switch a.Verdict {
	case Run:
		m.runs[name] = a.Entry
	case Answer:
		s += " " + string(a.Reply)
	default:
	}
	if e := a.Abandoned; e != nil {
		s += fmt.Sprintf("; %d is given up", e.ID.Sequence())
	}
	return s + "\n"
}

// TestLanes_Owners: an owner's nodes take as many lanes as they get; another owner's node has room all the same. Nothing was known of the
// nodes when they began.
func TestLanes_Owners(t *testing.T) {
	known := false
	v := NewVolatile(1, Limits{Lanes: 512, NodeLanes: 64, ReplyBytes: 100, Lifetime: time.Minute}, func(node netip.Addr) share.Owner {
		switch {
		case node == rackaddr.Node(99):
			return share.Owner{Port: 1, User: 2}
		case known:
			return share.Owner{Port: 1, User: 1}
		}
		return share.Stranger(node)
	})
	run := func(node uint64, lane uint32) bool {
		h := rpcpacket.Header{Type: rpcpacket.Call, Flags: rpcpacket.FlagSession, Call: rpcpacket.SessionID(rpcpacket.SessionOf(rackaddr.Node(node), lane), 1), CalleeIncarnation: 1}
		verdict := v.Receive(time.Second, rackaddr.Node(node), &h).Verdict
		if verdict != Run && verdict != Full {
			t.Fatal(verdict)
		}
		return verdict == Run
	}
	began := 0
	for lane := range uint32(100) {
		for node := range uint64(16) {
			if run(1+node, lane) {
				began++
			}
			if !known && v.Crowded() { // the shell asks then
				known = true
				for node := range uint64(16) {
					v.Learn(rackaddr.Node(1 + node))
				}
			}
		}
	}
	if began < 256 || !known {
		t.Errorf("%d lanes: that is no attack", began)
	}
	for lane := range uint32(16) {
		if !run(99, lane) {
			t.Errorf("lane %d of another user of the blade is refused", lane)
		}
	}
	if v.forgetOld(time.Hour); v.held.Used() != 0 && len(v.lanes) == 0 {
		t.Errorf("%d lanes are charged of none", v.held.Used())
	}
}

func TestVolatileScripts(t *testing.T) {
	script.Run(t, "testdata/volatile-*.txt", newVolatileMachine)
}
