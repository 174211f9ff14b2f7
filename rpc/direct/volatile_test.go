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
	"github.com/bifrost-rack/bifrost/rpc/internal/sent"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// volatileMachine drives the Volatile of incarnation 3 by script:
//
//	call NODE SLOT/COUNT [hash] [callee=N] [given-up] [of=NODE]   a copy of a call arrives
//	ask NODE SLOT/COUNT [callee=N] [by=N]                         incarnation 2 of the caller asks, or the Gatekeeper
//	finish SLOT/COUNT REPLY [large]                               the handler has returned; - is no reply
//	answer SLOT/COUNT REPLY, forget SLOT/COUNT
//	settle NODE SLOT/COUNT                                        the caller has all of a large answer
//	after D, size
type volatileMachine struct {
	table *Volatile
	now   time.Duration
	runs  map[string]*Entry
}

var tightLimits = Limits{Slots: 4, NodeSlots: 3, ReplyBytes: 12, Lifetime: time.Minute}

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
	case "call", "ask":
		return m.call(args)
	case "finish":
		var payload *sent.Payload
		if len(args) > 3 {
			payload = sent.New(nil, replyBytes(args[2]))
		}
		v.Finish(m.runs[args[1]], replyBytes(args[2]), payload)
	case "answer":
		v.Answer(m.runs[args[1]], replyBytes(args[2]))
	case "forget":
		v.Forget(m.runs[args[1]])
	case "settle":
		node, _ := strconv.ParseUint(args[1], 10, 32)
		v.Settle(rackaddr.Node(node), m.runs[args[2]].ID)
	case "after":
		d, _ := time.ParseDuration(args[1])
		m.now += d
	case "size":
		return fmt.Sprintf("%d slots, %d replies of %d bytes\n", len(v.slots), v.replies.len, v.replyBytes)
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
	h := rpcpacket.Header{Type: rpcpacket.Call, CallerIncarnation: 1, CalleeIncarnation: 3}
	hash, by := false, uint64(2)
	for _, a := range args[3:] {
		switch k, v, _ := strings.Cut(a, "="); k {
		case "hash":
			hash = true
		case "callee":
			n, _ := strconv.ParseUint(v, 10, 32)
			h.CalleeIncarnation = uint32(n) //nolint:gosec // 32 bits
		case "given-up":
			h.Flags |= rpcpacket.FlagGivenUp
		case "by":
			by, _ = strconv.ParseUint(v, 10, 32)
		case "of":
			of, _ = strconv.ParseUint(v, 10, 32)
		}
	}
	var slot uint32
	var count uint64
	_, _ = fmt.Sscanf(args[2], "%d/%d", &slot, &count)
	h.Slot, h.Number = rpcpacket.Slot(100+slot), rpcpacket.NumberOf(1, count)
	if h.Call = rpcpacket.PlainID(rackaddr.Node(of), h.Slot, h.Number); hash {
		h.Call.Derive()
	}
	if args[0] == "ask" {
		h.Type, h.CallerIncarnation = rpcpacket.Ask, uint32(by) //nolint:gosec // 32 bits
		return m.print(args[2], m.table.Ask(rackaddr.Node(from), &h))
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
		_, n := e.ID.Place()
		s += fmt.Sprintf("; %d is given up", n.Count())
	}
	return s + "\n"
}

// TestSlots_Owners: an owner's nodes take as many slots as they get; another owner's node has room all the same. Nothing was known of the
// nodes when they began.
func TestSlots_Owners(t *testing.T) {
	known := false
	v := NewVolatile(1, Limits{Slots: 512, NodeSlots: 64, ReplyBytes: 100, Lifetime: time.Minute}, func(node netip.Addr) share.Owner {
		switch {
		case node == rackaddr.Node(99):
			return share.Owner{Port: 1, User: 2}
		case known:
			return share.Owner{Port: 1, User: 1}
		}
		return share.Stranger(node)
	})
	run := func(node uint64, slot uint32) bool {
		h := rpcpacket.Header{Type: rpcpacket.Call, Slot: rpcpacket.Slot(100 + slot), Number: rpcpacket.NumberOf(1, 1), CallerIncarnation: 1, CalleeIncarnation: 1}
		h.Call = rpcpacket.PlainID(rackaddr.Node(node), h.Slot, h.Number)
		verdict := v.Receive(time.Second, rackaddr.Node(node), &h).Verdict
		if verdict != Run && verdict != Full {
			t.Fatal(verdict)
		}
		return verdict == Run
	}
	began := 0
	for slot := range uint32(100) {
		for node := range uint64(16) {
			if run(1+node, slot) {
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
		t.Errorf("%d slots: that is no attack", began)
	}
	for slot := range uint32(16) {
		if !run(99, slot) {
			t.Errorf("slot %d of another user of the blade is refused", slot)
		}
	}
	if v.forgetOld(time.Hour); v.held.Used() != 0 && len(v.slots) == 0 {
		t.Errorf("%d slots are charged of none", v.held.Used())
	}
}

func TestVolatileScripts(t *testing.T) {
	script.Run(t, "testdata/volatile-*.txt", newVolatileMachine)
}
