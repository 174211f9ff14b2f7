package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// onPair runs f on a rack whose memory is one machine with two copies, and counts the
// frames.
func onPair(t *testing.T, impair wire.Impairment, onFrame func(r *simrack.Rack, n int64, f wire.Frame), f func(t *testing.T, ctx context.Context, r *simrack.Rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		var frames atomic.Int64
		var rack atomic.Pointer[simrack.Rack]
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{
				{Name: "c1", Kind: control.Compute}, {Name: "c2", Kind: control.Compute},
				{Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory},
			},
			Machines: [][]string{{"m1", "m2"}}, FillRate: 16 << 20, Disk: new(wal.Disk), Impair: impair,
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
			OnFrame: func(f wire.Frame) {
				if r := rack.Load(); r != nil && onFrame != nil {
					onFrame(r, frames.Add(1), f)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		rack.Store(r)
		f(t, ctx, r)
		rack.Store(nil)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// untilMirrored waits until the machine has two copies.
func untilMirrored(t *testing.T, ctx context.Context, r *simrack.Rack) {
	t.Helper()
	for range 100 {
		s, err := r.Gatekeeper().Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(s.Machines) == 1 && len(s.Machines[0].Copies) == 2 && s.Machines[0].Why == "" {
			return
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	t.Fatal("the machine is not mirrored")
}

// writer is the memory of a new node on c1, and a region that it has allocated.
func writer(t *testing.T, ctx context.Context, r *simrack.Rack, size uint64) (*dsm.Client, dsm.Pointer) {
	t.Helper()
	n, err := r.Join(ctx, "c1", "writer")
	if err != nil {
		t.Fatal(err)
	}
	p, err := n.Memory().Alloc(ctx, size)
	if err != nil {
		t.Fatal(err)
	}
	return n.Memory(), p
}

// scenario allocates, writes, lends, reads and frees, and compares with what must be
// there. It returns the memory that is left.
func scenario(t *testing.T, ctx context.Context, r *simrack.Rack) {
	t.Helper()
	n, err := r.Join(ctx, "c1", "writer")
	if err != nil {
		t.Fatal(err)
	}
	m := n.Memory()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	var regions []dsm.Pointer
	want := map[dsm.Pointer][]byte{}
	for i := range 4 {
		size := []uint64{64, 5000, 200_000, 1 << 20}[i]
		p, err := m.Alloc(ctx, size)
		must("alloc", err)
		regions, want[p] = append(regions, p), make([]byte, size)
	}
	for round := range 3 {
		for i, p := range regions {
			data := bytes.Repeat([]byte{byte(16*round + i + 1)}, len(want[p])/(round+1))
			_, err := m.Write(ctx, p.Add(int64(round)), data[:len(data)-round])
			must("write", err)
			copy(want[p][round:], data[:len(data)-round])
		}
		for _, p := range regions {
			got := make([]byte, len(want[p]))
			_, err := m.Read(ctx, p, got)
			must("read", err)
			if !bytes.Equal(got, want[p]) {
				t.Fatalf("round %d: %v does not hold what was written", round, p)
			}
		}
	}
	for _, p := range regions {
		must("free", m.Free(ctx, p))
	}
	must("close", n.Close(ctx))
}

func TestMirroredMachine(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		scenario(t, ctx, r)
		untilNothingLeft(t, ctx, r, "m1", "m2")
	})
}

// untilNothingLeft waits until blades have no regions, which takes the frees that nobody
// waits for.
func untilNothingLeft(t *testing.T, ctx context.Context, r *simrack.Rack, blades ...string) {
	t.Helper()
	var used string
	for range 100 {
		used = ""
		for _, b := range blades {
			if n := r.MemoryServer(b).Used(); n > 0 {
				used += fmt.Sprintf(" %s: %d bytes", b, n)
			}
		}
		if used == "" {
			return
		}
		<-time.After(100 * time.Millisecond) // virtual
	}
	t.Errorf("left:%s", used)
}

// TestMemoryBladeDies cuts the power of each of the two blades, before every so-many-th
// frame of a scenario: nothing that was acknowledged is lost, and what goes on, goes on.
func TestMemoryBladeDies(t *testing.T) {
	frames := int64(0)
	onPair(t, wire.Impairment{}, func(_ *simrack.Rack, n int64, _ wire.Frame) { frames = n }, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		scenario(t, ctx, r)
	})
	points := int64(40)
	if testing.Short() { // with the race detector
		points = 5
	}
	step := max(1, frames/points)
	for _, dies := range []string{"m1", "m2"} {
		for at := int64(1); at <= frames; at += step {
			t.Run(fmt.Sprintf("%s before frame %d of %d", dies, at, frames), func(t *testing.T) {
				survivor := map[string]string{"m1": "m2", "m2": "m1"}[dies]
				onPair(t, wire.Impairment{}, func(r *simrack.Rack, n int64, _ wire.Frame) {
					if n == at {
						if err := r.CrashBlade(dies); err != nil {
							t.Error(err)
						}
					}
				}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
					scenario(t, ctx, r)
					untilNothingLeft(t, ctx, r, survivor)
				})
			})
		}
	}
}

// TestMirrorRefused: what operators ask about copies that makes no sense is refused, with
// the reason.
func TestMirrorRefused(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		g := r.Gatekeeper()
		for _, c := range []struct {
			what string
			err  error
			want error
			code fault.Code
		}{
			{"onto itself", g.Mirror(ctx, "m1", "m1"), gatekeeper.ErrSameBlade, fault.BadRequest},
			{"twice", g.Mirror(ctx, "m1", "m2"), gatekeeper.ErrSameBlade, fault.BadRequest},
			{"unknown", g.Mirror(ctx, "m1", "m9"), gatekeeper.ErrUnknownBlade, fault.NotFound},
			{"unknown machine", g.Mirror(ctx, "m9", "m1"), gatekeeper.ErrUnknownBlade, fault.NotFound},
			{"compute blade", g.Mirror(ctx, "m1", "c1"), gatekeeper.ErrUnknownBlade, fault.NotFound},
			{"unmirror nobody", g.Unmirror(ctx, "m9", ""), gatekeeper.ErrUnknownBlade, fault.NotFound},
			{"unmirror", g.Unmirror(ctx, "m2", "test"), nil, fault.OK},
			{"unmirror the only copy", g.Unmirror(ctx, "m1", ""), gatekeeper.ErrNotMirrored, fault.BadRequest},
		} {
			if !errors.Is(c.err, c.want) || fault.CodeOf(c.err) != c.code {
				t.Errorf("%s: %v, want %v", c.what, c.err, c.want)
			}
		}
		s, err := g.Snapshot(ctx)
		if err != nil || len(s.Machines[0].Copies) != 1 || s.Machines[0].Why != "test" {
			t.Errorf("after unmirror: %+v, %v", s.Machines, err)
		}
		if err := g.ReturnToService(ctx, "m2"); err != nil {
			t.Error(err)
		}
		untilMirrored(t, ctx, r)
	})
}

// TestPairByNumber: a Gatekeeper that is told of no machines pairs blades by their numbers, in
// whatever order they come. One that is told of some pairs the rest.
func TestPairByNumber(t *testing.T) {
	for _, tc := range []struct {
		blades   string
		machines [][]string
		want     string
	}{
		{"m1 m2 m3", nil, "[m1 m2] mirrored, [m3 m4] alone"},
		{"m4 m2 m3 m1 store", nil, "[m1 m2] mirrored, [m3 m4] mirrored, [store] alone"},
		{"m1 m2 m3 m4", [][]string{{"m2", "m3"}, {"m1"}}, "[m1] alone, [m2 m3] mirrored, [m4] alone"},
	} {
		bubble.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
			defer cancel()
			cfg := simrack.Config{PairByNumber: true, Machines: tc.machines, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
			for _, name := range strings.Fields(tc.blades) {
				cfg.Blades = append(cfg.Blades, simrack.Blade{Name: name, Kind: control.Memory})
			}
			r, err := simrack.Start(ctx, cfg)
			if err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second) // virtual: second copies are filled
			s, err := r.Gatekeeper().Snapshot(ctx)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, m := range s.Machines {
				state := "alone"
				if len(m.Copies) == 2 && m.Why == "" {
					state = "mirrored"
				}
				slices.Sort(m.Blades)
				got = append(got, fmt.Sprint(m.Blades, " ", state))
			}
			slices.Sort(got)
			if strings.Join(got, ", ") != tc.want {
				t.Errorf("%s: %s, want %s", tc.blades, strings.Join(got, ", "), tc.want)
			}
			if err := r.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOldContentIsEmptied: a blade that was only away, and comes back with what it had, is
// emptied and filled: it has missed what was written meanwhile.
func TestOldContentIsEmptied(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		m, p := writer(t, ctx, r, 64)
		old, err := m.Alloc(ctx, 64)
		if err != nil {
			t.Fatal(err)
		}
		r.Host("m1").SetLink(false)
		if _, err := m.Write(ctx, p, []byte("new")); err != nil { // m2 alone has it
			t.Fatal(err)
		}
		if err := m.Free(ctx, old); err != nil {
			t.Fatal(err)
		}
		r.Host("m1").SetLink(true)
		untilMirrored(t, ctx, r)
		if used := r.MemoryServer("m1").Used(); used != 64 {
			t.Errorf("the blade that is back has %d bytes, want 64", used)
		}
		if err := r.CrashBlade("m2"); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 3)
		if _, err := m.Read(ctx, p, b); err != nil || string(b) != "new" {
			t.Errorf("%q, %v", b, err)
		}
	})
}

// TestSmallSecondBlade: a blade without room for what the machine holds is not filled, or no
// longer when it turns out, and the operator is told why.
func TestSmallSecondBlade(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{
				{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory, Capacity: 1 << 20}, {Name: "m2", Kind: control.Memory, Capacity: 64 << 10},
			},
			Machines: [][]string{{"m1", "m2"}}, Disk: new(wal.Disk), FillRate: 100 << 10,
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		m := n.Memory()
		if _, err := m.Alloc(ctx, 128<<10); fault.CodeOf(err) != fault.NoSpace {
			t.Errorf("more than the smaller copy has: %v", err)
		}
		why := func() string {
			s, err := r.Gatekeeper().Snapshot(ctx)
			if err != nil || len(s.Machines) != 1 || len(s.Machines[0].Copies) != 1 {
				t.Errorf("%+v, %v", s.Machines, err)
				return ""
			}
			return s.Machines[0].Why
		}
		if err := r.CrashBlade("m2"); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual
		var all []dsm.Pointer
		for range 2 {
			p, err := m.Alloc(ctx, 128<<10)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, p)
		}
		<-time.After(2 * time.Second) // virtual: a heartbeat tells what is used
		if err := r.BootBlade("m2"); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual
		if w := why(); !strings.Contains(w, "has room for 65536 bytes") {
			t.Errorf("why there is one copy: %q", w)
		}
		for _, p := range all {
			if err := m.Free(ctx, p); err != nil {
				t.Fatal(err)
			}
		}
		waitFor(t, ctx, r, "filled when there is room", mirrored)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMirrorRefused_Blades: a blade that is full, serves another machine or is away does not become
// a second copy, and the operator is told which.
func TestMirrorRefused_Blades(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{
				{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory, Capacity: 1 << 20},
				{Name: "m2", Kind: control.Memory, Capacity: 32 << 10}, {Name: "m3", Kind: control.Memory, Capacity: 1 << 20},
			},
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		for r.MemoryServer("m1").Used() == 0 || r.MemoryServer("m3").Used() == 0 {
			if _, err := n.Memory().Alloc(ctx, 64<<10); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(2 * time.Second) // virtual: a heartbeat tells what is used
		g := r.Gatekeeper()
		refused := func(first, second string, want error, code fault.Code) {
			t.Helper()
			if err := g.Mirror(ctx, first, second); !errors.Is(err, want) || fault.CodeOf(err) != code {
				t.Errorf("mirror %s %s: %v, want %v", first, second, err, want)
			}
		}
		refused("m1", "m2", gatekeeper.ErrNoRoom, fault.NoSpace)
		refused("m1", "m3", gatekeeper.ErrBladeServes, fault.BadRequest)
		if err := r.CrashBlade("m2"); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual
		refused("m1", "m2", gatekeeper.ErrAway, fault.Unavailable)
		refused("m2", "m1", gatekeeper.ErrAway, fault.Unavailable)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestMirrorRefused_Ledgers: a blade that keeps ledgers of nodes, and nothing else, takes no copy: it would lose them.
func TestMirrorRefused_Ledgers(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: append(oneMemory(), simrack.Blade{Name: "m2", Kind: control.Memory, Capacity: 1 << 30}), Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
		})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 4 { // ledgers are spread over the machines
			if _, err := r.Join(ctx, "c1", fmt.Sprint("client", i)); err != nil {
				t.Fatal(err)
			}
		}
		for _, blades := range [][2]string{{"m1", "m2"}, {"m2", "m1"}} {
			if err := r.Gatekeeper().Mirror(ctx, blades[0], blades[1]); !errors.Is(err, gatekeeper.ErrBladeServes) || !strings.Contains(err.Error(), "ledgers") {
				t.Errorf("mirror %s onto %s: %v", blades[0], blades[1], err)
			}
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// TestFenceOfLargeWrites: the fence of a node that has not settled some hundred KiB of writes takes
// a few commands to each copy, not hundreds.
func TestFenceOfLargeWrites(t *testing.T) {
	onPair(t, wire.Impairment{Delay: 100 * time.Microsecond}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		n, err := r.Join(ctx, "c1", "writer")
		if err != nil {
			t.Fatal(err)
		}
		const size = 1 << 20
		p, err := n.Memory().Alloc(ctx, size)
		if err != nil {
			t.Fatal(err)
		}
		events := r.Gatekeeper().Subscribe(ctx)
		r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1}) // it hears no answers
		writing, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := n.Memory().Write(writing, p, make([]byte, size)); fault.CodeOf(err) != fault.Deadline {
			t.Fatalf("a write without answers: %v", err)
		}
		if err := r.CrashBlade("c1"); err != nil {
			t.Fatal(err)
		}
		var failed time.Time
		for e := range events {
			if e.Kind == gatekeeper.NodeFailed {
				failed = e.Time
			}
			if e.Kind == gatekeeper.NodeFenced {
				took := e.Time.Sub(failed)
				t.Logf("fenced after %s", took)
				if took > 100*time.Millisecond {
					t.Errorf("the fence took %s", took)
				}
				break
			}
		}
	})
}

// commandIn is the kind of a control message in a frame, and whether it is a reply; 0 for other frames.
func commandIn(f wire.Frame) (kind control.Kind, reply bool) {
	u, err := frame.ParseUDP6(f.Data)
	if err != nil || u.Dst.Port() != rackaddr.PortControl {
		return 0, false
	}
	m, err := control.Parse(u.Payload)
	if err != nil {
		return 0, false
	}
	return m.Kind, m.Reply
}

// TestFenceWhileTheGatekeeperRestarts: a node dies that has got a write to one copy only, and the Gatekeeper when both copies have
// answered the fence. Its successor fences again. When it hands the node's regions on, the copies are equal. The second answer to a fence
// told nothing of the write, so they differed.
func TestFenceWhileTheGatekeeperRestarts(t *testing.T) {
	const size = 3000
	for _, misses := range []string{"m1", "m2"} {
		var p atomic.Uint64
		var crashed, equal atomic.Bool
		fenced := map[string]bool{}
		onPair(t, wire.Impairment{Delay: 100 * time.Microsecond}, func(r *simrack.Rack, _ int64, f wire.Frame) {
			kind, reply := commandIn(f)
			switch {
			case p.Load() == 0 || f.Stage != wire.Arriving:
			case kind == control.KindFence && reply && f.ToSwitch && !crashed.Load():
				if fenced[f.Host] = true; len(fenced) == 2 {
					crashed.Store(true)
					r.CrashGatekeeper()
				}
			case kind == control.KindReclaim && !reply && !f.ToSwitch && !equal.Load():
				a, thereA := r.MemoryServer("m1").ReadRegion(dsmpacket.RegionID(p.Load()), size)
				b, thereB := r.MemoryServer("m2").ReadRegion(dsmpacket.RegionID(p.Load()), size)
				if equal.Store(true); !thereA || !thereB || !bytes.Equal(a, b) {
					t.Errorf("%s misses a write: the copies hold %d and %d when the region is handed on", misses, a[0], b[0])
				}
			}
		}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
			m, region := writer(t, ctx, r, size)
			if _, err := m.Write(ctx, region, make([]byte, size)); err != nil {
				t.Fatal(err)
			}
			r.Host(misses).Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
			writing, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
			defer cancel()
			if _, err := m.Write(writing, region, bytes.Repeat([]byte{1}, size)); fault.CodeOf(err) != fault.Deadline {
				t.Fatalf("a write that one copy misses: %v", err)
			}
			if err := r.CrashBlade("c1"); err != nil {
				t.Fatal(err)
			}
			r.Host(misses).Impair(wire.Impairment{Delay: 100 * time.Microsecond}, wire.Impairment{Delay: 100 * time.Microsecond})
			p.Store(uint64(region.ID()))
			until := func(what string, done *atomic.Bool) {
				for range 1000 {
					if done.Load() {
						return
					}
					<-time.After(10 * time.Millisecond) // virtual
				}
				t.Fatal(what)
			}
			until("the copies do not answer the fence", &crashed)
			if err := r.RestartGatekeeper(ctx); err != nil {
				t.Fatal(err)
			}
			until("the region is not handed on", &equal)
			untilMirrored(t, ctx, r)
		})
	}
}

// TestCopiesThatDisagree: a client that gets other answers of the second copy than of the
// first one says so, the blades tell the Gatekeeper, and the second copy is filled anew.
func TestCopiesThatDisagree(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		n, err := r.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		m := n.Memory()
		p, err := m.Alloc(ctx, 64)
		if err != nil {
			t.Fatal(err)
		}
		// The second copy takes the client's next requests for others, which it has had.
		incarnation := incarnationOf(t, r, n.Address())
		r.Host("m1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
		for id := uint64(2); id < 40; id++ {
			h := dsmpacket.Header{Kind: dsmpacket.Request, Request: id, Floor: 1, Incarnation: incarnation, Length: 64}
			to := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, p.ID()+dsmpacket.RegionID(id)<<dsmpacket.GenerationBits).With(dsmpacket.OpAlloc)
			r.Host("c1").SendRaw(netip.AddrPortFrom(n.Address(), rackaddr.PortDSM), netip.AddrPortFrom(to.Addr(), rackaddr.PortDSM), h.Append(nil))
		}
		<-time.After(time.Millisecond) // virtual: they have arrived
		r.Host("m1").Impair(wire.Impairment{}, wire.Impairment{})
		if _, err := m.Write(ctx, p, []byte("said")); err != nil {
			t.Errorf("the first copy's word counts: %v", err)
		}
		var why string
		waitFor(t, ctx, r, "the second copy is dropped", func(s gatekeeper.MachineState) bool {
			if s.Why != "" {
				why = s.Why
			}
			return s.Epoch > 2
		})
		untilMirrored(t, ctx, r)
		if a, b := r.MemoryServer("m1").Used(), r.MemoryServer("m2").Used(); a != 64 || b != 64 {
			t.Errorf("%d and %d bytes, want 64 (%s)", a, b, why)
		}
		if err := r.CrashBlade("m1"); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4)
		if _, err := m.Read(ctx, p, got); err != nil || string(got) != "said" {
			t.Errorf("%q, %v", got, err)
		}
	})
}
