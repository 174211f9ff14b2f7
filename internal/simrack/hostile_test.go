package simrack_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The tests of docs/security.md's table: each is a hole that was found, tried through the
// switch.

// hostile is a program with raw sockets on a blade.
type hostile struct {
	*simrack.Rack
	t     *testing.T
	ctx   context.Context
	blade string
}

// control sends a control request from the blade's port, as its daemon would.
func (h *hostile) control(from netip.Addr, boot uint64, kind control.Kind, body any) {
	h.t.Helper()
	b, err := json.Marshal(body)
	if err != nil {
		h.t.Fatal(err)
	}
	p := control.NewPeer(control.PeerConfig{Boot: boot})
	if _, err := p.Ask(time.Now(), kind, b); err != nil {
		h.t.Fatal(err)
	}
	for _, b := range p.Ready().Send {
		h.Host(h.blade).SendRaw(netip.AddrPortFrom(from, rackaddr.PortControl), netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), b)
	}
}

// until waits until the Gatekeeper's state is as wanted, or fails the test.
func (h *hostile) until(what string, good func(*gatekeeper.Snapshot) bool) gatekeeper.Snapshot {
	h.t.Helper()
	for range 1000 {
		s, err := h.Gatekeeper().Snapshot(h.ctx)
		if err != nil {
			h.t.Fatal(err)
		}
		if good(&s) {
			return s
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	h.t.Fatalf("%s: not within 100 s", what)
	return gatekeeper.Snapshot{}
}

// status is what the Gatekeeper says of a blade, "" if it knows none of that name.
func status(s *gatekeeper.Snapshot, blade string) string {
	for _, b := range s.Blades {
		if b.Name == blade {
			return b.Status
		}
	}
	return ""
}

// TestHostile_Ports is row 4: a port's program registers neither as a memory blade nor
// under another blade's name or machine id, also when that blade is away.
func TestHostile_Ports(t *testing.T) {
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		h := &hostile{r, t, ctx, "s1"}
		for _, b := range []string{"s1", "m1"} {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
			h.until(b+" fails", func(s *gatekeeper.Snapshot) bool { return status(s, b) == "failed" })
		}
		r.Host("s1").SetLink(true)
		mac := r.Host("s1").MAC().String()
		up := func(status string) bool { return status != "" && status != "failed" }
		for i, hello := range []control.Hello{
			{Blade: "evil", Kind: control.Memory, Capacity: 1 << 40},
			{Blade: "evil", Kind: control.Compute, Capacity: 1},
			{Blade: "m1", Kind: control.Memory, Machine: 1, Capacity: 256 << 20},
			{Blade: "s1", Kind: control.Memory, Machine: 1, Capacity: 256 << 20},
		} {
			hello.MAC, hello.Boot = mac, uint64(1000+i)
			before := h.until("", func(*gatekeeper.Snapshot) bool { return true })
			h.control(netip.MustParseAddr("fe80::666"), hello.Boot, control.KindHello, hello)
			s := h.until("an answer", func(s *gatekeeper.Snapshot) bool {
				return s.Counters.Refused > before.Counters.Refused || up(status(s, hello.Blade))
			})
			if s.Counters.Refused == before.Counters.Refused || status(&s, "evil") != "" {
				t.Errorf("the program at the port of s1 is %s blade %s now", hello.Kind, hello.Blade)
			}
		}
	})
}

// asks runs a program on the hostile blade that joins and asks the Gatekeeper for
// something.
func (h *hostile) asks(f func(s join.Session) error) error {
	h.t.Helper()
	ended := make(chan error, 1)
	_, err := h.Run(h.blade, "evil", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		s, err := j.Join(ctx, "evil")
		if err == nil {
			err = f(s)
		}
		ended <- err
		return nil
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return <-ended
}

// TestHostile_Names is rows 3 and 6: a name that somebody uses is nobody else's to export,
// and nobody else reads its state or its checkpoint.
func TestHostile_Names(t *testing.T) {
	inVirtualTimeOn(t, new(wal.Disk), 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		h := &hostile{r, t, ctx, "s1"}
		export(t, ctx, r, "s2")
		n, err := r.Join(ctx, "c1", "accountant")
		if err != nil {
			t.Fatal(err)
		}
		err = rpc.Main(ctx, n, "accounts", func(ctx context.Context, _ []byte) error {
			if err := rpc.Checkpoint(ctx, []byte("secret")); err != nil {
				return err
			}
			for what, f := range map[string]func(s join.Session) error{
				"exports another's service": func(s join.Session) error {
					_, err := s.Export(ctx, control.Export{Service: "Ping", Methods: []control.Method{{Name: "ping"}}})
					return err
				},
				"begins another's main": func(s join.Session) error {
					_, err := s.BeginMain(ctx, control.BeginMain{Name: "accounts"})
					return err
				},
			} {
				if err := h.asks(f); rpc.CodeOf(err) != rpc.PermissionDenied {
					t.Errorf("a program that %s: %v", what, err)
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestHostile_Squatter is row 6 for deployments: a service that a deployment declares is
// taken away from a program that has exported it before, the owner is known to the next
// Gatekeeper, and the name is free again when the deployment is gone.
func TestHostile_Squatter(t *testing.T) {
	withFleet(t, func(r *fleet) {
		ping := control.Export{Service: "Arrays", Methods: []control.Method{{Name: "increment"}}}
		asked := make(chan error) // what came of each export
		again := make(chan struct{})
		if _, err := r.Run("s1", "squatter", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			s, err := j.Join(ctx, "squatter")
			if err != nil {
				return err
			}
			for {
				_, err := s.Export(ctx, ping)
				asked <- err
				select {
				case <-again:
				case <-ctx.Done():
					return nil
				}
			}
		}); err != nil {
			t.Fatal(err)
		}
		if err := <-asked; err != nil {
			t.Fatal(err)
		}
		app := resources.Spec{Name: "app", Programs: []resources.Program{{
			Name: "server", Args: []string{"server"}, Nodes: 1, Blades: []string{"s2"}, Services: []resources.ServiceSpec{{Name: "Arrays"}},
		}}}
		if err := r.Gatekeeper().Deploy(r.ctx, app); err != nil {
			t.Fatal(err)
		}
		h := &hostile{r.Rack, t, r.ctx, "s1"}
		exports := func(name string) func(*gatekeeper.Snapshot) bool {
			return func(s *gatekeeper.Snapshot) bool {
				for _, n := range s.Nodes {
					if len(n.Services) > 0 && n.Name != name {
						return false
					}
				}
				return len(s.Services) == 1 && len(s.Services[0].Methods) > 1 == (name == "server")
			}
		}
		h.until("only the deployment exports the service", exports("server"))
		again <- struct{}{}
		if err := <-asked; rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the squatter exports again: %v", err)
		}
		if err := r.RestartGatekeeper(r.ctx); err != nil {
			t.Fatal(err)
		}
		again <- struct{}{}
		if err := <-asked; rpc.CodeOf(err) != rpc.PermissionDenied {
			t.Errorf("the squatter exports when the Gatekeeper has begun anew: %v", err)
		}
		if err := r.Gatekeeper().Undeploy(r.ctx, "app"); err != nil {
			t.Fatal(err)
		}
		h.until("the deployment is gone", func(s *gatekeeper.Snapshot) bool { return len(s.Nodes) == 1 })
		again <- struct{}{}
		if err := <-asked; err != nil {
			t.Errorf("the name is not free again: %v", err)
		}
		h.until("the squatter exports", exports("squatter"))
	})
}

// lastCall is where the last call is put that has gone to the switch, and what puts it there.
func lastCall() (*atomic.Pointer[rpcpacket.Message], func(wire.Frame)) {
	seen := new(atomic.Pointer[rpcpacket.Message])
	return seen, func(f wire.Frame) {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || !f.ToSwitch || !rackaddr.OfCalls(u.Dst.Port()) {
			return
		}
		if m, err := rpcpacket.Parse(slices.Clone(u.Payload)); err == nil && m.Type == rpcpacket.Call {
			seen.Store(&m)
		}
	}
}

// watched returns a configuration with so many compute blades, and where it puts the last
// call that has gone to the switch.
func watched(blades ...string) (simrack.Config, *atomic.Pointer[rpcpacket.Message]) {
	seen, onFrame := lastCall()
	cfg := simrack.Config{Schedule: &wire.Schedule{Seed: 1}, Disk: new(wal.Disk), OnFrame: onFrame}
	for _, b := range blades {
		cfg.Blades = append(cfg.Blades, simrack.Blade{Name: b, Kind: control.Compute})
	}
	cfg.Blades = append(cfg.Blades, simrack.Blade{Name: "m1", Kind: control.Memory, Capacity: 1 << 20})
	return cfg, seen
}

// joinAll makes a node on each compute blade of a configuration.
func joinAll(t *testing.T, ctx context.Context, r *simrack.Rack, blades ...string) (nodes []*rpc.Node) {
	t.Helper()
	for _, b := range blades {
		n, err := r.Join(ctx, b, b)
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, n)
	}
	return nodes
}

// TestHostile_Answer is row 1: the answer to an exactly-once call is its callee's, whoever
// else answers first.
func TestHostile_Answer(t *testing.T) {
	cfg, seen := watched("c1", "s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		entered, forged := make(chan struct{}), make(chan struct{})
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&answering{entered: entered, forged: forged})); err != nil {
			t.Fatal(err)
		}
		go func() {
			<-entered
			m := *seen.Load()
			if !m.Flags.Exact() {
				t.Error("the call is not direct")
			}
			out := arrays.ArraysEchoResult{Success: []byte("forged")}
			m.Payload = encode(t, ctx, &out)
			m.Type, m.CalleeIncarnation = rpcpacket.Reply, incarnationOf(t, r, callee.Address())
			for _, flags := range []rpcpacket.Flags{m.Flags, 0, m.Flags | rpcpacket.FlagReleased} {
				for _, from := range []netip.Addr{stranger.Address(), callee.Address(), rackaddr.Service("Arrays")} {
					m.Flags = flags
					r.Host("s1").SendRaw(netip.AddrPortFrom(from, rackaddr.PortRPC), netip.AddrPortFrom(caller.Address(), rackaddr.PortRPC), m.Append(nil))
				}
			}
			<-time.After(time.Second) // virtual: all have arrived
			close(forged)
		}()
		got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("true"))
		if err != nil || string(got) != "true" {
			t.Errorf("the answer is %q, %v", got, err)
		}
		<-forged
	})
}

// TestHostile_Direct is rows 2 and 10 for calls that go past the Gatekeeper. A stranger that
// has seen a call cannot use the ids of the calls that its execution makes, nor those of its
// caller's next calls, and cannot have a callee take these for late ones.
func TestHostile_Direct(t *testing.T) {
	cfg, seen := watched("c1", "c2", "s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "c2", "s1", "s2")
		caller, front, stranger, callee := nodes[0], nodes[1], nodes[2], nodes[3]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		attack := func() {
			first := *seen.Load()
			if !first.Flags.Exact() {
				t.Errorf("%+v is no direct call", first.Header)
			}
			a := rackaddr.Service("Arrays").As16()
			method, err := rpcpacket.MethodOf("echo")
			if err != nil {
				t.Error(err)
			}
			send := func(m *rpcpacket.Message) {
				r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
			}
			call := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), NameLength: 4, Method: method,
				Service: binary.BigEndian.Uint64(a[8:]),
			}, Payload: encode(t, ctx, &arrays.ArraysEchoArgs{Data: []byte("forged")})}
			for index := range uint32(5) {
				call.Call = endpoint.ChildID(nil, first.Call, 0, index)
				place(t, r, &call.Header, stranger.Address(), incarnationOf(t, r, stranger.Address()), 90, uint64(index)+1)
				send(&call)
			}
			for _, n := range []rpcpacket.Number{first.Number + 1, first.Number + 1<<30} {
				call.Slot, call.Number, call.CallerIncarnation = first.Slot, n, n.Incarnation()
				call.Call = rpcpacket.PlainID(caller.Address(), first.Slot, n)
				send(&call)
			}
			forget := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(rpcpacket.PolicyRecover), Call: first.Call, CallerIncarnation: first.CallerIncarnation,
			}}
			forget.Payload = binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(slices.Clone(first.Call[:]), uint32(first.Slot)), uint64(first.Number+1<<30))
			send(&forget)
			forget.CallerIncarnation = incarnationOf(t, r, stranger.Address()) // else the switch drops it that knows incarnations
			send(&forget)
			<-time.After(time.Second) // virtual: all have arrived
		}
		client := func(n *rpc.Node) *arrays.ArraysClient {
			return arrays.NewArraysClient(n.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover)))
		}
		if err := front.Export(ctx, "Ping", arrays.NewPingProcessor(fronting{client(front), attack})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		if err := arrays.NewPingClient(caller.Client("Ping", rpc.WithPolicy(rpc.PolicyRecover))).Ping(ctx); err != nil {
			t.Errorf("a call of an execution whose id a stranger knows: %v", err)
		}
		if got, err := client(caller).Echo(ctx, []byte("true")); err != nil || string(got) != "true" {
			t.Errorf("a call in a slot that a stranger knows: %q, %v", got, err)
		}
		if got := seen.Load(); !got.Flags.Exact() {
			t.Errorf("%+v is no direct call", got.Header)
		}
		blamed := map[netip.Addr]uint64{}
		callee.Refused(func(from netip.Addr, reason string, n uint64) {
			if reason == "foreign" {
				blamed[from] += n
			}
		})
		if len(blamed) != 0 {
			t.Errorf("refused as foreign, and the switch should have stopped them: %v", blamed)
		}
	})
}

// TestHostile_DirectQuota is row 10 for direct calls: a node that fills the ledger of a callee,
// with calls whose answers it never lets go, is refused, and others' calls are served.
func TestHostile_DirectQuota(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2")
	cfg.LedgerSpace = 256 << 10
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		method, err := rpcpacket.MethodOf("echo")
		if err != nil {
			t.Fatal(err)
		}
		a := rackaddr.Service("Arrays").As16()
		const flood = 600
		incarnation := incarnationOf(t, r, stranger.Address())
		for i := range uint32(flood) {
			m := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpcpacket.PolicyRecover), NameLength: 4, Method: method,
				Service: binary.BigEndian.Uint64(a[8:]),
			}, Payload: encode(t, ctx, &arrays.ArraysEchoArgs{Data: make([]byte, 100)})}
			binary.BigEndian.PutUint32(m.Call[:], i)
			m.Call.Derive()
			place(t, r, &m.Header, stranger.Address(), incarnation, i, 1)
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
			<-time.After(time.Millisecond) // virtual
		}
		served := callee.Stats()
		if served.NoRoom == 0 || served.Accepted < 10 {
			t.Errorf("of %d calls of a stranger %d were refused, %d served", flood, served.NoRoom, served.Accepted)
		}
		if n := blamed(callee, stranger.Address(), "quota"); n != served.NoRoom {
			t.Errorf("%d calls are refused, %d of them counted as the stranger's", served.NoRoom, n)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, make([]byte, 1<<10))
		if err != nil || len(got) != 1<<10 {
			t.Errorf("a call beside the flood: %d bytes, %v", len(got), err)
		}
	})
}

// fronting calls Echo when something has happened.
type fronting struct {
	arrays *arrays.ArraysClient
	before func()
}

// Ping implements arrays.Ping.
func (f fronting) Ping(ctx context.Context) error {
	f.before()
	got, err := f.arrays.Echo(ctx, []byte("true"))
	if err == nil && string(got) != "true" {
		err = fmt.Errorf("the answer is %q", got)
	}
	return err
}

// TestHostile_Memory is row 10 at a memory blade: a program that names another node's
// execution keeps that from nothing, and one that allocates all that it may leaves the
// others their part.
func TestHostile_Memory(t *testing.T) {
	cfg, seen := watched("c1", "s1", "s2")
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		caller, stranger, callee := nodes[0], nodes[1], nodes[2]
		var strangers []dsm.Pointer
		for {
			p, err := stranger.Memory().Alloc(ctx, 64<<10)
			if rpc.CodeOf(err) == rpc.NoSpace {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			strangers = append(strangers, p)
		}
		if n := len(strangers); n < 8 || n > 10 {
			t.Errorf("one owner has %d of 16 blocks", n)
		}
		mine, err := callee.Memory().Alloc(ctx, 64<<10)
		if err != nil {
			t.Fatalf("a node that has nothing: %v", err)
		}
		claim := func() {
			m := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1000, Incarnation: incarnationOf(t, r, stranger.Address()), Execution: seen.Load().Call, Length: 1}
			r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDSM),
				netip.AddrPortFrom(strangers[0].With(dsmpacket.OpWrite).Addr(), rackaddr.PortDSM), append(m.Append(nil), 'x'))
			<-time.After(time.Second) // virtual: it has arrived
			var b [1]byte
			if _, err := stranger.Memory().Read(ctx, strangers[0], b[:]); err != nil || b[0] != 'x' {
				t.Errorf("the claim has not arrived: %q, %v", b, err)
			}
		}
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&writing{mine: mine, before: claim})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		got, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("written"))
		if err != nil || string(got) != "written" {
			t.Errorf("an execution whose id somebody else has used: %q, %v", got, err)
		}
	})
}

// writing writes what it is given to its memory.
type writing struct {
	service.Arrays
	mine   dsm.Pointer
	before func()
}

// Echo implements arrays.Arrays.
func (w *writing) Echo(ctx context.Context, b []byte) ([]byte, error) {
	w.before()
	if _, err := rpc.Memory(ctx).Write(ctx, w.mine, b); err != nil {
		return nil, err
	}
	out := make([]byte, len(b))
	_, err := rpc.Memory(ctx).Read(ctx, w.mine, out)
	return out, err
}

// answering answers when somebody else has.
type answering struct {
	service.Arrays
	entered, forged chan struct{}
}

// Echo implements arrays.Arrays.
func (a *answering) Echo(_ context.Context, b []byte) ([]byte, error) {
	close(a.entered)
	<-a.forged
	return b, nil
}

// encode writes a result as a runtime does.
func encode(t *testing.T, ctx context.Context, s thrift.TStruct) []byte {
	t.Helper()
	buffer := thrift.NewTMemoryBuffer()
	if err := s.Write(ctx, thrift.NewTBinaryProtocolConf(buffer, nil)); err != nil {
		t.Fatal(err)
	}
	return buffer.Bytes()
}

// incarnationOf is that of a node which has joined.
func incarnationOf(t testing.TB, r *simrack.Rack, node netip.Addr) uint32 {
	t.Helper()
	s, err := r.Gatekeeper().Snapshot(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.Address == node {
			return n.Incarnation
		}
	}
	t.Fatalf("no node has the address %s", node)
	return 0
}

// place puts a call of a node's incarnation into the node's slot with this index, of those that its runtime does not know of. A plain call has
// its id from that.
func place(t testing.TB, r *simrack.Rack, h *rpcpacket.Header, node netip.Addr, incarnation, index uint32, n uint64) {
	t.Helper()
	h.CallerIncarnation, h.Slot, h.Number = incarnation, slotOf(t, r, node, index), rpcpacket.NumberOf(incarnation, n)
	if !h.Call.Derived() {
		h.Call = rpcpacket.PlainID(node, h.Slot, h.Number)
	}
}

// slotOf is a call slot of a node's, of a block that its runtime has not asked for.
func slotOf(t testing.TB, r *simrack.Rack, node netip.Addr, index uint32) rpcpacket.Slot {
	t.Helper()
	const known = 2 // blocks that a node has when it joins
	s := r.Session(node)
	if s == nil {
		t.Errorf("no node has joined at %s", node)
		return 0
	}
	at := known + int(index)/rpcpacket.BlockSlots
	blocks, err := s.Blocks(context.Background(), at+1)
	if err != nil || len(blocks) <= at {
		t.Errorf("%d blocks of slots: %v", len(blocks), err)
		return 0
	}
	return rpcpacket.Slot(blocks[at]*rpcpacket.BlockSlots + index%rpcpacket.BlockSlots)
}
