package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// load is a node that writes, allocates and frees all the time, and knows what must be
// there.
type load struct {
	t    *testing.T
	m    *dsm.Client
	want map[dsm.Pointer][]byte
	stop chan struct{}
	once sync.Once
	done sync.WaitGroup
}

func startLoad(t *testing.T, ctx context.Context, r *simrack.Rack) *load {
	t.Helper()
	n, err := r.Join(ctx, "c1", "writer")
	if err != nil {
		t.Fatal(err)
	}
	l := &load{t: t, m: n.Memory(), want: map[dsm.Pointer][]byte{}, stop: make(chan struct{})}
	for _, size := range []uint64{100, 5000, 70_000, 3 << 20} {
		p := l.alloc(ctx, size)
		b := bytes.Repeat([]byte{1}, int(size))
		if _, err := l.m.Write(ctx, p, b); err != nil {
			t.Fatal(err)
		}
		copy(l.want[p], b)
	}
	t.Cleanup(func() { // after a failure, too
		l.finish()
		l.done.Wait()
	})
	l.done.Go(func() {
		for round := 1; ; round++ {
			select {
			case <-l.stop:
				return
			default:
			}
			l.write(ctx, round)
			if round%5 == 0 {
				p := l.alloc(ctx, 3000)
				l.write(ctx, round+100)
				if round%10 == 0 {
					if err := l.m.Free(ctx, p); err != nil {
						t.Errorf("free: %v", err)
					}
					delete(l.want, p)
				}
			}
			<-time.After(time.Millisecond) // virtual
		}
	})
	return l
}

func (l *load) alloc(ctx context.Context, size uint64) dsm.Pointer {
	p, err := l.m.Alloc(ctx, size)
	if err != nil {
		l.t.Errorf("alloc: %v", err)
	}
	l.want[p] = make([]byte, size)
	return p
}

// write writes somewhere in every region.
func (l *load) write(ctx context.Context, round int) {
	for _, p := range slices.SortedFunc(maps.Keys(l.want), comparePointers) {
		b := l.want[p]
		at := round * 7919 % len(b)
		data := bytes.Repeat([]byte{byte(round)}, min(len(b)-at, 3000))
		if _, err := l.m.Write(ctx, p.Add(int64(at)), data); err != nil {
			l.t.Errorf("write: %v", err)
			return
		}
		copy(b[at:], data)
	}
}

func comparePointers(a, b dsm.Pointer) int { return bytes.Compare(a[:], b[:]) }

// end stops the load and compares what is there.
func (l *load) end(ctx context.Context) {
	l.t.Helper()
	l.finish()
	l.done.Wait()
	l.check(ctx)
}

func (l *load) finish() { l.once.Do(func() { close(l.stop) }) }

func (l *load) check(ctx context.Context) {
	l.t.Helper()
	for p, want := range l.want {
		got := make([]byte, len(want))
		if _, err := l.m.Read(ctx, p, got); err != nil || !bytes.Equal(got, want) {
			l.t.Errorf("%v does not hold what was written: %v", p, err)
		}
	}
}

// waitFor waits until the machine is as wanted.
func waitFor(t *testing.T, ctx context.Context, r *simrack.Rack, what string, ok func(gatekeeper.MachineState) bool) {
	t.Helper()
	var last gatekeeper.MachineState
	for range 1000 {
		if s, err := r.Gatekeeper().Snapshot(ctx); err == nil && len(s.Machines) == 1 {
			if last = s.Machines[0]; ok(last) {
				return
			}
		}
		<-time.After(50 * time.Millisecond) // virtual
	}
	t.Fatalf("%s: %+v", what, last)
}

func alone(m gatekeeper.MachineState) bool    { return len(m.Copies) == 1 }
func mirrored(m gatekeeper.MachineState) bool { return len(m.Copies) == 2 }

// TestFillUnderLoad: blades of a pair die and come back empty, one after the other, while a
// client writes. Each is filled again, so that the next loss costs nothing.
func TestFillUnderLoad(t *testing.T) {
	for _, impair := range []wire.Impairment{{}, {Loss: 0.02, Duplicate: 0.02, Jitter: time.Millisecond}} {
		onPair(t, impair, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
			l := startLoad(t, ctx, r)
			deaths := []string{"m2", "m1", "m2", "m1"}
			if testing.Short() { // with the race detector
				deaths = deaths[:2]
			}
			for _, dies := range deaths {
				if err := r.CrashBlade(dies); err != nil {
					t.Fatal(err)
				}
				waitFor(t, ctx, r, dies+" dies", alone)
				if err := r.BootBlade(dies); err != nil {
					t.Fatal(err)
				}
				waitFor(t, ctx, r, dies+" is filled", mirrored)
			}
			l.end(ctx)
		})
	}
}

// onThree runs f on a rack with a pair of memory blades and one that is a machine of its own.
func onThree(t *testing.T, f func(t *testing.T, ctx context.Context, r *simrack.Rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{
				{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory}, {Name: "m3", Kind: control.Memory},
			},
			Machines: [][]string{{"m1", "m2"}}, Disk: new(wal.Disk),
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		f(t, ctx, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// machineOne waits until machine 1 has copies on just these blades.
func machineOne(t *testing.T, ctx context.Context, r *simrack.Rack, blades ...string) {
	t.Helper()
	var last []gatekeeper.MachineState
	for range 1000 {
		if s, err := r.Gatekeeper().Snapshot(ctx); err == nil {
			last = s.Machines
			for _, m := range last {
				if m.Machine == 1 && slices.Equal(m.Copies, blades) && m.Filling == nil {
					return
				}
			}
		}
		<-time.After(50 * time.Millisecond) // virtual
	}
	t.Fatalf("machine 1 is not on %v: %+v", blades, last)
}

// TestOperators: people move the copies of a machine from blade to blade, while a client
// writes; the Gatekeeper restarts in between.
func TestOperators(t *testing.T) {
	if testing.Short() {
		t.Skip("TestFillUnderLoad moves copies under the race detector, too")
	}
	onThree(t, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(r.Gatekeeper().Drain(ctx, "m3", "it is to serve nothing"))
		l := startLoad(t, ctx, r)
		if err := r.Gatekeeper().Mirror(ctx, "m1", "m3"); !errors.Is(err, gatekeeper.ErrThirdBlade) {
			t.Errorf("a third blade for a pair: %v", err)
		}
		must(r.Gatekeeper().Unmirror(ctx, "m2", "test"))
		machineOne(t, ctx, r, "m1")
		must(r.Gatekeeper().ReturnToService(ctx, "m3"))
		must(r.Gatekeeper().Mirror(ctx, "m1", "m3"))
		r.CrashGatekeeper()
		must(r.RestartGatekeeper(ctx))
		machineOne(t, ctx, r, "m1", "m3")
		must(r.Gatekeeper().Drain(ctx, "m1", "test"))
		machineOne(t, ctx, r, "m3")
		must(r.CrashBlade("m1")) // nobody needs it
		must(r.Gatekeeper().Mirror(ctx, "m3", "m2"))
		machineOne(t, ctx, r, "m3", "m2")
		must(r.Gatekeeper().Drain(ctx, "m3", "test"))
		machineOne(t, ctx, r, "m2")
		must(r.Gatekeeper().ReturnToService(ctx, "m3"))
		machineOne(t, ctx, r, "m2", "m3")
		must(r.CrashBlade("m2"))
		machineOne(t, ctx, r, "m3")
		l.end(ctx)
		if used := r.MemoryServer("m3").Used(); used == 0 {
			t.Error("nothing is on m3")
		}
	})
}

// TestDrainOntoSpare: a blade that is a machine of its own is drained: a blade that serves
// nothing is filled and takes its place.
func TestDrainOntoSpare(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		r, err := simrack.Start(ctx, simrack.Config{
			Blades: []simrack.Blade{
				{Name: "c1", Kind: control.Compute}, {Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory, Capacity: 1 << 20},
			},
			Disk: new(wal.Disk), Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
		})
		if err != nil {
			t.Fatal(err)
		}
		n, err := r.Join(ctx, "c1", "client")
		if err != nil {
			t.Fatal(err)
		}
		p, err := n.Memory().Alloc(ctx, 100)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := n.Memory().Write(ctx, p, []byte("kept")); err != nil {
			t.Fatal(err)
		}
		from, to := "m1", "m2"
		if r.MemoryServer("m2").Used() > 0 {
			from, to = to, from
		}
		<-time.After(2 * time.Second) // virtual: heartbeats tell what is used
		if err := r.Gatekeeper().Drain(ctx, from, "test"); err != nil {
			t.Fatal(err)
		}
		waitFor(t, ctx, r, "drain", func(m gatekeeper.MachineState) bool { return slices.Equal(m.Copies, []string{to}) && m.Filling == nil })
		b := make([]byte, 4)
		if _, err := n.Memory().Read(ctx, p, b); err != nil || string(b) != "kept" || r.MemoryServer(from).Used() != 0 {
			t.Errorf("%q, %v; %d bytes are left on the drained blade", b, err, r.MemoryServer(from).Used())
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}
