// Package memrack is memory servers and compute hosts on a virtual wire, without a
// Gatekeeper: what tests of the memory client need.
package memrack

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

const prefix = rackaddr.DefaultDSMPrefix

// Bad is a network on which each packet may be lost, doubled, reordered, and late
// by seconds, with 5 % each, on every link in every direction.
var Bad = wire.Impairment{
	Delay: 20 * time.Microsecond, Jitter: 20 * time.Microsecond,
	Loss: 0.05, Duplicate: 0.05, Reorder: 0.05, Late: 0.05, LateBy: 5 * time.Second,
}

// Virtual is a wire in virtual time that a seed decides.
func Virtual(seed uint64, mtu int) wire.Config {
	return wire.Config{MTU: mtu, Schedule: &wire.Schedule{Seed: seed, Quiesce: synctest.Wait}}
}

// Rack is memory servers and compute hosts around a router that can deny
// requests as the switch does.
type Rack struct {
	T        testing.TB
	Net      *wire.Net
	Ctx      context.Context // ends with the rack
	Memories []*memory.Server
	Capacity uint64 // of memory machines that are added, in bytes

	stop    context.CancelFunc
	running sync.WaitGroup
	hosts   int
	denies  atomic.Pointer[func(node, to dsmpacket.Pointer) bool]
	rights  atomic.Pointer[Rights]
	seconds map[uint8]second // by machine
	// impairment is what every link does in both directions; only a scheduled
	// wire does it.
	impairment wire.Impairment
}

// second is the second copy of a memory machine.
type second struct {
	server *memory.Server
	host   *wire.Host
}

// New starts a rack of so many memory machines, which ends with the test.
func New(t testing.TB, cfg wire.Config, machines int, imp wire.Impairment) *Rack {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	r := &Rack{T: t, Net: wire.New(cfg), Ctx: ctx, stop: stop, Capacity: 1 << 30, impairment: imp, seconds: map[uint8]second{}}
	r.Net.Connect(r.denying(r.judging(r.Net.Router())))
	r.running.Go(func() { r.Net.Run(ctx) })
	for range machines {
		r.AddMemory()
	}
	t.Cleanup(r.Close)
	return r
}

// Close ends the rack, and waits until it has ended.
func (r *Rack) Close() {
	r.stop()
	r.running.Wait()
}

// Host adds a host.
func (r *Rack) Host(name string) *wire.Host {
	r.T.Helper()
	r.hosts++
	h, err := r.Net.AddHost(wire.HostConfig{Name: name, Port: datapath.Port(r.hosts), Address: rackaddr.Blade(uint64(r.hosts))})
	r.must(err)
	h.Impair(r.impairment, r.impairment)
	return h
}

// AddMemory adds the next memory machine; ids count from 1.
func (r *Rack) AddMemory() *memory.Server {
	r.T.Helper()
	id := len(r.Memories) + 1
	s, err := memory.NewServer(memory.Config{
		Stack: r.Host("m" + string(rune('0'+id))), Prefix: prefix, Machine: uint8(id), Capacity: r.Capacity,
	})
	r.must(err)
	r.Memories = append(r.Memories, s)
	r.running.Go(func() {
		if err := s.Run(r.Ctx); err != nil {
			r.T.Error(err)
		}
	})
	return s
}

func (r *Rack) must(err error) {
	r.T.Helper()
	if err != nil {
		r.T.Fatal(err)
	}
}

// View is what the Gatekeeper would tell of the rack.
func (r *Rack) View() control.Rack {
	v := control.Rack{DSMPrefix: prefix, MTU: rackaddr.DefaultMTU}
	for i, s := range r.Memories {
		v.Memories = append(v.Memories, control.MemoryBlade{Machine: uint8(i + 1), Free: s.Capacity() - s.Used()})
	}
	return v
}

// Client adds a host with a node of its own; node numbers count from 1.
func (r *Rack) Client(node uint64, incarnation uint32) *dsmclient.Client {
	r.T.Helper()
	return r.ClientWith(node, dsmclient.Config{Incarnation: incarnation})
}

// ClientWith is client with more to say about it.
func (r *Rack) ClientWith(node uint64, cfg dsmclient.Config) *dsmclient.Client {
	r.T.Helper()
	addr := rackaddr.Node(node)
	h := r.Net.Host("c" + addr.String())
	if h == nil {
		h = r.Host("c" + addr.String())
	}
	r.must(h.AddAddress(addr))
	view := r.View()
	cfg.Stack, cfg.Address, cfg.Rack = h, addr, func() control.Rack { return view }
	cfg.Batches = batches(addr, r.Copies)
	c, err := dsmclient.NewClient(cfg)
	r.must(err)
	r.T.Cleanup(func() {
		if err := c.Close(); err != nil {
			r.T.Error(err)
		}
	})
	return c
}

// Copies are the copies of a machine.
func (r *Rack) Copies(machine uint8) []*memory.Server {
	all := []*memory.Server{r.Memories[machine-1]}
	if two, is := r.seconds[machine]; is {
		all = append(all, two.server)
	}
	return all
}

// mostBatches is how many batches a node may have here on a machine, and mostMachines how many machines there are.
const mostBatches, mostMachines = 256, 8

// Batches gives a node batches of region slots, as the Gatekeeper would: each node has its own on each machine, since slots are unique in the rack.
func Batches(node netip.Addr, server func(machine uint8) *memory.Server) func(context.Context, uint8, int) ([]uint32, error) {
	return batches(node, func(machine uint8) []*memory.Server { return []*memory.Server{server(machine)} })
}

// batches is Batches for machines with several copies.
func batches(node netip.Addr, copies func(machine uint8) []*memory.Server) func(context.Context, uint8, int) ([]uint32, error) {
	a := node.As16()
	return func(_ context.Context, machine uint8, want int) (all []uint32, err error) {
		var g control.Grant
		first := mostBatches * (1 + (mostMachines*uint32(a[15])+uint32(machine))%(dsmpacket.Batches/mostBatches-1))
		for i := range uint32(min(want, mostBatches)) { //nolint:gosec // not negative
			all = append(all, first+i)
			g.Batches = append(g.Batches, control.BatchOf{Batch: first + i, Node: node})
		}
		for _, server := range copies(machine) {
			err = errors.Join(err, server.Grant(g))
		}
		return all, err
	}
}

// Deny sets which requests the switch denies, by source and destination.
func (r *Rack) Deny(f func(node, to dsmpacket.Pointer) bool) { r.denies.Store(&f) }

// denying puts the P4 program's denial before a router.
func (r *Rack) denying(forward func(datapath.Port, []byte)) func(datapath.Port, []byte) {
	return func(in datapath.Port, b []byte) {
		p, err := frame.Parse(b)
		deny := r.denies.Load()
		if err == nil && deny != nil && dsmpacket.FromAddr(p.Dst).InPrefix(prefix) &&
			(*deny)(dsmpacket.FromAddr(p.Src), dsmpacket.FromAddr(p.Dst)) {
			r.Net.Output(in, turned(p, fault.PermissionDenied))
			return
		}
		forward(in, b)
	}
}

// KeepUndo has all memory blades keep undo.
func (r *Rack) KeepUndo() {
	for _, m := range r.Memories {
		r.must(m.KeepUndo(true))
	}
}

// Fence does what the Gatekeeper does when a node has died.
func (r *Rack) Fence(node uint64, incarnation uint32) {
	r.T.Helper()
	for _, m := range r.Memories {
		_, err := m.Fence(control.Fence{Node: rackaddr.Node(node), Incarnation: incarnation})
		r.must(err)
	}
}

// Undone checks that nothing is left to commit or to take back.
func (r *Rack) Undone() {
	r.T.Helper()
	for i, m := range r.Memories {
		if u := m.Metrics().Undo; u.Executions != 0 || u.Bytes != 0 {
			r.T.Errorf("machine %d: %+v", i+1, u)
		}
	}
}
