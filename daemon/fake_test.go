package daemon

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperVariable) != "" {
		helper()
		return
	}
	goleak.VerifyTestMain(m)
}

// rack is a Gatekeeper by the book, a blade, and a scheduled wire between them,
// in virtual time.
type rack struct {
	t     *testing.T
	wire  *wire.Net
	gk    *gatekeeperFake
	blade *wire.Host
	ctx   context.Context
	stop  context.CancelFunc // of everything
	parts sync.WaitGroup
}

// inRack runs f in a rack whose links do to frames what impair says.
func inRack(t *testing.T, impair wire.Impairment, f func(r *rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rack{t: t, wire: wire.New(wire.Config{Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}})}
		r.wire.Connect(r.wire.Router())
		r.ctx, r.stop = context.WithCancel(context.Background())
		r.parts.Go(func() { r.wire.Run(r.ctx) })
		r.gk = newGatekeeperFake(r, r.host("gatekeeper", 1, rackaddr.Gatekeeper, impair))
		r.blade = r.host("blade", 2, rackaddr.Blade(1), impair)
		f(r)
		r.stop()
		r.parts.Wait()
	})
}

func (r *rack) host(name string, port datapath.Port, a netip.Addr, impair wire.Impairment) *wire.Host {
	h, err := r.wire.AddHost(wire.HostConfig{Name: name, Port: port, Address: a})
	if err != nil {
		r.t.Fatal(err)
	}
	h.Impair(impair, impair)
	return h
}

// config is a blade's configuration; registered counts welcomes.
func (r *rack) config(registered chan<- struct{}) Blade {
	return Blade{
		Name: "b1", Stack: r.blade, Address: r.blade.Address(), MAC: r.blade.MAC(), Boot: 77,
		Log: slog.New(slog.NewTextHandler(r.t.Output(), nil)), Registered: func() { registered <- struct{}{} },
	}
}

// compute starts a compute daemon and returns when it is registered, with a
// function that stops it and returns Run's error.
func (r *rack) compute(cfg ComputeConfig) (*Compute, chan struct{}, func() error) {
	registered := make(chan struct{}, 10)
	cfg.Blade = r.config(registered)
	if cfg.Nodes == 0 {
		cfg.Nodes = 3
	}
	c, err := NewCompute(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	r.parts.Go(func() { ended <- c.Run(ctx) })
	<-registered
	return c, registered, func() error { cancel(); return <-ended }
}

// gatekeeperFake answers one blade's daemon.
type gatekeeperFake struct {
	r    *rack
	conn netio.Conn
	end  *control.Endpoint

	mu      sync.Mutex
	hellos  []control.Hello
	beats   int
	last    control.Heartbeat
	joins   map[uint64]control.Joined // by token
	moved   map[string]control.Joined // what joins as a node that was before, by instance
	leaves  []control.Leave
	exports []control.Export
	reply   control.HeartbeatReply // to heartbeats
	welcome control.Welcome
	refuse  error // of the next requests other than heartbeats
	silent  bool  // questions about services are not heard

	policies []control.MethodPolicy
	version  uint64 // of the policies
	asked    int    // how often for a part of them
}

func newGatekeeperFake(r *rack, h *wire.Host) *gatekeeperFake {
	memories := []control.MemoryBlade{{Machine: 9, Free: 100}}
	g := &gatekeeperFake{
		r: r, joins: map[uint64]control.Joined{}, moved: map[string]control.Joined{},
		welcome: control.Welcome{
			Address: rackaddr.Blade(1), Machine: 9, HeartbeatMS: 100,
			Rack: control.Rack{DSMPrefix: rackaddr.DefaultDSMPrefix, MTU: rackaddr.DefaultMTU, Memories: memories},
		},
	}
	g.reply = control.HeartbeatReply{Known: true, Rack: g.welcome.Rack}
	conn, err := h.ListenUDP(gatekeeper)
	if err != nil {
		r.t.Fatal(err)
	}
	g.conn = conn
	daemon := netip.AddrPortFrom(rackaddr.Blade(1), rackaddr.PortControl)
	g.end = control.NewEndpoint(control.Config{
		PeerConfig: control.PeerConfig{Boot: 1, Election: control.Election{Low: 1}},
		Handle:     g.handle,
		Send: func(b []byte) error {
			_, err := conn.WriteBatch([]netio.Message{{Buf: b, Remote: daemon}})
			return err
		},
	})
	r.parts.Go(func() { g.end.Run(r.ctx) })
	r.parts.Go(func() { <-r.ctx.Done(); conn.Close() })
	r.parts.Go(g.read)
	return g
}

func (g *gatekeeperFake) read() {
	for {
		ms := []netio.Message{{Buf: make([]byte, netio.MaxDatagram)}}
		if _, err := g.conn.ReadBatch(ms); err != nil {
			return
		}
		g.mu.Lock()
		silent := g.silent
		g.mu.Unlock()
		if m, err := control.Parse(ms[0].Buf); silent && err == nil && m.Kind == control.KindService {
			continue
		}
		g.end.Deliver(ms[0].Buf)
	}
}

// handle does what the protocol asks, and writes it down.
func (g *gatekeeperFake) handle(_ context.Context, m control.Message) (any, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if m.Kind != control.KindHeartbeat && g.refuse != nil {
		return nil, g.refuse
	}
	switch m.Kind {
	case control.KindHello:
		var h control.Hello
		err := m.Decode(&h)
		g.hellos = append(g.hellos, h)
		g.reply.Known = true
		return g.welcome, err
	case control.KindPolicies:
		g.asked++
		return control.PolicyList{Version: g.version, Policies: g.policies}, nil
	case control.KindHeartbeat:
		g.beats++
		return g.reply, m.Decode(&g.last)
	case control.KindJoin:
		var j control.Join
		if err := m.Decode(&j); err != nil {
			return nil, err
		}
		if !g.reply.Known {
			return nil, fault.New(fault.Stale, "join", "say hello first")
		}
		if moved, ok := g.moved[j.Instance]; ok {
			g.joins[j.Token] = moved
		}
		if _, known := g.joins[j.Token]; !known {
			g.joins[j.Token] = control.Joined{Address: rackaddr.Node(uint64(len(g.joins) + 1)), Incarnation: 1, Rack: g.welcome.Rack, Blocks: []uint32{5}}
		}
		return g.joins[j.Token], nil
	case control.KindExport:
		var e control.Export
		err := m.Decode(&e)
		g.exports = append(g.exports, e)
		return control.Exported{}, err
	case control.KindLeave:
		var l control.Leave
		err := m.Decode(&l)
		g.leaves = append(g.leaves, l)
		return nil, err
	}
	return nil, fault.New(fault.Unsupported, m.Kind.String(), "not by this fake")
}

// set changes what the fake does.
func (g *gatekeeperFake) set(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

// left returns the leaves, in order of their nodes.
func (g *gatekeeperFake) left() []control.Leave {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := slices.Clone(g.leaves)
	slices.SortFunc(out, func(a, b control.Leave) int { return a.Node.Compare(b.Node) })
	return out
}

// command gives the daemon a command.
func (g *gatekeeperFake) command(kind control.Kind, request, reply any) error {
	ctx, cancel := context.WithTimeout(g.r.ctx, time.Minute)
	defer cancel()
	return g.end.Ask(ctx, kind, request, reply)
}

// pass lets virtual time go by.
func pass(d time.Duration) { <-time.After(d) }

// fakeRunner starts programs that end when they are told to.
type fakeRunner struct {
	started chan *fakeProcess
	deaf    bool // SIGTERM does nothing
}

func (f *fakeRunner) Check(s control.Start) error {
	if s.Args[0] == "missing" {
		return fmt.Errorf("there is no program %s", s.Args[0])
	}
	return nil
}

func (f *fakeRunner) Run(s control.Start, out io.Writer) (Process, error) {
	if s.Args[0] == "missing" {
		return nil, fmt.Errorf("%s: no such file", s.Args[0])
	}
	p := &fakeProcess{done: make(chan struct{}), deaf: f.deaf, out: out}
	f.started <- p
	return p, nil
}

type fakeProcess struct {
	out    io.Writer
	deaf   bool
	once   sync.Once
	done   chan struct{}
	killed bool
	err    error // how it ends
}

func (p *fakeProcess) PID() int    { return 4711 }
func (p *fakeProcess) UID() uint32 { return 4712 }
func (p *fakeProcess) Terminate() {
	if !p.deaf {
		p.end()
	}
}
func (p *fakeProcess) Kill()                 { p.once.Do(func() { p.killed = true; close(p.done) }) }
func (p *fakeProcess) end()                  { p.once.Do(func() { close(p.done) }) }
func (p *fakeProcess) Done() <-chan struct{} { return p.done }
func (p *fakeProcess) Err() error            { return p.err }
