package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestFailoverIsTold: whoever waits for a lost copy hears of the new epoch at once, and not
// when it sends again, which may take a second.
func TestFailoverIsTold(t *testing.T) {
	for _, dies := range []string{"m1", "m2"} {
		onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
			m, p := writer(t, ctx, r, 4096)
			var detected time.Time
			events := r.Gatekeeper().Subscribe(ctx)
			if err := r.CrashBlade(dies); err != nil {
				t.Fatal(err)
			}
			// A write needs both copies, so it waits until the loss is known.
			if _, err := m.Write(ctx, p, make([]byte, 4096)); err != nil {
				t.Fatal(err)
			}
			answered := time.Now()
			for detected.IsZero() {
				if e := <-events; e.Kind == gatekeeper.BladeFailed {
					detected = e.Time
				}
			}
			if took := answered.Sub(detected); took > 20*time.Millisecond {
				t.Errorf("%s dies: the first right answer came %s after the loss was known", dies, took)
			}
		})
	}
}

// TestBothCopiesLost: when the second of two copies is lost before the first one is back, the
// machine's regions are unavailable, and nothing else is answered; a machine that begins anew
// works.
func TestBothCopiesLost(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		m, p := writer(t, ctx, r, 4096)
		for _, dies := range []string{"m1", "m2"} {
			if err := r.CrashBlade(dies); err != nil {
				t.Fatal(err)
			}
			<-time.After(5 * time.Second) // virtual: it is known
		}
		if _, err := m.Read(ctx, p, make([]byte, 8)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("read without any copy: %v", err)
		}
		if _, err := m.Write(ctx, p, make([]byte, 8)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("write without any copy: %v", err)
		}
		// m1 is no copy: what it has does not count, and it has nothing.
		if err := r.BootBlade("m1"); err != nil {
			t.Fatal(err)
		}
		<-time.After(5 * time.Second) // virtual
		if _, err := m.Read(ctx, p, make([]byte, 8)); fault.CodeOf(err) != fault.Unavailable {
			t.Errorf("read while the last copy may come back: %v", err)
		}
		s, err := r.Gatekeeper().Snapshot(ctx)
		if err != nil || s.Machines[0].InService != 0 {
			t.Errorf("%+v, %v", s.Machines, err)
		}
		if err := r.BootBlade("m2"); err != nil {
			t.Fatal(err)
		}
		untilMirrored(t, ctx, r)
		if _, err := m.Read(ctx, p, make([]byte, 8)); err == nil {
			t.Error("a region is there whose copies are lost")
		}
		<-time.After(3 * time.Second) // virtual: heartbeats tell the nodes that it is there
		if q, err := m.Alloc(ctx, 64); err != nil {
			t.Errorf("alloc at a machine that has begun anew: %v", err)
		} else if _, err := m.Write(ctx, q, make([]byte, 64)); err != nil {
			t.Error(err)
		}
	})
}

// TestPortDown: a blade whose port the switch reports as down is given up long before its
// heartbeats are missed; one whose port is up again at once is not.
func TestPortDown(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		m, p := writer(t, ctx, r, 4096)
		link := func(up bool) {
			r.Host("m1").SetLink(up)
			if err := r.Switch().SetUp(r.Host("m1").Port(), up); err != nil {
				t.Fatal(err)
			}
		}
		link(false)
		<-time.After(20 * time.Millisecond) // virtual
		link(true)
		<-time.After(5 * time.Second) // virtual
		if s, err := r.Gatekeeper().Snapshot(ctx); err != nil || len(s.Machines[0].Copies) != 2 {
			t.Fatalf("after the port was down for a moment: %+v, %v", s.Machines, err)
		}
		start := time.Now()
		link(false)
		if _, err := m.Write(ctx, p, make([]byte, 4096)); err != nil { // needs both copies, or one alone
			t.Fatal(err)
		}
		if took := time.Since(start); took > 100*time.Millisecond { // heartbeats would take 2 to 3 s
			t.Errorf("the first right answer came %s after the port was down", took)
		}
		link(true)
		untilMirrored(t, ctx, r)
	})
}

// TestDaemonKilled: a memory blade whose daemon is killed is given up at once, and nothing is
// lost with it; one that is alone is, until the daemon is back.
func TestDaemonKilled(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		m, p := writer(t, ctx, r, 4096)
		for i, dies := range []string{"m1", "m2", "m1"} {
			start := time.Now()
			if err := r.KillDaemon(dies); err != nil {
				t.Fatal(err)
			}
			want := bytes.Repeat([]byte{byte(i + 1)}, 4096)
			if _, err := m.Write(ctx, p, want); err != nil { // needs both copies, or one alone
				t.Fatal(err)
			}
			got := make([]byte, len(want))
			if _, err := m.Read(ctx, p, got); err != nil || !bytes.Equal(got, want) {
				t.Fatalf("after the death of %s's daemon: %v", dies, err)
			}
			if took := time.Since(start); took > 20*time.Millisecond { // heartbeats would take 2 to 3 s
				t.Errorf("the first right answers came %s after the daemon of %s was killed", took, dies)
			}
			if err := r.BootBlade(dies); err != nil {
				t.Fatal(err)
			}
			untilMirrored(t, ctx, r)
		}
	})
}

// TestSilentCopyIsKept: a copy that is silent for a while is not given up for one that has died
// meanwhile, though nobody has noticed that death yet: the silent one has everything.
func TestSilentCopyIsKept(t *testing.T) {
	for _, silent := range []string{"m1", "m2"} {
		dies := map[string]string{"m1": "m2", "m2": "m1"}[silent]
		for _, after := range []time.Duration{time.Millisecond, 700 * time.Millisecond, 1400 * time.Millisecond} {
			for _, back := range []time.Duration{time.Second, 5 * time.Second} {
				t.Run(fmt.Sprintf("%s is silent, %s dies after %s, the former is heard %s later", silent, dies, after, back), func(t *testing.T) {
					onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
						m, p := writer(t, ctx, r, 4096)
						want := bytes.Repeat([]byte("settled "), 512)
						if _, err := m.Write(ctx, p, want); err != nil {
							t.Fatal(err)
						}
						r.Host(silent).SetLink(false)
						<-time.After(after) // virtual
						if err := r.CrashBlade(dies); err != nil {
							t.Fatal(err)
						}
						<-time.After(back) // virtual
						r.Host(silent).SetLink(true)
						<-time.After(5 * time.Second) // virtual
						got := make([]byte, len(want))
						if _, err := m.Read(ctx, p, got); err != nil || !bytes.Equal(got, want) {
							t.Errorf("the machine has lost what the silent copy holds: %v", err)
						}
						if err := r.BootBlade(dies); err != nil {
							t.Fatal(err)
						}
						untilMirrored(t, ctx, r)
						if _, err := m.Read(ctx, p, got); err != nil || !bytes.Equal(got, want) {
							t.Errorf("with two copies again: %v", err)
						}
					})
				})
			}
		}
	}
}

// TestFailByHand: a blade that an operator fails is out of service when that is answered, if the
// machine's other blade is heard. If that one is dead, and nobody has noticed, the blade goes
// on with what is the only copy by now, says so, and goes when there are two again.
func TestFailByHand(t *testing.T) {
	for _, tc := range []struct {
		name        string
		dead        bool // m2, unnoticed
		again       bool // the operator insists
		back, early bool // return m1, before m2 is back
		copies      string
	}{
		{name: "both are heard", copies: "m2"},
		{name: "both are heard, m1 returns", back: true, copies: "m1 m2"},
		{name: "m2 is dead, and comes back", dead: true, copies: "m2"},
		{name: "m2 is dead, and comes back, m1 returns then", dead: true, back: true, copies: "m1 m2"},
		{name: "m2 is dead, m1 returns before it is back", dead: true, early: true, copies: "m1 m2"},
		{name: "m2 is dead, and m1 is failed again", dead: true, again: true, back: true, copies: "m1 m2"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
				g := r.Gatekeeper()
				do := func(err error) {
					t.Helper()
					if err != nil {
						t.Fatal(err)
					}
				}
				is := func(out bool) {
					t.Helper()
					s, err := g.Snapshot(ctx)
					do(err)
					i := slices.IndexFunc(s.Blades, func(b gatekeeper.BladeState) bool { return b.Name == "m1" })
					if b := s.Blades[i]; b.Status != gatekeeper.StatusFailed || b.Cause != "pulled" || (b.Port == 0) != out {
						t.Errorf("m1 is %+v; out of service: want %t", b, out)
					}
				}
				n, err := r.Join(ctx, "c1", "client")
				do(err)
				m := n.Memory()
				p, err := m.Alloc(ctx, 4096)
				do(err)
				want := bytes.Repeat([]byte("settled "), 512)
				_, err = m.Write(ctx, p, want)
				do(err)
				reads := func() {
					t.Helper()
					got := make([]byte, len(want))
					if _, err := m.Read(ctx, p, got); err != nil || !bytes.Equal(got, want) {
						t.Errorf("what was settled is not there: %v", err)
					}
				}
				if tc.dead {
					do(r.CrashBlade("m2"))
				}
				err = g.MarkFailed(ctx, "m1", "pulled")
				if tc.dead != errors.Is(err, gatekeeper.ErrAway) || !tc.dead && err != nil {
					t.Errorf("fail m1: %v", err)
				}
				is(!tc.dead)
				if tc.again {
					<-time.After(10 * time.Second) // virtual: m2's death is noticed
					do(g.MarkFailed(ctx, "m1", "pulled"))
					is(true)
					do(g.ReturnToService(ctx, "m1"))
					<-time.After(5 * time.Second) // virtual
				}
				reads()
				if tc.early {
					do(g.ReturnToService(ctx, "m1"))
				}
				if tc.dead {
					do(r.BootBlade("m2"))
				}
				<-time.After(30 * time.Second) // virtual: m2 is filled
				if !tc.early && !tc.again {
					is(true)
				}
				reads()
				if tc.back && !tc.again {
					do(g.ReturnToService(ctx, "m1"))
					<-time.After(30 * time.Second) // virtual
				}
				s, err := g.Snapshot(ctx)
				do(err)
				copies := slices.Sorted(slices.Values(s.Machines[0].Copies))
				if got := strings.Join(copies, " "); got != tc.copies {
					t.Errorf("copies %s, want %s", got, tc.copies)
				}
				reads()
			})
		})
	}
}

// TestFailByHand_BothAway: while both blades of a machine are away, the one that an operator
// has failed does not take the machine from the other one by being back first.
func TestFailByHand_BothAway(t *testing.T) {
	onPair(t, wire.Impairment{}, nil, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		m, p := writer(t, ctx, r, 64)
		r.Host("m1").SetLink(false)
		r.Host("m2").SetLink(false)
		<-time.After(10 * time.Second) // virtual: both are out of service
		if err := r.Gatekeeper().MarkFailed(ctx, "m1", "pulled"); err != nil {
			t.Fatal(err)
		}
		r.Host("m1").SetLink(true)
		<-time.After(10 * time.Second) // virtual
		r.Host("m2").SetLink(true)
		<-time.After(10 * time.Second) // virtual
		s, err := r.Gatekeeper().Snapshot(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Machines[0].Copies; !slices.Equal(got, []string{"m2"}) {
			t.Errorf("copies %s, want m2", got)
		}
		if _, err := m.Read(ctx, p, make([]byte, 64)); err != nil {
			t.Error(err)
		}
	})
}
