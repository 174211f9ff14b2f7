package gatekeeper

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rack is a Gatekeeper and the real software switch with the real program; the
// blades are scripts. It lives in a synctest bubble: settle means that all has
// happened that follows from what was done.
type rack struct {
	t      testing.TB
	sw     *softswitch.Switch
	listen *bufconn.Listener
	conn   *grpc.ClientConn
	gk     *Gatekeeper
	stop   func() error
	settle func()

	mu     sync.Mutex
	blades map[uint16]*testBlade
}

// inRack runs a test with a rack whose Gatekeeper is connected.
func inRack(t *testing.T, f func(r *rack)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle = synctest.Wait
		r.start(Config{})
		f(r)
	})
}

func newRack(t testing.TB) *rack {
	t.Helper()
	r := &rack{t: t, blades: map[uint16]*testBlade{}}
	r.startSwitch()
	var err error
	r.conn, err = grpc.NewClient("passthrough:switch", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			r.mu.Lock()
			l := r.listen
			r.mu.Unlock()
			return l.DialContext(ctx)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.stop != nil {
			r.stopGatekeeper()
		}
		_ = r.conn.Close()
		r.stopSwitch()
	})
	return r
}

// startSwitch starts a switch without a program, and attaches the blades to it.
func (r *rack) startSwitch() {
	r.t.Helper()
	sw, err := softswitch.New(softswitch.Config{DeviceID: 1, CPUPort: p4.CPUPort, Load: softswitch.LoadGo})
	if err != nil {
		r.t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	go func() { _ = sw.Serve(l) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sw, r.listen = sw, l
	for _, b := range r.blades {
		b.attach()
	}
}

func (r *rack) stopSwitch() {
	if err := r.sw.Close(); err != nil {
		r.t.Error(err)
	}
}

// start starts a Gatekeeper and waits until the switch obeys it.
func (r *rack) start(cfg Config) {
	r.t.Helper()
	cfg.Conn = r.conn
	if testing.Verbose() {
		cfg.Log = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	gk, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	events := gk.Subscribe(ctx)
	go func() { ended <- gk.Run(ctx) }()
	r.gk = gk
	r.stop = func() error {
		cancel()
		return <-ended
	}
	for e := range events {
		if e.Kind == SwitchConnected {
			return
		}
	}
}

func (r *rack) stopGatekeeper() {
	if err := r.stop(); err != nil {
		r.t.Errorf("the Gatekeeper ended: %v", err)
	}
	r.stop = nil
}

func (r *rack) snapshot() Snapshot {
	r.t.Helper()
	s, err := r.gk.Snapshot(context.Background())
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// testBlade is a blade at a switch port, with the daemon's end of the control
// protocol.
type testBlade struct {
	r    *rack
	port uint16
	mac  frame.MAC
	addr netip.Addr // link-local until it is welcome
	peer *control.Peer
	boot uint64

	mu      sync.Mutex
	arrived [][]byte
}

// plug attaches a blade to a port.
func (r *rack) plug(port uint16) *testBlade {
	r.t.Helper()
	b := &testBlade{
		r: r, port: port, mac: frame.MAC{2, 0, 0, 0, 0, byte(port)}, boot: 1000 + uint64(port),
		addr: netip.MustParseAddr(fmt.Sprintf("fe80::%x", port)),
	}
	b.peer = control.NewPeer(control.PeerConfig{Boot: b.boot, Follow: true})
	r.mu.Lock()
	defer r.mu.Unlock()
	r.blades[port] = b
	b.attach()
	return b
}

func (b *testBlade) attach() {
	if err := b.r.sw.Attach(datapath.Port(b.port), func(f []byte) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.arrived = append(b.arrived, bytes.Clone(f))
	}); err != nil {
		b.r.t.Fatal(err)
	}
}

// take returns the frames that have arrived for the blade.
func (b *testBlade) take() []frame.UDP6 {
	b.r.t.Helper()
	b.r.settle()
	b.mu.Lock()
	defer b.mu.Unlock()
	var out []frame.UDP6
	for _, f := range b.arrived {
		u, err := frame.ParseUDP6(f)
		if err != nil {
			b.r.t.Fatalf("port %d got a bad frame: %v", b.port, err)
		}
		if u.DstMAC != b.mac {
			b.r.t.Fatalf("port %d got a frame for %s", b.port, u.DstMAC)
		}
		out = append(out, u)
	}
	b.arrived = nil
	return out
}

// send puts a datagram onto the blade's link and waits until all is quiet.
func (b *testBlade) send(src, dst netip.Addr, port uint16, payload []byte) {
	b.r.sw.Input(datapath.Port(b.port), frame.UDP6{
		SrcMAC: b.mac, DstMAC: frame.MAC{2, 0xb1, 0xf0, 0, 0, 1},
		Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload,
	}.Append(nil))
	b.r.settle()
}

// ask sends a control request and returns the reply.
func (b *testBlade) ask(kind control.Kind, body, reply any) error {
	b.r.t.Helper()
	data, err := json.Marshal(body)
	if err != nil {
		b.r.t.Fatal(err)
	}
	id, err := b.peer.Ask(time.Now(), kind, data)
	if err != nil {
		b.r.t.Fatal(err)
	}
	for _, m := range b.converse() {
		if m.ID != id {
			continue
		}
		if m.Status != fault.OK {
			return fault.Remote(m.Status, kind.String(), "%s", m.Body)
		}
		if reply != nil {
			return json.Unmarshal(m.Body, reply)
		}
		return nil
	}
	return fmt.Errorf("no reply to %s", kind)
}

// converse exchanges control packets until there are no more, answers the
// Gatekeeper's commands, and returns the replies to our requests.
func (b *testBlade) converse() (replies []control.Message) {
	for {
		ready := b.peer.Ready()
		for _, d := range ready.Send {
			b.send(b.addr, rackaddr.Gatekeeper, rackaddr.PortControl, d)
		}
		replies = append(replies, ready.Replies...)
		for _, m := range ready.Requests {
			b.peer.Answer(m, fault.OK, nil)
		}
		b.r.settle()
		b.mu.Lock()
		var rest [][]byte
		n := 0
		for _, f := range b.arrived {
			u, err := frame.ParseUDP6(f)
			if err != nil || u.Dst.Port() != rackaddr.PortControl {
				rest = append(rest, f)
				continue
			}
			n++
			_ = b.peer.Input(u.Payload)
		}
		b.arrived = rest
		b.mu.Unlock()
		if n == 0 && len(ready.Send)+len(ready.Requests) == 0 {
			return replies
		}
	}
}

// hello registers the blade.
func (b *testBlade) hello(name, kind string) control.Welcome {
	b.r.t.Helper()
	var w control.Welcome
	if err := b.ask(control.KindHello, control.Hello{Blade: name, Kind: kind, MAC: b.mac.String(), Capacity: 1 << 30, Boot: b.boot}, &w); err != nil {
		b.r.t.Fatal(err)
	}
	b.addr = w.Address
	return w
}

// testNode is a node on a blade.
type testNode struct {
	*testBlade
	address     netip.Addr
	incarnation uint32
	session     uint64
	sequence    uint64
	request     uint64
}

// join makes a node on the blade.
func (b *testBlade) join(blade, name string) *testNode {
	b.r.t.Helper()
	var j control.Joined
	b.boot++
	if err := b.ask(control.KindJoin, control.Join{Blade: blade, Name: name, Token: b.boot}, &j); err != nil {
		b.r.t.Fatal(err)
	}
	return &testNode{testBlade: b, address: j.Address, incarnation: j.Incarnation, session: 0xABC0 + uint64(b.port)}
}

// export makes the node serve methods.
func (n *testNode) export(service string, methods ...string) error {
	e := control.Export{Node: n.address, Incarnation: n.incarnation, Service: service}
	for _, m := range methods {
		e.Methods = append(e.Methods, control.Method{Name: m})
	}
	return n.ask(control.KindExport, e, nil)
}

// message makes a call that lends pointers.
func (n *testNode) message(service, method string, ps ...packet.Pointer) *rpc.Message {
	n.sequence++
	wire, err := rpc.MethodOf(method)
	if err != nil {
		n.r.t.Fatal(err)
	}
	a := rackaddr.Service(service).As16()
	return &rpc.Message{Header: rpc.Header{
		Type: rpc.Call, Flags: rpc.FlagSession, NameLength: uint8(len(method)), Method: wire, Call: rpc.SessionID(n.session, n.sequence),
		Floor: n.sequence, CallerIncarnation: n.incarnation, Service: uint64(a[8])<<56 | uint64(a[15]),
	}, Pointers: ps, Payload: []byte("thrift")}
}

// call sends a call to a service.
func (n *testNode) call(service string, m *rpc.Message) {
	n.send(n.address, rackaddr.Service(service), rackaddr.PortRPC, m.Append(nil))
}

// reply answers a call that has arrived.
func (n *testNode) reply(to netip.Addr, call *rpc.Message, results ...packet.Pointer) {
	m := *call
	m.Type, m.Flags, m.CalleeIncarnation = rpc.Reply, rpc.FlagSession|rpc.FlagHeld, n.incarnation
	m.Pointers = results
	n.send(n.address, to, rackaddr.PortRPC, m.Append(nil))
}

// message1 returns the one call message that has arrived.
func (n *testNode) message1() rpc.Message {
	n.r.t.Helper()
	ms := n.messages()
	if len(ms) != 1 {
		n.r.t.Fatalf("%d messages have arrived at %s, want 1: %+v", len(ms), n.address, ms)
	}
	return ms[0]
}

func (n *testNode) messages() []rpc.Message {
	n.r.t.Helper()
	var out []rpc.Message
	for _, u := range n.take() {
		if u.Dst.Port() != rackaddr.PortRPC {
			continue
		}
		m, err := rpc.Parse(u.Payload)
		if err != nil {
			n.r.t.Fatal(err)
		}
		out = append(out, m)
	}
	return out
}

// memory sends a memory request and returns the answers that have arrived.
func (n *testNode) memory(op packet.Op, p packet.Pointer) []packet.Header {
	n.r.t.Helper()
	n.request++
	h := packet.Header{Kind: packet.Request, Request: n.request, Floor: 1, Incarnation: n.incarnation}
	n.send(n.address, p.With(op, 0).Addr(), rackaddr.PortDSM, h.Append(nil))
	return n.memoryAnswers()
}

func (n *testNode) memoryAnswers() []packet.Header {
	n.r.t.Helper()
	var out []packet.Header
	for _, u := range n.take() {
		if u.Dst.Port() != rackaddr.PortDSM {
			continue
		}
		h, _, err := packet.Parse(u.Payload)
		if err != nil {
			n.r.t.Fatal(err)
		}
		out = append(out, h)
	}
	return out
}

// serve makes a memory blade answer the requests that have arrived, all with ok,
// and returns their operations.
func (b *testBlade) serve() (ops []packet.Op) {
	b.r.t.Helper()
	for _, u := range b.take() {
		if u.Dst.Port() != rackaddr.PortDSM {
			continue
		}
		h, _, err := packet.Parse(u.Payload)
		if err != nil {
			b.r.t.Fatal(err)
		}
		ops = append(ops, packet.FromAddr(u.Dst.Addr()).Op())
		h.Kind, h.Status = packet.Reply, fault.OK
		b.send(u.Dst.Addr(), u.Src.Addr(), rackaddr.PortDSM, h.Append(nil))
	}
	return ops
}

// alloc lets a memory blade give a node a region of 4 KiB.
func (b *testBlade) alloc(n *testNode, machine uint8, k uint64) packet.Pointer {
	b.r.t.Helper()
	p := packet.Make(rackaddr.DefaultDSMPrefix, machine, k<<12)
	b.allocated(n, p)
	if got := n.memoryAnswers(); len(got) != 1 || got[0].Kind != packet.Reply || got[0].Status != fault.OK {
		b.r.t.Fatalf("the allocation was answered with %+v", got)
	}
	return p
}

// allocated sends the answer to an allocation.
func (b *testBlade) allocated(n *testNode, p packet.Pointer) {
	h := packet.Header{Kind: packet.Reply, Status: fault.OK, Request: 1, Length: 4096}
	b.send(p.With(packet.OpAlloc, 12).Addr(), n.address, rackaddr.PortDSM, h.Append(nil))
}

// may reports which of read, write and free the switch lets a node do, by trying
// them. The requests that pass end at the memory blade unanswered.
func (n *testNode) may(m *testBlade, p packet.Pointer) string {
	n.r.t.Helper()
	var can []string
	for _, op := range []packet.Op{packet.OpRead, packet.OpWrite} {
		got := n.memory(op, p)
		passed := len(m.take()) == 1
		if passed == (len(got) == 1 && got[0].Kind == packet.Nack && got[0].Status == fault.PermissionDenied) {
			n.r.t.Fatalf("%s: passed %v, answers %+v", op, passed, got)
		}
		if passed {
			can = append(can, op.String())
		}
	}
	if len(can) == 0 {
		return "nothing"
	}
	return string(bytes.Join(slices.Collect(func(yield func([]byte) bool) {
		for _, s := range can {
			if !yield([]byte(s)) {
				return
			}
		}
	}), []byte("+")))
}
