package dsmclient_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4/datapath"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const prefix = rackaddr.DefaultDSMPrefix

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// rack is memory servers and compute hosts around a router that can deny
// requests as the switch does.
type rack struct {
	t        testing.TB
	net      *wire.Net
	ctx      context.Context
	stop     context.CancelFunc
	running  sync.WaitGroup
	hosts    int
	denies   atomic.Pointer[func(node, to dsmpacket.Pointer) bool]
	memories []*memory.Server
	capacity uint64
	// impairment is what every link does in both directions; only a scheduled
	// wire does it.
	impairment wire.Impairment
}

func newRack(t testing.TB, cfg wire.Config, machines int) *rack {
	t.Helper()
	return newImpairedRack(t, cfg, machines, wire.Impairment{})
}

func newImpairedRack(t testing.TB, cfg wire.Config, machines int, imp wire.Impairment) *rack {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &rack{t: t, net: wire.New(cfg), ctx: ctx, stop: stop, capacity: 1 << 30, impairment: imp}
	r.net.Connect(r.denying(r.net.Router()))
	r.running.Go(func() { r.net.Run(ctx) })
	for range machines {
		r.addMemory()
	}
	t.Cleanup(r.close)
	return r
}

func (r *rack) close() {
	r.stop()
	r.running.Wait()
}

func (r *rack) host(name string) *wire.Host {
	r.t.Helper()
	r.hosts++
	h, err := r.net.AddHost(wire.HostConfig{Name: name, Port: datapath.Port(r.hosts), Address: rackaddr.Blade(uint64(r.hosts))})
	if err != nil {
		r.t.Fatal(err)
	}
	h.Impair(r.impairment, r.impairment)
	return h
}

// addMemory adds the next memory machine; ids count from 1.
func (r *rack) addMemory() *memory.Server {
	r.t.Helper()
	id := len(r.memories) + 1
	s, err := memory.NewServer(memory.Config{
		Stack: r.host("m" + string(rune('0'+id))), Prefix: prefix, Machine: uint8(id), Capacity: r.capacity, Epoch: 1,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	r.memories = append(r.memories, s)
	r.running.Go(func() {
		if err := s.Run(r.ctx); err != nil {
			r.t.Error(err)
		}
	})
	return s
}

// view is what the Gatekeeper would tell of the rack.
func (r *rack) view() control.Rack {
	v := control.Rack{DSMPrefix: prefix, MTU: rackaddr.DefaultMTU}
	for i, s := range r.memories {
		v.Memories = append(v.Memories, control.MemoryBlade{Machine: uint8(i + 1), Free: s.Capacity() - s.Used()})
	}
	return v
}

// client adds a host with a node of its own; node numbers count from 1.
func (r *rack) client(node uint64, incarnation uint32) *dsmclient.Client {
	r.t.Helper()
	return r.clientWith(node, dsmclient.Config{Incarnation: incarnation})
}

// clientWith is client with more to say about it.
func (r *rack) clientWith(node uint64, cfg dsmclient.Config) *dsmclient.Client {
	r.t.Helper()
	addr := rackaddr.Node(node)
	h := r.net.Host("c" + addr.String())
	if h == nil {
		h = r.host("c" + addr.String())
	}
	if err := h.AddAddress(addr); err != nil {
		r.t.Fatal(err)
	}
	view := r.view()
	cfg.Stack, cfg.Address, cfg.Rack = h, addr, func() control.Rack { return view }
	c, err := dsmclient.NewClient(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.t.Error(err)
		}
	})
	return c
}

// deny sets which requests the switch denies, by source and destination.
func (r *rack) deny(f func(node, to dsmpacket.Pointer) bool) { r.denies.Store(&f) }

// denying puts the P4 program's denial before a router: addresses, ports and
// the two verdict words change places.
func (r *rack) denying(forward func(datapath.Port, []byte)) func(datapath.Port, []byte) {
	return func(in datapath.Port, b []byte) {
		p, err := frame.Parse(b)
		deny := r.denies.Load()
		if err == nil && deny != nil && dsmpacket.FromAddr(p.Dst).InPrefix(prefix) &&
			(*deny)(dsmpacket.FromAddr(p.Src), dsmpacket.FromAddr(p.Dst)) {
			p.Src, p.Dst = p.Dst, p.Src
			p.SrcMAC, p.DstMAC = p.DstMAC, p.SrcMAC
			u := append([]byte(nil), p.Payload...)
			u[0], u[1], u[2], u[3] = u[2], u[3], u[0], u[1]
			v := u[8+4:]
			v[0], v[1], v[2], v[3] = v[2], v[3], v[0], v[1]
			p.Payload = u
			r.net.Output(in, p.Append(nil))
			return
		}
		forward(in, b)
	}
}
