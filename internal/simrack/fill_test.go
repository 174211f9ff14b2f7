package simrack_test

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// load is a node that writes, allocates and frees all the time, and knows what must be
// there.
type load struct {
	t    *testing.T
	m    *dsm.Client
	want map[dsm.Pointer][]byte
	stop chan struct{}
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
	close(l.stop)
	l.done.Wait()
	l.check(ctx)
}

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
			for _, dies := range []string{"m2", "m1", "m2", "m1"} {
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
