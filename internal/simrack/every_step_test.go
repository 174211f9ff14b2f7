package simrack_test

import (
	"context"
	"encoding/hex"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var flagStep = flag.Int("steps.from", 0, "TestGatekeeperDies_AtEveryStep begins with the death before this step")

// TestGatekeeperDies_AtEveryStep plays one scene again and again, in which the Gatekeeper has everything to do that it ever has. Each time it dies before another one of
// its steps: a commit to its log, rules, an operation on registers, a packet. In every third run the next one dies, too, some steps later. Whenever that is, the scene goes
// on with the next Gatekeeper, and in the end nothing is left.
func TestGatekeeperDies_AtEveryStep(t *testing.T) {
	stride := 1
	if testing.Short() {
		stride = 40
	}
	for at := *flagStep; ; at += stride {
		died, next := false, 0
		if at%3 == 2 {
			next = 1 + at%23
		}
		ok := t.Run(fmt.Sprintf("at=%d,next=%d", at, next), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { died = playSteps(t, at, next) })
		})
		if !ok || !died {
			if at < leastSteps && !t.Failed() {
				t.Errorf("the scene has %d steps, too few to show anything", at)
			}
			return
		}
	}
}

// TestSwitchLost_AtEveryStep plays the scene while the switch's machine loses its registers, each time at another step of the Gatekeeper: what it was reading, ending or writing
// begins anew when they are rebuilt, and in the end nothing is left.
func TestSwitchLost_AtEveryStep(t *testing.T) {
	stride := 5
	if testing.Short() {
		stride = 70
	}
	for at := *flagStep; ; at += stride {
		lost := false
		ok := t.Run(fmt.Sprintf("at=%d", at), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) { lost = playSteps(t, at, losesSwitch) })
		})
		if !ok || !lost {
			if at < leastSteps && !t.Failed() {
				t.Errorf("the scene has %d steps, too few to show anything", at)
			}
			return
		}
	}
}

// losesSwitch has the switch lose its registers, instead of the Gatekeeper its life.
const losesSwitch = -1

// leastSteps is fewer than the scene has.
const leastSteps = 500

// mortal is a Gatekeeper that dies before one of its steps, or whose switch loses its registers then.
type mortal struct {
	rack *simrack.Rack
	disk wal.Disk

	mu       sync.Mutex
	armed    bool
	left     int  // steps until it dies
	next     int  // steps of the next one until that dies, 0 if it lives; or losesSwitch
	dead     bool // it says nothing, and logs nothing
	deaths   int
	abandons context.CancelFunc // ends the wait for a Gatekeeper that starts
	died     chan struct{}
}

// lives is asked before each step.
func (m *mortal) lives() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.dead || !m.armed:
		return !m.dead
	case m.left > 0:
		m.left--
		return true
	}
	m.armed = false
	m.deaths++
	if m.next == losesSwitch {
		go m.loses()
		return true
	}
	m.dead = true
	m.disk.Crash()
	m.abandons()
	select {
	case m.died <- struct{}{}:
	default: // it is being started
	}
	return false
}

// loses has the switch's machine come back with empty registers.
func (m *mortal) loses() {
	err := m.rack.LoseSwitch()
	if err == nil {
		err = m.rack.BootSwitch()
	}
	if err != nil {
		panic(err)
	}
}

// arm has the Gatekeeper die before the step that follows so many.
func (m *mortal) arm(steps, next int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed, m.left, m.next = true, steps, next
}

// disarm has it live, and tells how many have died.
func (m *mortal) disarm() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.armed = false
	return m.deaths
}

// revives starts the next Gatekeeper whenever one has died.
func (m *mortal) revives(t *testing.T) {
	for {
		select {
		case <-m.died:
		case <-t.Context().Done():
			return
		}
		for again := true; again; {
			m.rack.CrashGatekeeper()
			ctx, cancel := context.WithCancel(t.Context())
			m.mu.Lock()
			m.dead, m.abandons = false, cancel
			m.armed, m.left, m.next = m.next > 0, m.next, 0
			m.mu.Unlock()
			err := m.rack.RestartGatekeeper(ctx)
			cancel()
			m.mu.Lock()
			again = m.dead
			m.mu.Unlock()
			if err != nil && !again && t.Context().Err() == nil {
				t.Errorf("it does not start again: %v", err)
			}
		}
	}
}

// steps is the scene.
type steps struct {
	*shelf
	keeper *mortal
}

// playSteps plays the scene once, and tells whether it came to the step in question.
func playSteps(t *testing.T, at, next int) bool {
	k := &mortal{died: make(chan struct{}, 1), abandons: func() {}}
	k.disk.Pause = func() time.Duration { k.lives(); return 0 }
	s := &steps{&shelf{T: t, up: make(chan struct{}, 2)}, k}
	var err error
	s.Rack, err = simrack.Start(t.Context(), simrack.Config{
		Blades: mirroredThesis(), Machines: [][]string{{"m1", "m2"}}, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
		Disk: &k.disk, Sends: k.lives, Programs: map[string]simrack.Program{"server": s.serve}, ShareExports: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	k.rack = s.Rack
	go k.revives(t)
	k.arm(at, next)
	s.play()
	deaths := k.disarm()
	s.nothingLeft()
	return deaths > 0
}

// operatorPauses are those of somebody who asks again.
var operatorPauses = pace.Pauses{First: 10 * time.Millisecond, Most: 500 * time.Millisecond}

// operates has an operator ask for something until it is done: a Gatekeeper that dies does not answer.
func (s *steps) operates(what string, ask func(context.Context, *gatekeeper.Gatekeeper) error) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), time.Minute) // virtual
	defer cancel()
	for pause := time.Duration(0); ; {
		err := error(fault.New(fault.Unavailable, what, "there is no Gatekeeper"))
		if g := s.Gatekeeper(); g != nil {
			err = ask(ctx, g)
		}
		if err == nil {
			return
		}
		pause = operatorPauses.Next(pause)
		select {
		case <-time.After(pause): // virtual
		case <-ctx.Done():
			s.Fatalf("%s: %v", what, err)
		}
	}
}

// until waits until what the Gatekeeper knows is as it should be.
func (s *steps) until(what string, is func(context.Context, *gatekeeper.Gatekeeper) string) {
	s.Helper()
	s.operates(what, func(ctx context.Context, g *gatekeeper.Gatekeeper) error {
		if why := is(ctx, g); why != "" {
			return fault.New(fault.Unavailable, what, "%s", why)
		}
		return nil
	})
}

// must ends the test if something has failed.
func (s *steps) must(what string, err error) {
	s.Helper()
	if err != nil {
		s.Fatalf("%s: %v", what, err)
	}
}

// awaits waits for the service's next incarnation.
func (s *steps) awaits(what string) {
	s.Helper()
	select {
	case <-s.up:
	case <-time.After(time.Minute): // virtual
		s.Fatalf("%s: the service does not come up", what)
	}
}

// at is where the service runs.
func (s *steps) at() (blade string) {
	s.Helper()
	s.until("where the service is", func(ctx context.Context, g *gatekeeper.Gatekeeper) string {
		all, err := g.Deployments(ctx)
		if err != nil || len(all) != 1 || len(all[0].Instances) != 1 || all[0].Instances[0].Blade == "" {
			return fmt.Sprint(all, err)
		}
		blade = all[0].Instances[0].Blade
		return ""
	})
	return blade
}

// play is everything that a Gatekeeper has to do.
func (s *steps) play() {
	ctx := s.Context()
	spec := shelfSpec(1, false)
	spec.Programs[0].Blades = []string{"s1", "s2"}
	s.operates("deploy", func(ctx context.Context, g *gatekeeper.Gatekeeper) error { return g.Deploy(ctx, spec) })
	s.awaits("deploy")
	var err error
	s.client, err = s.Join(ctx, "c1", "client")
	s.must("join", err)

	s.lends()
	ref, lease := s.shares(s.client, s.server)
	s.must("the reader", s.readsBy(s.server, lease))
	s.cancels()
	s.must("kill", s.KillSoon(s.at(), "app/p/1"))
	s.awaits("the program was killed")
	s.must("the reader's next incarnation", s.readsBy(s.server, lease))
	s.dies()
	s.loses()
	s.must("end the lease", ref.Unshare(ctx))
	s.must("free", ref.Free(ctx))

	was := s.at()
	s.operates("drain", func(ctx context.Context, g *gatekeeper.Gatekeeper) error { return g.Drain(ctx, was, "a test") })
	s.awaits("drain")
	s.lends()
	s.operates("return to service", func(ctx context.Context, g *gatekeeper.Gatekeeper) error { return g.ReturnToService(ctx, was) })
	s.must("leave", s.client.Close(ctx))
	s.operates("undeploy", func(ctx context.Context, g *gatekeeper.Gatekeeper) error {
		if err := g.Undeploy(ctx, "app"); fault.CodeOf(err) != fault.NotFound {
			return err
		}
		return nil
	})
}

// lends calls the service by reference. A batch of region slots is for more than it allocates here.
func (s *steps) lends() {
	m := s.client.Memory()
	p, err := m.Alloc(s.Context(), 64)
	s.must("alloc", err)
	_, err = m.Write(s.Context(), p, []byte("contents"))
	s.must("write", err)
	s.handle = func(ctx context.Context, _ *dsm.Pointer) error {
		s.reads(ctx, p, "contents")
		return nil
	}
	got, err := arrays.NewArraysClient(s.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(s.Context(), rpc.GlobalPointer(p), 8)
	s.must("call", err)
	result, err := rpc.PointerOf(got)
	s.must("call", err)
	for _, p := range []dsm.Pointer{p, result} {
		s.must("free", m.Free(s.Context(), p))
	}
}

// cancels has an operator cancel a call that would never end.
func (s *steps) cancels() {
	s.handle = func(ctx context.Context, _ *dsm.Pointer) error {
		<-ctx.Done()
		return ctx.Err()
	}
	ended := make(chan error, 1)
	go func() {
		_, err := arrays.NewArraysClient(s.client.Client("Shelf", rpc.WithPolicy(rpc.PolicyRecover))).Echo(s.Context(), []byte("x"))
		ended <- err
	}()
	s.operates("cancel", func(ctx context.Context, g *gatekeeper.Gatekeeper) error {
		calls, _, err := g.Calls(ctx, gatekeeper.CallQuery{Limit: 10})
		at := slices.IndexFunc(calls, func(k gatekeeper.CallState) bool { return k.Method == "echo" }) // others may have ended since they were told of
		switch {
		case err != nil:
			return err
		case len(ended) > 0: // the Gatekeeper that has done it has died
			return nil
		case at < 0:
			return fault.New(fault.Unavailable, "cancel", "nobody has told of the call yet")
		}
		id, err := hex.DecodeString(calls[at].Call)
		if err != nil {
			return err
		}
		return g.CancelCall(ctx, rpcpacket.ID(id))
	})
	if err := <-ended; rpc.CodeOf(err) != rpc.Canceled {
		s.Errorf("a call that was cancelled ends with %v", err)
	}
}

// dies has a program die for good that has regions, and shares one of them.
func (s *steps) dies() {
	shared := make(chan *bifrost.Lease, 1)
	other, err := s.Rack.Run("s2", "other", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("other"), rpc.WithLogger(slog.New(slog.DiscardHandler)))
		if err != nil {
			s.Errorf("join: %v", err)
			return err
		}
		for range 3 {
			if _, err := n.Memory().Alloc(ctx, 4096); err != nil {
				s.Errorf("alloc: %v", err)
			}
		}
		l, err := rpc.RefOf([]byte("contents")).Share(ctx, n, s.client.Address())
		if err != nil {
			s.Errorf("share: %v", err)
		}
		shared <- l
		<-ctx.Done()
		return nil
	})
	s.must("run", err)
	s.must("the other program's reader", s.readsBy(s.client, <-shared))
	other.Kill()
	<-other.Done()
	s.until("a dead node's end", func(ctx context.Context, g *gatekeeper.Gatekeeper) string {
		all, err := g.Snapshot(ctx)
		if err == nil {
			err = frees(ctx, g, &all)
		}
		if err != nil || slices.ContainsFunc(all.Nodes, func(n gatekeeper.NodeState) bool { return n.Name == "other" }) || len(all.Regions) != 1 {
			return fmt.Sprintf("nodes %+v, regions %+v, %v", all.Nodes, all.Regions, err)
		}
		return ""
	})
}

// frees has an operator free what is frozen: the program may have died without an account, after the switch had lost its registers.
func frees(ctx context.Context, g *gatekeeper.Gatekeeper, all *gatekeeper.Snapshot) error {
	for i := range all.Regions {
		if r := &all.Regions[i]; r.Frozen {
			if _, err := g.FreeRegion(ctx, dsm.Pointer(netip.MustParsePrefix(r.Region).Addr().As16())); err != nil {
				return err
			}
		}
	}
	return nil
}

// loses has a memory blade lose its copy, which is filled again.
func (s *steps) loses() {
	s.must("crash", s.CrashBlade("m2"))
	s.must("boot", s.BootBlade("m2"))
	s.until("a copy is filled", func(ctx context.Context, g *gatekeeper.Gatekeeper) string {
		all, err := g.Snapshot(ctx)
		if err != nil || len(all.Machines) != 1 || all.Machines[0].InService != 2 || all.Machines[0].Why != "" || all.Machines[0].Incarnations[1] == 1 {
			return fmt.Sprintf("%+v, %v", all.Machines, err)
		}
		return ""
	})
}

// nothingLeft waits until the rack is as it was before the scene: the switch's tables and registers, memory, the log.
func (s *steps) nothingLeft() {
	s.Helper()
	s.until("the end", func(ctx context.Context, g *gatekeeper.Gatekeeper) string {
		all, err := g.Snapshot(ctx)
		if err != nil || len(all.Nodes)+len(all.Services)+len(all.Regions)+len(all.Calls) > 0 {
			return fmt.Sprintf("nodes %+v, services %+v, regions %+v, calls %+v, %v", all.Nodes, all.Services, all.Regions, all.Calls, err)
		}
		o, err := g.Overview(ctx)
		if err != nil || len(o.Leases)+len(o.Recoveries)+o.CallCount+o.RegionCount > 0 {
			return fmt.Sprintf("leases %v, recoveries %+v, %d open slots, %d regions, %v", o.Leases, o.Recoveries, o.CallCount, o.RegionCount, err)
		}
		if left := s.recordsLeft(); left != "" {
			return left
		}
		for _, name := range []string{"m1", "m2"} {
			m := s.MemoryServer(name)
			if used, ledgers, undo := m.Used(), m.Ledgers().Count, m.Metrics().Undo.Executions; used > 0 || ledgers > 0 || undo > 0 {
				return fmt.Sprintf("%s has %d bytes, %d ledgers, undo of %d executions", name, used, ledgers, undo)
			}
		}
		return ""
	})
	s.operates("the switch's tables", func(ctx context.Context, g *gatekeeper.Gatekeeper) error {
		repaired, err := g.Reconcile(ctx)
		if repaired > 0 {
			s.Errorf("%d entries of the switch's tables are not what they should be", repaired)
		}
		return err
	})
	identities, err := s.Identities()
	if err != nil || len(identities) > 0 {
		s.Errorf("identities of nodes are left: %v, %v", maps.Keys(identities), err)
	}
}

// recordsLeft tells what the log has that nobody asks for any more.
func (s *steps) recordsLeft() string {
	var left []string
	for r, err := range s.Log().Records() {
		switch {
		case err != nil:
			return err.Error()
		case r.Kind == wal.KindBlade || r.Kind == wal.KindMirror || r.Kind == wal.KindRack || r.Kind == wal.KindBatch && r.Callee == (wal.Node{}):
		default:
			left = append(left, r.Kind.String())
		}
	}
	return strings.Join(left, ", ")
}
