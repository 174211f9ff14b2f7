package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// many returns n values, with the largest indices that are likely.
func many[T any](n int, value func(i int) T) (all []T) {
	for i := range n {
		all = append(all, value(i))
	}
	return all
}

func longest(i int) string { return fmt.Sprintf("%0255d", i) }

func someNode(i int) netip.Addr { return rackaddr.Node(uint64(1<<40 + i)) } //nolint:gosec // not negative

func someExecution(i int) ExecutionID { return ExecutionID{0: byte(i), 1: byte(i >> 8), 15: 0xfe} } //nolint:gosec // its lowest bits

func someRegion(i int) RegionID {
	return RegionID{ID: dsmpacket.IDOf(uint32(1<<19+i), 1<<21), Class: 30, Owner: someNode(i), Execution: someExecution(i)} //nolint:gosec // not negative
}

// largest is the largest request and reply of each kind that daemons and
// Gatekeeper make of one another; nil is an empty body.
func largest() map[Kind][2]any {
	rack := Rack{
		MTU: rackaddr.DefaultMTU, Memories: many(255, func(i int) MemoryBlade { return MemoryBlade{uint8(i), 1 << 50, 2} }), PolicyVersion: 1 << 60,
	}
	node, name := someNode(1), longest(0)
	someBlocks := many(64, func(i int) uint32 { return uint32(1<<16 - 1 - i) }) //nolint:gosec // not negative
	const nodes = 64
	mirror, span, refusal := Mirror{1 << 31, 1 << 31, 1, 2, 1 << 60, 1 << 21}, Span{1 << 41, 1 << 29, 1 << 29}, Outcome{255, strings.Repeat("r", 1<<10)}
	someLedger := func(i int) Ledger {
		return Ledger{LedgerName(someExecution(i)), 1 << 31, true, 1 << 60, 1 << 60, 1 << 60}
	}
	room := uint64(1) << 60
	long := strings.Repeat("\x00", MaxExceptionText) // six bytes each in JSON
	details := (&CallDetails{1 << 60, 1 << 60, many(MaxHeaders, func(int) Header { return Header{long[:16], long[:16]} }), long, long}).Bounded()
	someCall := func(i int) DirectCall {
		return DirectCall{someExecution(i), someExecution(1), node, 1 << 31, 1 << 20, 1 << 62, name, name, 1 << 60, 1 << 60, 1 << 15, fault.Nondeterminism, true, 3, 1 << 31, details}
	}
	calls := NodeCalls{
		node, 1 << 31, true, many(MaxDirectCalls, someCall), 1 << 30, many(MaxDirectCalls, someCall),
		many(MaxMethodCounts, func(i int) MethodCount { return MethodCount{longest(i), longest(i), fault.Nondeterminism, 1 << 60} }),
		&room, 1 << 60, 1 << 60, true, true, &NodeWaits{
			many(MaxWaits, func(i int) WaitingCall {
				return WaitingCall{someExecution(i), someExecution(1), many(MaxSerial, someExecution), name, name}
			}),
		}, name, &EndedMain{someExecution(1), math.MaxUint32},
	}
	calls.Fit()
	batchesOf := func(n int) []BatchOf {
		return many(n, func(i int) BatchOf {
			return BatchOf{uint32(dsmpacket.Batches - 1 - i), node, math.MaxUint32, share.Owner{Port: 1<<32 - 1, User: 1<<32 - 1}}
		}) //nolint:gosec // not negative
	}
	unsettled := Unsettled{many(MaxUnsettled, func(int) Span { return span }), nil, nil, true, 1 << 60, many(64, someLedger)}
	ledger := LedgerAnswer{refusal, 1 << 60, someLedger(1)}
	return map[Kind][2]any{
		KindLedgerGrant: {LedgerGrant{1 << 60, someLedger(1).Name, node, 1 << 31, share.Owner{Port: 1 << 31, User: 1 << 31}}, ledger},
		KindLedgers:     {Ledgers{someLedger(1).Name}, LedgerList{1 << 60, many(MaxLedgers, someLedger), someLedger(1).Name}},
		KindBackup: {Backup{1 << 60, BackupRelease, BackupPosition{1 << 30, 1 << 30, 1 << 40}}, BackupPart{
			refusal, true, 1 << 60, 1 << 60, 1 << 31, many(BackupPartSize>>15, func(int) LedgerContent {
				return LedgerContent{someLedger(1).Name, 1 << 31, true, LedgerWriter{node, 1 << 31}, LedgerWriter{node, 1 << 31}, share.Owner{Port: 1 << 31, User: 1 << 31}, 1 << 60, many(2, func(int) LedgerChunk { return LedgerChunk{1 << 60, true, make([]byte, 1<<14)} })}
			}), nil, BackupPosition{1 << 30, 1 << 30, 1 << 40}, true,
		}},
		KindLedgerDelete: {LedgerDelete{1 << 60, someLedger(1).Name}, ledger},
		KindMirror:       {mirror, refusal},
		KindGrant:        {Grant{batchesOf(dsmpacket.Batches - 1)}, nil},
		KindBatches:      {BatchQuery{node, 1 << 31, 255, 1 << 20}, BatchReply{many(dsmpacket.MaxBatches, func(i int) uint32 { return uint32(dsmpacket.Batches - 1 - i) })}},
		KindFill:         {Fill{1 << 60, true, 1 << 31, 1 << 31, node, node, 1 << 60}, refusal},
		KindComplete:     {Complete{1 << 60, mirror}, refusal},
		KindLevel:        {Level{1 << 31, Fence{node, 1 << 31, true}, unsettled, unsettled}, refusal},
		KindHello: {
			Hello{name, Compute, "02:00:00:00:00:01", 255, 1 << 60, map[string]string{name: longest(1)}, 1 << 60, 1 << 21, 1 << 60, Release{1 << 30, name}},
			Welcome{node, 255, rack, Release{1 << 30, name}, 1000, 1 << 60, true, 1 << 21, 1 << 21, &mirror, batchesOf(dsmpacket.Batches - 1)},
		},
		KindHeartbeat: {
			Heartbeat{
				name, 1 << 60, 1 << 60, 1 << 21, many(nodes, someNode), many(nodes, func(int) uint32 { return 1 << 31 }), many(nodes, func(int) uint32 { return 1 << 31 }), many(nodes, func(int) uint32 { return 1 << 31 }), 1 << 60,
				many(nodes, func(int) uint64 { return 1 << 60 }), many(nodes, longest), 1 << 60, 1 << 31, &LedgerSpace{1 << 60, 1 << 60, 1 << 60, 1 << 30, 1 << 60, 1 << 60},
				&FillProgress{1 << 60, 1 << 60, 1 << 60, true, 255, strings.Repeat("r", 1<<10)},
			},
			HeartbeatReply{true, rack, many(nodes, someNode)},
		},
		KindJoin:     {Join{name, name, 1 << 60, name, true, 1 << 31}, Joined{node, 1 << 31, rack, &LedgerPlace{255, 1 << 60, true, 1 << 31}, someBlocks, 1 << 27, true, 4094}},
		KindExport:   {Export{node, 1 << 31, name, many(1024, func(i int) Method { return Method{longest(i), "fate-share", new(1 << 30), true} }), true, strings.Repeat("i", MaxIDL), true, &StateForm{&name, many(MaxVersions, longest)}, false}, Exported{make([]byte, 32)}},
		KindLeave:    {Leave{node, 1 << 31, strings.Repeat("r", 1<<16), true, true}, nil},
		KindMain:     {BeginMain{node, 1 << 31, name}, BegunMain{true, 1 << 31, make([]byte, 32), someExecution(4), 1 << 60}},
		KindPolicies: {nil, PolicyList{1 << 60, many(MaxPolicies, func(i int) MethodPolicy { return MethodPolicy{longest(i), longest(i), "fate-share", new(1 << 30)} })}},
		KindService: {
			Service{name},
			ServiceInfo{many(MaxServices, func(int) ServiceNode { return ServiceNode{node, true} }), many(1024, longest), strings.Repeat("i", MaxIDL), many(MaxServiceNames, longest)},
		},
		KindWho: {Who{node}, NodeInfo{
			Name: name, Blade: name, Services: many(MaxServices, longest), Deployment: name, Program: name, Incarnation: math.MaxUint32, Away: true, Left: true,
		}},
		KindEnded:   {Ended{name, 1}, nil},
		KindSharing: {Sharing{node, 1 << 31, node, name, name}, SharingReply{true, true, share.Owner{Port: 1<<32 - 1, User: 1<<32 - 1}}},
		KindOwners:  {Owners{many(MaxOwners, someNode)}, OwnersReply{many(MaxOwners, func(int) share.Owner { return share.Owner{Port: 1<<32 - 1, User: 1<<32 - 1} })}},
		KindBlocks:  {BlockQuery{node, 1 << 31, 64}, BlockReply{someBlocks}},
		KindHoldings: {HoldingsQuery{node, 1 << 31, true, 1 << 60, 1 << 30, true}, HoldingsPage{Holdings{Slots: many(MaxHoldings, func(int) HeldSlot {
			return HeldSlot{1 << 20, 1 << 62, node, SlotRefused, 3, true, many(4, someNode)}
		})}, 1 << 60, 1 << 30}},
		KindAccount: {AccountPage{node, 1 << 31, 1 << 60, 1 << 30, true, Account{Calls: many(MaxAccount, func(i int) OpenCall {
			return OpenCall{Attempt{1 << 20, 1 << 62}, longest(i)[:32], node, 4, true, many(4, func(int) CallList {
				return CallList{many(4, func(int) rpcpacket.Region { return 1 << 49 }), Attempt{1 << 20, 1 << 62}}
			})}
		})}}, nil},
		KindShare:       {Share{node, 1 << 31, 1 << 60, node, many(MaxShared, func(int) rpcpacket.Region { return 1 << 49 }), true}, ShareReply{ShareEnded, 1 << 20, 1 << 62}},
		KindGiveAccount: {GiveAccount{node, 1 << 31, 1 << 60}, nil},
		KindLedger:      {LedgerQuery{node, 1 << 31}, LedgerReply{&LedgerPlace{255, 1 << 60, true, 1 << 31}}},
		KindCalls:       {calls, nil},
		KindFence:       {Fence{node, 1 << 31, true}, Fenced{many(MaxRegions, someRegion), true, unsettled}},
		KindReclaim:     {Reclaim{1 << 60, many(MaxRegions, someRegion)}, Reclaimed{many(MaxRegions, someRegion)}},
		KindRegions:     {Regions{1 << 60, MaxRegions}, RegionList{many(MaxRegions, someRegion), 1 << 60}},
		KindStart: {
			Start{name, many(256, longest), map[string]string{name: strings.Repeat("e", 1<<17)}, name, node, 1 << 31, 1 << 60, 1 << 60, 1 << 60, many(64, longest), true}, nil,
		},
		KindCheck:      {Start{Name: name, Args: many(256, longest), Binary: name}, nil},
		KindStop:       {Stop{name, 1 << 30}, nil},
		KindCancelCall: {CancelCall{node, name, name}, nil},
		KindOutput: {Output{name, 1 << 60, 1 << 30, 1 << 30}, OutputPart{many(OutputPartSize>>13, func(int) OutputLine {
			return OutputLine{name, 1 << 60, strings.Repeat("\x01", 8<<10)}
		}), true, 1 << 60}},
	}
}

// TestEveryMessageAtEveryMTU: each message that there is, at its largest, arrives
// unchanged and once over a wire that takes packets of any MTU, and loses, repeats
// and delays some.
func TestEveryMessageAtEveryMTU(t *testing.T) {
	messages := largest()
	for k := range kindNames {
		if _, ok := messages[k]; !ok {
			t.Errorf("kind %s is not tried", k)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	mtus := []int{1280, 1281, 1500, 9000, 65535}
	for range 3 {
		mtus = append(mtus, 1280+random.IntN(65535-1280))
	}
	if testing.Short() {
		mtus = mtus[:1]
	}
	for kind, bodies := range messages {
		var raw [2][]byte
		for i, body := range bodies {
			if body == nil {
				continue
			}
			var err error
			if raw[i], err = json.Marshal(body); err != nil {
				t.Fatal(err)
			}
		}
		for _, mtu := range mtus {
			w := newLossyWire(random, mtu-netio.Overhead)
			if err := w.exchange(kind, raw[0], raw[1]); err != nil {
				t.Errorf("%s of %d and %d bytes, MTU %d: %v", kind, len(raw[0]), len(raw[1]), mtu, err)
			}
		}
	}
}

// lossyWire is two peers between which one packet in 50 is lost, repeated, or overtaken.
type lossyWire struct {
	random *rand.Rand
	now    time.Time
	ends   [2]*Peer
	wire   [2][][]byte // on the way to each end
	most   int
}

func newLossyWire(random *rand.Rand, most int) *lossyWire {
	return &lossyWire{random: random, now: origin, most: most, ends: [2]*Peer{
		NewPeer(PeerConfig{Boot: 1, Follow: true, MaxDatagram: most}),
		NewPeer(PeerConfig{Boot: 2, Election: Election{Low: 1}, MaxDatagram: most}),
	}}
}

// exchange has end 0 ask something that end 1 answers.
func (w *lossyWire) exchange(kind Kind, request, reply []byte) error {
	id, err := w.ends[0].Ask(w.now, kind, request)
	if err != nil {
		return err
	}
	served := 0
	for range 100_000 {
		moved := false
		for i, p := range w.ends {
			r := p.Ready()
			if err := w.put(1-i, r.Send); err != nil {
				return err
			}
			for _, m := range r.Requests {
				if served++; m.Kind != kind || !bytes.Equal(m.Body, request) {
					return fmt.Errorf("end %d was asked %s with %d bytes", i, m.Kind, len(m.Body))
				}
				p.Answer(m, fault.OK, reply)
			}
			for _, m := range r.Replies {
				if m.ID != id || served != 1 || m.Status != fault.OK || !bytes.Equal(m.Body, reply) {
					return fmt.Errorf("served %d times, answer %d (%s) with %d bytes", served, m.ID, m.Status, len(m.Body))
				}
				return nil
			}
			if len(w.wire[i]) > 0 {
				moved = true
				b := w.wire[i][0]
				w.wire[i] = w.wire[i][1:]
				if err := p.Input(b); err != nil {
					return err
				}
			}
		}
		if at, due := w.ends[0].Deadline(); due && !moved {
			w.now = at
			w.ends[0].Tick(at)
		}
	}
	return fmt.Errorf("no answer, served %d times", served)
}

func (w *lossyWire) put(end int, packets [][]byte) error {
	for _, b := range packets {
		if len(b) > w.most {
			return fmt.Errorf("a packet of %d bytes, at most %d", len(b), w.most)
		}
		switch w.random.IntN(150) {
		case 0: // lost
		case 1:
			w.wire[end] = append(w.wire[end], b, b)
		case 2: // it overtakes all others
			w.wire[end] = append([][]byte{b}, w.wire[end]...)
		default:
			w.wire[end] = append(w.wire[end], b)
		}
	}
	return nil
}

// TestOneSideRestartsMidway: neither the beginning of a former reply nor that of a
// former request gets into a message.
func TestOneSideRestartsMidway(t *testing.T) {
	most := HeaderSize + 100
	d := NewPeer(PeerConfig{Boot: 1, Follow: true, MaxDatagram: most})
	g := NewPeer(PeerConfig{Boot: 2, Election: Election{Low: 1}, MaxDatagram: most})
	request, old, reply := bytes.Repeat([]byte("q"), 5000), bytes.Repeat([]byte("o"), 5000), bytes.Repeat([]byte("r"), 5000)
	if _, err := d.Ask(origin, KindMain, request); err != nil {
		t.Fatal(err)
	}
	restarted := false
	for range 1000 {
		for _, b := range d.Ready().Send {
			_ = g.Input(b)
		}
		r := g.Ready()
		for _, m := range r.Requests {
			if !bytes.Equal(m.Body, request) {
				t.Fatalf("asked %q", m.Body)
			}
			if !restarted {
				g.Answer(m, fault.OK, old)
			} else {
				g.Answer(m, fault.OK, reply)
			}
		}
		r.Send = append(r.Send, g.Ready().Send...)
		for _, b := range r.Send {
			_ = d.Input(b)
		}
		if got := d.Ready(); len(got.Replies) > 0 {
			if !restarted || !bytes.Equal(got.Replies[0].Body, reply) {
				t.Fatalf("answer %q", got.Replies[0].Body)
			}
			return
		} else if len(got.Send) > 0 && len(d.asked[1].reply.body) > 1000 && !restarted {
			restarted = true
			g = NewPeer(PeerConfig{Boot: 3, Election: Election{Low: 2}, MaxDatagram: most})
		} else {
			for _, b := range got.Send {
				_ = g.Input(b)
			}
		}
		if at, due := d.Deadline(); due {
			d.Tick(at)
		}
	}
	t.Fatal("no answer")
}

// TestKeptIsBounded: a peer that sends the beginnings of many large requests, or asks for
// many large replies and never settles one, is not served any more until it does.
func TestKeptIsBounded(t *testing.T) {
	p := NewPeer(PeerConfig{Boot: 2})
	refused := 0
	for i := range uint64(Window) {
		m := Message{Kind: KindExport, ID: i + 1, Floor: 1, Sender: 1, Body: make([]byte, 1000), Part: Part{Total: MaxMessage}}
		if err := p.Input(m.Append(nil)); fault.CodeOf(err) == fault.Overloaded {
			refused++
		}
	}
	if want := Window - maxKept/MaxMessage; refused != want || p.kept() > maxKept {
		t.Errorf("%d refused, want %d; %d bytes kept", refused, want, p.kept())
	}
	settled := Message{Kind: KindExport, ID: Window, Floor: Window, Sender: 1, Body: []byte("{}")}
	if err := p.Input(settled.Append(nil)); err != nil || len(p.Ready().Requests) != 1 {
		t.Errorf("after all others are settled: %v", err)
	}
}

func TestTooLarge(t *testing.T) {
	p := NewPeer(PeerConfig{Boot: 2})
	if _, err := p.Ask(origin, KindExport, make([]byte, MaxMessage+1)); fault.CodeOf(err) != fault.BadRequest {
		t.Errorf("a request that is too large: %v", err)
	}
	_ = p.Input((&Message{Kind: KindMain, ID: 1, Sender: 1}).Append(nil))
	p.Answer(p.Ready().Requests[0], fault.OK, make([]byte, MaxMessage+1))
	m, err := Parse(p.Ready().Send[0])
	if err != nil || m.Status != fault.Internal || !strings.Contains(string(m.Body), "at most") {
		t.Errorf("a reply that is too large: %+v, %v", m, err)
	}
}
