package daemon

import (
	"context"
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmclient"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/memrack"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// memory starts a memory daemon and returns when it is registered.
func (r *rack) memory() (*Memory, chan struct{}, func() error) {
	registered := make(chan struct{}, 10)
	m, err := NewMemory(MemoryConfig{Blade: r.config(registered), Capacity: 1 << 20})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(r.ctx)
	ended := make(chan error, 1)
	r.parts.Go(func() { ended <- m.Run(ctx) })
	<-registered
	return m, registered, func() error { cancel(); return <-ended }
}

// TestMemoryBlade: the daemon serves memory and carries the Gatekeeper's commands
// out.
func TestMemoryBlade(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		m, registered, stop := r.memory()
		if h := r.gk.hellos[0]; h.Kind != control.Memory || h.Capacity != 1<<20 || h.Machine != 0 || h.MAC != r.blade.MAC().String() {
			t.Errorf("hello %+v", h)
		}
		client := r.host("client", 3, rackaddr.Node(1), wire.Impairment{})
		d, err := dsmclient.NewClient(dsmclient.Config{
			Stack: client, Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return r.gk.welcome.Rack }, Batches: memrack.Batches(rackaddr.Node(1), func(uint8) *memory.Server { return m.Server() }),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		var pointers []dsmpacket.Pointer
		for range 3 {
			p, err := d.Alloc(r.ctx, 64)
			if err != nil {
				t.Fatal(err)
			}
			pointers = append(pointers, p)
		}
		var l control.RegionList
		if err := r.gk.command(control.KindRegions, control.Regions{Max: 2}, &l); err != nil || len(l.Regions) != 2 || l.Next == 0 {
			t.Errorf("regions %+v, %v", l, err)
		}
		if id := l.Regions[0]; id.Owner != rackaddr.Node(1) || id.Region(rackaddr.DefaultDSMPrefix, 9).Base != pointers[0] {
			t.Errorf("region %+v, pointer %s", id, pointers[0])
		}
		for range 2 {
			if err := r.gk.command(control.KindReclaim, control.Reclaim{Boot: 77, Regions: l.Regions[:1]}, nil); err != nil {
				t.Error(err)
			}
		}
		if _, err := d.Read(r.ctx, pointers[0], make([]byte, 8)); fault.CodeOf(err) != fault.NotFound {
			t.Errorf("read of a reclaimed region: %v", err)
		}
		var granted control.LedgerAnswer
		grant := control.LedgerGrant{Birth: r.gk.hellos[0].Birth, Name: control.LedgerOf(rackaddr.Node(1)), Node: rackaddr.Node(1), Incarnation: 1}
		if err := r.gk.command(control.KindLedgerGrant, grant, &granted); err != nil || granted.Code != fault.OK || granted.Ledger.Next != 1 {
			t.Errorf("grant of a ledger: %+v, %v", granted, err)
		}
		pass(time.Second)
		r.gk.set(func() {
			if l := r.gk.last.Ledgers; r.gk.last.Used != 128 || l == nil || l.Total != 16*l.Space || l.Count != 1 {
				t.Errorf("heartbeat %+v", r.gk.last)
			}
		})
		// The Gatekeeper restarts: the daemon says hello as what it is, and keeps
		// its regions.
		r.gk.set(func() { r.gk.reply.Known = false })
		<-registered
		if h := r.gk.hellos[1]; h.Machine != 9 {
			t.Errorf("second hello %+v", h)
		}
		if _, err := d.Write(r.ctx, pointers[1], []byte("kept")); err != nil {
			t.Error(err)
		}
		var fenced control.Fenced
		if err := r.gk.command(control.KindFence, control.Fence{Node: rackaddr.Node(1), Incarnation: 1}, &fenced); err != nil {
			t.Error(err)
		}
		if len(fenced.Unsettled.Ledgers) != 1 || !fenced.Unsettled.Ledgers[0].Sealed {
			t.Errorf("fence: %+v", fenced)
		}
		deleted := control.LedgerDelete{Birth: grant.Birth, Name: grant.Name}
		if err := r.gk.command(control.KindLedgerDelete, deleted, &granted); err != nil || granted.Code != fault.OK || m.Server().Ledgers().Count != 0 {
			t.Errorf("delete of a ledger: %+v, %v", granted, err)
		}
		if _, err := d.Write(r.ctx, pointers[1], []byte("x")); fault.CodeOf(err) != fault.Stale {
			t.Errorf("write of a fenced incarnation: %v", err)
		}
		for kind, body := range map[control.Kind]any{
			control.KindFence: 1, control.KindReclaim: 2, control.KindRegions: 3, control.KindStart: arrays,
		} {
			if err := r.gk.command(kind, body, nil); fault.CodeOf(err) != fault.BadRequest && fault.CodeOf(err) != fault.Unsupported {
				t.Errorf("%s: %v", kind, err)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestMirrorOvertakesWelcome: the command to be a copy may be carried out before the
// welcome that was sent ahead of it. A blade that does not serve yet says so, and is asked
// again; one that serves remains what it was told last.
func TestMirrorOvertakesWelcome(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		copyTwo := control.Mirror{Epoch: 2, Incarnation: 1, Copy: 1, Members: 2}
		body, err := json.Marshal(copyTwo)
		if err != nil {
			t.Fatal(err)
		}
		early := &Memory{cfg: MemoryConfig{Blade: r.config(nil)}, mu: make(turn, 1)}
		if _, err := early.handle(r.ctx, control.Message{Kind: control.KindMirror, Body: body}); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("mirror before the welcome: %v, want unavailable", err)
		}
		welcome := r.gk.welcome
		welcome.Mirror = &control.Mirror{Epoch: 1, Incarnation: 1, Members: 1}
		r.gk.set(func() { r.gk.welcome = welcome })
		m, registered, stop := r.memory()
		if err := r.gk.command(control.KindMirror, copyTwo, nil); err != nil {
			t.Error(err)
		}
		r.gk.set(func() { r.gk.reply.Known = false })
		pass(10 * time.Second)
		if len(registered) == 0 {
			t.Error("the blade has not registered again")
		}
		if n, epoch := m.Server().Diverged(); n != 0 || epoch != 2 {
			t.Errorf("after a welcome of epoch 1 the blade is in epoch %d", epoch)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestMemoryOfAnotherRack: a Gatekeeper that has lost its log gives out the same nodes
// once more. A memory blade that has known those of the rack before forgets them, with
// their fences and requests, and their regions.
func TestMemoryOfAnotherRack(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		r.gk.set(func() { r.gk.welcome.Began = 1 })
		m, registered, stop := r.memory()
		client := r.host("client", 3, rackaddr.Node(1), wire.Impairment{})
		node := func() *dsmclient.Client {
			d, err := dsmclient.NewClient(dsmclient.Config{
				Stack: client, Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return r.gk.welcome.Rack }, Batches: memrack.Batches(rackaddr.Node(1), func(uint8) *memory.Server { return m.Server() }),
			})
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		for began := range uint64(3) {
			d := node()
			p, err := d.Alloc(r.ctx, 64)
			if err == nil {
				_, err = d.Write(r.ctx, p, []byte("new"))
			}
			if err != nil || m.Server().Used() != 64 {
				t.Errorf("rack %d: %v; %d bytes are in use", began, err, m.Server().Used())
			}
			if err := r.gk.command(control.KindFence, control.Fence{Node: rackaddr.Node(1), Incarnation: 5}, nil); err != nil {
				t.Error(err)
			}
			_ = d.Close()
			r.gk.set(func() { r.gk.welcome.Began++; r.gk.reply.Known = false })
			<-registered
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestMemoryUndo: a memory blade keeps undo if the Gatekeeper says so, and does as
// nodes say with what their executions have done. It obeys no command for another start.
func TestMemoryUndo(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		r.gk.set(func() { r.gk.welcome.Undo = true })
		m, registered, stop := r.memory()
		client := r.host("client", 3, rackaddr.Node(1), wire.Impairment{})
		d, err := dsmclient.NewClient(dsmclient.Config{
			Stack: client, Address: rackaddr.Node(1), Incarnation: 1, Rack: func() control.Rack { return r.gk.welcome.Rack }, Batches: memrack.Batches(rackaddr.Node(1), func(uint8) *memory.Server { return m.Server() }),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		p, err := d.Alloc(r.ctx, 64)
		if err != nil {
			t.Fatal(err)
		}
		first, second := control.ExecutionID{1}, control.ExecutionID{2}
		write := func(id control.ExecutionID, text string) {
			t.Helper()
			if _, err := d.With(dsmclient.Scope{Execution: id}, new(memrack.Execution)).Write(r.ctx, p, []byte(text)); err != nil {
				t.Error(err)
			}
		}
		read := func(want string) {
			t.Helper()
			b := make([]byte, len(want))
			if _, err := d.Read(r.ctx, p, b); err != nil || string(b) != want {
				t.Errorf("read %q, %v, want %q", b, err, want)
			}
		}
		write(first, "one")
		for range 2 {
			if err := d.Commit(r.ctx, p.Machine(), control.Run{Execution: first, Incarnation: 1}); err != nil {
				t.Error(err)
			}
		}
		write(second, "two")
		read("two")
		for range 2 {
			if _, err := d.Rollback(r.ctx, p.Machine(), control.Run{Execution: second, Incarnation: 1}); err != nil {
				t.Error(err)
			}
		}
		read("one")
		regions := []control.RegionID{{ID: p.ID(), Class: 6}}
		if err := r.gk.command(control.KindReclaim, control.Reclaim{Boot: 76, Regions: regions}, nil); fault.CodeOf(err) != fault.Stale {
			t.Errorf("a command for another start of the daemon: %v", err)
		}
		read("one")
		for _, kind := range []control.Kind{control.KindReclaim, control.KindRegions} {
			if err := r.gk.command(kind, 1, nil); fault.CodeOf(err) != fault.BadRequest {
				t.Errorf("%s: %v", kind, err)
			}
		}
		// A Gatekeeper that wants no undo takes over.
		r.gk.set(func() { r.gk.welcome.Undo, r.gk.reply.Known = false, false })
		<-registered
		write(first, "six")
		if u := m.Server().Metrics().Undo; u.Executions != 0 || u.Commits != 1 || u.Rollbacks != 1 {
			t.Errorf("%+v", u)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestMachineChanges: a blade that is told to serve another machine does, and has nothing of
// the former one.
func TestMachineChanges(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		registered := make(chan struct{}, 10)
		m, err := NewMemory(MemoryConfig{Blade: r.config(registered), Capacity: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		if answer, err := m.handle(r.ctx, control.Message{Kind: control.KindRegions, Body: []byte("{}")}); err != nil || !reflect.DeepEqual(answer, control.RegionList{}) {
			t.Errorf("a blade that has nothing yet answers %+v, %v", answer, err)
		}
		ended := make(chan error)
		ctx, cancel := context.WithCancel(r.ctx)
		go func() { ended <- m.Run(ctx) }()
		<-registered
		first := m.Server()
		d, err := dsmclient.NewClient(dsmclient.Config{
			Stack: r.host("client", 3, rackaddr.Node(1), wire.Impairment{}), Address: rackaddr.Node(1), Incarnation: 1,
			Rack: func() control.Rack { return r.gk.welcome.Rack }, Batches: memrack.Batches(rackaddr.Node(1), func(uint8) *memory.Server { return first }),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		if _, err := d.Alloc(r.ctx, 64); err != nil {
			t.Fatal(err)
		}
		had := first.Generation()
		r.gk.set(func() { r.gk.welcome.Machine, r.gk.reply.Known = 8, false })
		<-registered
		second := m.Server()
		if second == first || second.Used() != 0 || m.hello().Machine != 8 || second.Generation() < had {
			t.Errorf("%d bytes are used, machine %d, generation %d", second.Used(), m.hello().Machine, second.Generation())
		}
		if err := first.Forget(1); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("the former server still runs: %v", err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestLedgersBeforeWelcome: a blade that has ledgers on disk, and does not serve yet, must not
// be taken for one that has none: what it is asked about ledgers it has to be asked again. A
// whole rack that was switched on stood still when a fence came before the welcome.
func TestLedgersBeforeWelcome(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		d, err := memory.OpenLedgerDisk(t.TempDir(), false)
		if err != nil {
			t.Fatal(err)
		}
		early := &Memory{cfg: MemoryConfig{Blade: r.config(nil), Ledgers: memory.LedgerConfig{Disk: d}}, mu: make(turn, 1)}
		for _, kind := range []control.Kind{control.KindFence, control.KindLedgers, control.KindLedgerGrant, control.KindLedgerDelete} {
			if _, err := early.handle(r.ctx, control.Message{Kind: kind, Body: []byte("{}")}); fault.CodeOf(err) != fault.Unavailable {
				t.Errorf("%s before the welcome: %v, want unavailable", kind, err)
			}
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestBirthBeforeHello: a blade that loses power before it has committed anything has the same birth number when it starts again: the
// Gatekeeper may have placed ledgers there. Before, a fresh blade announced a number that was not on disk.
func TestBirthBeforeHello(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		power := &disk.Memory{Pause: func() time.Duration { return 100 * time.Millisecond }}
		r.gk.set(func() { r.gk.refuse = fault.New(fault.Unavailable, "hello", "later") }) // no rack has the blade yet
		var births []uint64
		for boot := uint64(77); boot < 81; boot++ {
			d, err := memory.MemoryLedgerDisk(power)
			if err != nil {
				t.Fatal(err)
			}
			blade := r.config(make(chan struct{}, 10))
			blade.Boot = boot
			m, err := NewMemory(MemoryConfig{Blade: blade, Capacity: 1 << 20, Ledgers: memory.LedgerConfig{Disk: d}})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(r.ctx)
			ended := make(chan error, 1)
			go func() { ended <- m.Run(ctx) }()
			pass(150 * time.Millisecond) // it has said hello, and another commit would be under way
			births = append(births, m.hello().Birth)
			power.Crash()
			cancel()
			<-ended
			r.gk.set(func() { r.gk.refuse = nil })
		}
		r.gk.set(func() {
			for i, h := range r.gk.hellos {
				if h.Birth != births[0] || births[i] != births[0] {
					t.Errorf("start %d announces %#x, and has %#x; the first one announced %#x", i+1, h.Birth, births[i], births[0])
				}
			}
			if len(r.gk.hellos) != 3 {
				t.Errorf("%d blades were welcome, want 3", len(r.gk.hellos))
			}
		})
	})
}
