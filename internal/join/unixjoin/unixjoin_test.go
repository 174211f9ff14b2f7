package unixjoin

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeHost is a join.Host whose nodes write down what happens to them.
type fakeHost struct {
	nodes chan *fakeNode
	relay *relay.Stack
	mu    sync.Mutex
	asked []join.Program
}

func (h *fakeHost) Host(ctx context.Context, p join.Program) (join.Hosted, error) {
	h.mu.Lock()
	h.asked = append(h.asked, p)
	h.mu.Unlock()
	switch p.Name {
	case "refused":
		return nil, fault.Remote(fault.Overloaded, "join", "the rack is full")
	case "slow":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	n := &fakeNode{name: p.Name, events: make(chan string, 100), done: make(chan struct{}), changed: make(chan struct{}), relay: h.relay}
	h.nodes <- n
	return n, nil
}

func (h *fakeHost) Status(uint32) join.Status {
	return join.Status{Blade: "c1", Registered: true, Nodes: []join.NodeStatus{{Name: "n"}}}
}

type fakeNode struct {
	name   string
	events chan string
	once   sync.Once
	done   chan struct{}
	relay  *relay.Stack // nil for a node with the kernel's sockets

	mu      sync.Mutex
	cancel  func(call, deadlock string)
	account func(rebuild uint64)
	rack    control.Rack
	changed chan struct{}
}

func (n *fakeNode) Node() join.Identity {
	return join.Identity{Name: n.name, Blade: "c1", Address: rackaddr.Node(1), Incarnation: 3}
}
func (n *fakeNode) Stack() netio.Network  { return fakeStack{node: n} }
func (n *fakeNode) Done() <-chan struct{} { return n.done }
func (n *fakeNode) BeginMain(_ context.Context, m control.BeginMain) (control.BegunMain, error) {
	return control.BegunMain{Key: []byte("key of " + m.Name), Run: 7}, nil
}
func (n *fakeNode) Who(_ context.Context, a netip.Addr) (control.NodeInfo, error) {
	if a != rackaddr.Node(1) {
		return control.NodeInfo{}, fault.Remote(fault.NotFound, "who", "there is no node %s", a)
	}
	return control.NodeInfo{Name: n.name, Services: []string{"Arrays"}, Deployment: "arrays"}, nil
}
func (n *fakeNode) OnCancel(f func(string, string)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cancel = f
}

func (n *fakeNode) OnAccount(f func(uint64)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.account = f
}
func (n *fakeNode) Account(_ context.Context, p control.AccountPage) error {
	n.events <- fmt.Sprint("account ", p.Rebuild, " ", p.Page)
	return nil
}

func (n *fakeNode) Service(_ context.Context, name string) (control.ServiceInfo, error) {
	if name != "Arrays" {
		return control.ServiceInfo{}, fault.Remote(fault.NotFound, "service", "nobody exports %s", name)
	}
	return control.ServiceInfo{Nodes: []control.ServiceNode{{Node: rackaddr.Node(1), NotServing: true}}, IDL: "service Arrays {}"}, nil
}
func (n *fakeNode) Thresholds() join.Thresholds {
	if n.name == "watched" {
		return join.Thresholds{Answer: 40 * time.Millisecond}
	}
	return join.Thresholds{}
}
func (n *fakeNode) Hung(reason string) { n.events <- "hung: " + reason }

func (n *fakeNode) Serving(ctx context.Context, q control.Serving) (control.ServingList, error) {
	if q.Service == "Unheard" { // there is no Gatekeeper
		n.events <- "asked"
		<-ctx.Done()
		return control.ServingList{}, ctx.Err()
	}
	if q.Service != "Arrays" {
		return control.ServingList{}, nil
	}
	return control.ServingList{Nodes: []netip.Addr{rackaddr.Node(1)}}, nil
}
func (n *fakeNode) Sharing(_ context.Context, q control.Sharing) (control.SharingReply, error) {
	return control.SharingReply{Kin: q.Caller == rackaddr.Node(2), Declared: q.Method == "add"}, nil
}
func (n *fakeNode) Blocks(_ context.Context, want int) ([]uint32, error) {
	return []uint32{7, uint32(want)}, nil //nolint:gosec // small
}
func (n *fakeNode) Share(_ context.Context, s control.Share) (control.ShareReply, error) {
	return control.ShareReply{State: control.ShareHolds, Slot: 7, Number: rpcpacket.Number(s.ID)}, nil
}
func (n *fakeNode) Batches(_ context.Context, machine uint8, want int) ([]uint32, error) {
	return []uint32{uint32(machine), uint32(want)}, nil //nolint:gosec // small
}

// held is what the registers have of each node, more than a page.
var held = control.Holdings{Slots: make([]control.HeldSlot, control.MaxHoldings), Regions: []netip.Addr{rackaddr.Node(3)}}

func (n *fakeNode) Holdings(ctx context.Context, now bool) (control.Holdings, error) {
	return control.ReadHoldings(ctx, now, n.HoldingsPage)
}
func (n *fakeNode) HoldingsPage(_ context.Context, q control.HoldingsQuery) (p control.HoldingsPage, err error) {
	if q.Heard {
		n.events <- "heard"
		return p, nil
	}
	return held.Page(q.From), nil
}
func (n *fakeNode) Ledger(context.Context) (*control.LedgerPlace, error) {
	if n.name == "watched" {
		return nil, nil
	}
	return &control.LedgerPlace{Machine: 3, Birth: 7}, nil
}
func (n *fakeNode) Calls(_ context.Context, c control.NodeCalls) error {
	n.events <- fmt.Sprintf("calls: %d under way, %d over", len(c.Running), len(c.Ended))
	return nil
}

func (n *fakeNode) Crash(reason string)  { n.events <- "crash: " + reason; n.end() }
func (n *fakeNode) Exited(reason string) { n.events <- "exited: " + reason; n.end() }
func (n *fakeNode) Close(context.Context) error {
	n.events <- "close"
	n.end()
	return nil
}
func (n *fakeNode) end() { n.once.Do(func() { close(n.done) }) }

// fakeStack has sockets on the loopback interface.
type fakeStack struct{ node *fakeNode }

func (s fakeStack) MTU() int { return 9000 }
func (s fakeStack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	if local.Port() != rackaddr.PortRPC {
		return nil, fault.New(fault.PermissionDenied, "listen", "not a port of nodes")
	}
	if s.node.relay != nil {
		return s.node.relay.ListenNode(local, 1)
	}
	c, err := linux.Listen(netip.AddrPortFrom(netip.IPv6Loopback(), 0), 9000)
	if err == nil {
		s.node.events <- fmt.Sprintf("listen on %s: %s", local, c.LocalAddr())
	}
	return c, err
}
func (n *fakeNode) Export(_ context.Context, e control.Export) (control.Exported, error) {
	n.events <- "export " + e.Service
	if e.Service == "Bad" {
		return control.Exported{}, fault.Remote(fault.BadRequest, "export", "no methods")
	}
	return control.Exported{Key: []byte(e.Service)}, nil
}

func (n *fakeNode) Policies() *join.Policies { return join.NewPolicies(n.Rack().Policies) }

func (n *fakeNode) Rack() control.Rack {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rack
}

func (n *fakeNode) Changed() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.changed
}

func (n *fakeNode) setRack(r control.Rack) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rack = r
	close(n.changed)
	n.changed = make(chan struct{})
}

// want takes the next event.
func (n *fakeNode) want(t *testing.T, event string) {
	t.Helper()
	select {
	case got := <-n.events:
		if !strings.HasPrefix(got, event) {
			t.Errorf("%s, want %s", got, event)
		}
	case <-time.After(time.Minute):
		t.Fatalf("no %q", event)
	}
}

var started atomic.Int64

// start serves a fakeHost and returns its socket.
func start(t *testing.T) (*fakeHost, string) {
	t.Helper()
	h, socket := &fakeHost{nodes: make(chan *fakeNode, 10)}, fmt.Sprintf("@bifrost/test-%d-%d", os.Getpid(), started.Add(1))
	serve(t, h, socket)
	return h, socket
}

func serve(t *testing.T, h *fakeHost, socket string) {
	t.Helper()
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- Serve(ctx, l, h, NewLimits(64), slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
}

func joinNode(t *testing.T, h *fakeHost, socket string) (join.Session, *fakeNode) {
	t.Helper()
	s, err := Joiner{Socket: socket}.Join(t.Context(), "arrays")
	if err != nil {
		t.Fatal(err)
	}
	return s, <-h.nodes
}

func TestLifeOfANode(t *testing.T) {
	t.Setenv(join.ProgramVariable, "arrays-1")
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	if p := h.asked[0]; p != (join.Program{Name: "arrays", Instance: "arrays-1", PID: os.Getpid(), UID: uint32(os.Getuid())}) {
		t.Errorf("joined as %+v", p)
	}
	if !reflect.DeepEqual(s.Node(), n.Node()) || s.Stack().MTU() != 9000 {
		t.Errorf("identity %+v, MTU %d", s.Node(), s.Stack().MTU())
	}
	for range 2 {
		at := netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortRPC)
		c, err := s.Stack().ListenUDP(at)
		if err != nil {
			t.Fatal(err)
		}
		n.want(t, fmt.Sprintf("listen on %s: %s", at, c.LocalAddr()))
		if _, err := c.WriteBatch([]netio.Message{{Buf: []byte("hello"), Remote: c.LocalAddr()}}); err != nil {
			t.Error(err)
		}
		in := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
		if _, err := c.ReadBatch(in); err != nil || string(in[0].Buf) != "hello" {
			t.Errorf("got %q, %v", in[0].Buf, err)
		}
		c.Close()
	}
	if _, err := s.Stack().ListenUDP(netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortDSM)); fault.CodeOf(err) != fault.PermissionDenied {
		t.Errorf("a socket that the daemon refuses: %v", err)
	}
	if x, err := s.Export(t.Context(), control.Export{Service: "Arrays"}); err != nil || string(x.Key) != "Arrays" {
		t.Errorf("export: %+v, %v", x, err)
	}
	n.want(t, "export Arrays")
	if begun, err := s.BeginMain(t.Context(), control.BeginMain{Name: "m"}); err != nil || string(begun.Key) != "key of m" || begun.Run != 7 {
		t.Errorf("main: %+v, %v", begun, err)
	}
	if who, err := s.Who(t.Context(), rackaddr.Node(1)); err != nil || who.Name != "arrays" || len(who.Services) != 1 || who.Deployment != "arrays" {
		t.Errorf("who: %+v, %v", who, err)
	}
	if _, err := s.Who(t.Context(), rackaddr.Node(2)); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("who is nobody: %v", err)
	}
	if v, err := s.Service(t.Context(), "Arrays"); err != nil || len(v.Nodes) != 1 || !v.Nodes[0].NotServing || v.IDL == "" {
		t.Errorf("service: %+v, %v", v, err)
	}
	if _, err := s.Service(t.Context(), "None"); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("a service that nobody exports: %v", err)
	}
	if list, err := s.Serving(t.Context(), control.Serving{Service: "Arrays", Method: "add"}); err != nil || len(list.Nodes) != 1 {
		t.Errorf("serving: %+v, %v", list, err)
	}
	if r, err := s.Sharing(t.Context(), control.Sharing{Caller: rackaddr.Node(2), Service: "Arrays", Method: "add"}); err != nil || !r.Kin || !r.Declared {
		t.Errorf("sharing: %+v, %v", r, err)
	}
	if err := s.Calls(t.Context(), control.NodeCalls{Running: make([]control.DirectCall, 2)}); err != nil {
		t.Error(err)
	}
	n.want(t, "calls: 2 under way, 0 over")
	if h, err := s.Holdings(t.Context(), false); err != nil || !reflect.DeepEqual(h, held) {
		t.Errorf("it holds %d slots and %v, %v", len(h.Slots), h.Regions, err)
	}
	n.want(t, "heard")
	if blocks, err := s.Blocks(t.Context(), 9); err != nil || !slices.Equal(blocks, []uint32{7, 9}) {
		t.Errorf("blocks %v, %v", blocks, err)
	}
	if r, err := s.Share(t.Context(), control.Share{ID: 9}); err != nil || r != (control.ShareReply{State: control.ShareHolds, Slot: 7, Number: 9}) {
		t.Errorf("share: %+v, %v", r, err)
	}
	if place, err := s.Ledger(t.Context()); err != nil || place == nil || place.Machine != 3 || place.Birth != 7 {
		t.Errorf("ledger: %+v, %v", place, err)
	}
	_, err := s.Export(t.Context(), control.Export{Service: "Bad"})
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != fault.BadRequest || !f.Remote || f.Msg != "no methods" {
		t.Errorf("refused export: %v", err)
	}
	n.want(t, "export Bad")
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	n.want(t, "close")
	<-s.Done()
	if len(n.events) != 0 {
		t.Errorf("after the end: %s", <-n.events)
	}
}

// TestWithoutGatekeeper: what nobody answers while there is no Gatekeeper holds nothing else up:
// a program that waits for it is alive.
func TestWithoutGatekeeper(t *testing.T) {
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	asked := make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, err := s.Serving(ctx, control.Serving{Service: "Unheard", Method: "add"})
		asked <- err
	}()
	n.want(t, "asked")
	if _, err := s.Export(t.Context(), control.Export{Service: "Arrays"}); err != nil {
		t.Error(err)
	}
	n.want(t, "export Arrays")
	cancel()
	if err := <-asked; err == nil {
		t.Error("somebody has answered")
	}
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestNewsOfTheRack(t *testing.T) {
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	defer s.Close(t.Context())
	for i := range 3 {
		n.setRack(control.Rack{MTU: 1000 + i, Memories: []control.MemoryBlade{{Machine: 1, Free: uint64(i)}}})
	}
	// The connection keeps order: when a reply is there, older news are.
	for s.Rack().MTU != 1002 {
		if _, err := s.Who(t.Context(), rackaddr.Node(1)); err != nil {
			t.Fatal(err)
		}
	}
	if r := s.Rack(); len(r.Memories) != 1 || r.Memories[0].Free != 2 {
		t.Errorf("rack %+v", r)
	}
}

// TestPolicies: a program knows them when it has joined, and others when they have
// changed.
func TestPolicies(t *testing.T) {
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	defer s.Close(t.Context())
	for i, policy := range []string{"recover", "recover", "tainted", ""} {
		r := control.Rack{MTU: 1000 + i}
		if policy != "" {
			r.Policies = []control.MethodPolicy{{Service: "S", Policy: policy}}
			r.PolicyVersion = map[string]uint64{"recover": 7, "tainted": 9}[policy]
		}
		n.setRack(r)
		for s.Rack().MTU != 1000+i {
			if _, err := s.Who(t.Context(), rackaddr.Node(1)); err != nil {
				t.Fatal(err)
			}
		}
		if p, said := s.Policies().Of("S", "m"); said != (policy != "") || said && p.String() != policy {
			t.Errorf("policy %q is %s, %t", policy, p, said)
		}
	}
}

// TestEnds: a program's death crashes its node; a node's end reaches its program.
func TestEnds(t *testing.T) {
	h, socket := start(t)
	s, n := joinNode(t, h, socket)
	s.Crash("of a test")
	n.want(t, "crash: of a test")
	<-s.Done()
	if _, err := s.Export(t.Context(), control.Export{}); fault.CodeOf(err) != fault.Unavailable {
		t.Errorf("export after the daemon is gone: %v", err)
	}

	s, n = joinNode(t, h, socket)
	n.end() // fenced
	<-s.Done()
	if err := s.Close(t.Context()); err != nil {
		t.Error(err)
	}
	n.want(t, "close")
}

func TestDaemonStops(t *testing.T) {
	socket := fmt.Sprintf("@bifrost/test-%d-%d", os.Getpid(), started.Add(1))
	l, err := Listen(socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(socket); err == nil || !strings.Contains(err.Error(), "runs here already") {
		t.Errorf("second daemon: %v", err)
	}
	h := &fakeHost{nodes: make(chan *fakeNode, 10)}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error)
	go func() { served <- Serve(ctx, l, h, NewLimits(64), slog.New(slog.DiscardHandler)) }()
	s, n := joinNode(t, h, socket)
	failed := make(chan error)
	go func() { // a join under way
		_, err := Joiner{Socket: socket}.Join(context.Background(), "slow")
		failed <- err
	}()
	for waiting := true; waiting; {
		h.mu.Lock()
		waiting = len(h.asked) < 2
		h.mu.Unlock()
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-failed; fault.CodeOf(err) != fault.Unavailable && fault.CodeOf(err) != fault.Canceled {
		t.Errorf("join under way: %v", err)
	}
	<-s.Done()
	n.want(t, "crash")
	if err := s.Close(t.Context()); err != nil {
		t.Errorf("close after the daemon's end: %v", err)
	}
	_, err = Joiner{Socket: socket}.Join(t.Context(), "late")
	if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "bifrost compute") {
		t.Errorf("no daemon: %v", err)
	}
}

// A daemon whose network is in its own process hands over streams, and its socket is a file that a variable names.
func TestRelayed(t *testing.T) {
	blades := wire.New(wire.Config{})
	blades.Connect(blades.Router())
	host, err := blades.AddHost(wire.HostConfig{Name: "c1", Port: 1, Address: rackaddr.Node(1)})
	if err != nil {
		t.Fatal(err)
	}
	h, socket := &fakeHost{nodes: make(chan *fakeNode, 1), relay: &relay.Stack{Stack: host}}, filepath.Join(t.TempDir(), "join")
	serve(t, h, socket)
	t.Setenv(join.SocketVariable, socket)
	s, _ := joinNode(t, h, "")
	defer func() {
		if err := s.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	at := netip.AddrPortFrom(rackaddr.Node(1), rackaddr.PortRPC)
	c, err := s.Stack().ListenUDP(at)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.LocalAddr() != at {
		t.Errorf("the endpoint is at %s", c.LocalAddr())
	}
	if _, err := c.WriteBatch([]netio.Message{{Buf: []byte("to myself"), Remote: at}}); err != nil {
		t.Fatal(err)
	}
	ms := []netio.Message{{Buf: make([]byte, 100)}}
	if n, err := c.ReadBatch(ms); n != 1 || err != nil || string(ms[0].Buf) != "to myself" || ms[0].Remote != at {
		t.Error(n, err, ms[0])
	}
}

func TestLongPath(t *testing.T) {
	if l, err := Listen("/tmp/" + strings.Repeat("long/", 30)); err == nil || !strings.Contains(err.Error(), "shorter path") {
		t.Error(l, err)
	}
}

func TestJoinErrors(t *testing.T) {
	_, socket := start(t)
	_, err := Joiner{Socket: socket}.Join(t.Context(), "refused")
	if fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "the rack is full") {
		t.Errorf("refused: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err = (Joiner{Socket: socket}).Join(ctx, "slow"); fault.CodeOf(err) != fault.Deadline {
		t.Errorf("deadline: %v", err)
	}
}

func TestStatus(t *testing.T) {
	_, socket := start(t)
	s, err := AskStatus(t.Context(), socket)
	if err != nil || s.Blade != "c1" || !s.Registered || len(s.Nodes) != 1 || s.Nodes[0].Name != "n" {
		t.Errorf("status %+v, %v", s, err)
	}
}

// TestRawLines: what a broken program sends is refused by name, or ends its
// connection, and nobody else's.
func TestRawLines(t *testing.T) {
	h, socket := start(t)
	const now = control.Protocol
	speaks := fmt.Sprintf(`"speaks":{"protocol":%d}`, now)
	cases := []struct{ name, send, want string }{
		{"unknown operation", `{"id":1,"op":"join",` + speaks + `,"name":"x"}` + "\n" + `{"id":2,"op":"dance"}` + "\n", "does not know this operation"},
		{"export without join", `{"id":1,"op":"export"}` + "\n", "is no node"},
		{"empty export", `{"id":1,"op":"join",` + speaks + `,"name":"x"}` + "\n" + `{"id":2,"op":"export"}` + "\n", "no service"},
		{"another release", `{"id":1,"op":"join","name":"x","speaks":{"protocol":99,"build":"v9"}}` + "\n", fmt.Sprintf("program x speaks protocol 99 (build v9), this blade's daemon protocol %d", now)},
		{"an older release", `{"id":1,"op":"join","name":"x"}` + "\n", "program x speaks protocol 0"},
		{"one that binds sockets itself", `{"id":1,"op":"join","name":"x","speaks":{"protocol":1}}` + "\n", "program x speaks protocol 1"},
		{"join twice", `{"id":1,"op":"join",` + speaks + `,"name":"x"}` + "\n" + `{"id":2,"op":"join"}` + "\n", "is node fd00:b1f0:0:2::1 already"},
		{"garbage", "GET / HTTP/1.1\r\n\r\n", ""},
		{"no id", `{"op":"status"}` + "\n", ""},
		{"too long", strings.Repeat("x", maxLine+1), ""},
		{"flood", `{"id":1,"op":"join",` + speaks + `,"name":"slow"}` + "\n" + strings.Repeat(`{"id":2,"op":"status"}`+"\n", 2*maxRequests), ""},
	}
	for _, tc := range cases {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil { // no answer is a failure
			t.Fatal(err)
		}
		go conn.Write([]byte(tc.send)) // the other side may hang up meanwhile
		in, found := bufio.NewScanner(conn), false
		for !found && in.Scan() {
			found = tc.want != "" && strings.Contains(in.Text(), tc.want)
		}
		if tc.want != "" && !found {
			t.Errorf("%s: no answer with %q", tc.name, tc.want)
		}
		conn.Close()
	}
	s, _ := joinNode(t, &fakeHost{nodes: drain(h)}, socket)
	s.Close(t.Context())
}

// drain returns a channel with only the last node that joins.
func drain(h *fakeHost) chan *fakeNode {
	for len(h.nodes) > 0 {
		<-h.nodes
	}
	return h.nodes
}

// FuzzReadLine: a line that is taken says the same when it is written again.
func FuzzReadLine(f *testing.F) {
	f.Add(`{"id":1,"op":"join","speaks":{"protocol":3},"name":"arrays"}`+"\n", `{"id":1,"code":3}`+"\n")
	f.Add(`{"id":2,"op":"who","address":"::1"}`+"\n", `{"rack":{"mtu":9000}}`+"\n")
	f.Add("{}", "\n")
	f.Fuzz(func(t *testing.T, a, b string) {
		var q request
		if _, err := newReader(strings.NewReader(a)).read(&q); err == nil {
			sameAgain(t, &q, new(request))
		}
		var r reply
		if _, err := newReader(strings.NewReader(b)).read(&r); err == nil {
			sameAgain(t, &r, new(reply))
			if err := r.err("x"); (err == nil) != (r.Code == fault.OK) {
				t.Errorf("%+v is the error %v", r, err)
			}
		}
	})
}

// sameAgain writes a line and reads it into again. What the two say is compared as JSON: a
// list that is there and empty is written as none.
func sameAgain(t *testing.T, line, again any) {
	t.Helper()
	var one, two strings.Builder
	if err := writeLine(&one, line); err != nil {
		t.Fatal(err)
	}
	if _, err := newReader(strings.NewReader(one.String())).read(again); err != nil {
		t.Fatalf("%s: %v", one.String(), err)
	}
	if err := writeLine(&two, again); err != nil || two.String() != one.String() {
		t.Fatalf("%s became %s, %v", one.String(), two.String(), err)
	}
}
