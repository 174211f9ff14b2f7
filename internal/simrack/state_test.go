package simrack_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// register is a service with state: Echo of "" counts, of "memory" as well, with a region of
// memory, of "X Y" calls X with "Y", of "? X Y" with policy none, and of "@ X Y" so by reference.
// Its snapshot takes three packets.
type register struct {
	service.Arrays
	node  *rpc.Node
	count uint64
	size  int    // of the snapshot, besides the count
	ahead func() // called before a nested call, if set
}

const (
	registerSize  = 1 << 17
	registerSpace = 8 << 20 // of its ledger: the same share is its state as of a default ledger one of 1 MiB
)

func (r *register) Echo(ctx context.Context, b []byte) ([]byte, error) {
	next, rest, calls := strings.Cut(string(b), " ")
	if next == "memory" {
		m := rpc.Memory(ctx)
		p, err := m.Alloc(ctx, 64)
		if err == nil {
			err = m.Free(ctx, p)
		}
		if err != nil {
			return nil, err
		}
	}
	switch {
	case next == "@":
		next, rest, _ = strings.Cut(rest, " ")
		return r.byReference(ctx, next, []byte(rest))
	case next == "?":
		next, rest, _ = strings.Cut(rest, " ")
		return arrays.NewArraysClient(r.node.Client(next, rpc.WithPolicy(rpc.PolicyNone))).Echo(ctx, []byte(rest))
	case calls:
		if r.ahead != nil {
			r.ahead()
		}
		return arrays.NewArraysClient(r.node.Client(next, rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte(rest))
	}
	r.count++
	return binary.BigEndian.AppendUint64(nil, r.count), nil
}

func (r *register) Snapshot() ([]byte, error) {
	return binary.BigEndian.AppendUint64(make([]byte, r.size), r.count), nil
}

func (r *register) Restore(b []byte) error {
	r.count = binary.BigEndian.Uint64(b[len(b)-8:])
	return nil
}

// registers is a rack with two of them, R and S, whose states are in ledgers.
type registers struct {
	*simrack.Rack
	mu     sync.Mutex
	nodes  map[string]*rpc.Node
	ahead  func()
	after  func() // called in F when its nested calls are answered, if set
	joined func() // called when F has an identity, and has not read its ledger yet, if set
	times  int    // how many nested calls F makes; 0 is 1
	size   int    // of snapshots; 0 is registerSize
	space  uint64 // for a ledger; 0 is registerSpace
	lone   bool   // the memory has one copy
}

// registerSpec deploys them.
func registerSpec() resources.Spec {
	spec := resources.Spec{Name: "app"}
	for _, name := range []string{"R", "S"} {
		spec.Programs = append(spec.Programs, resources.Program{
			Name: name, Args: []string{name}, Nodes: 1, Blades: []string{"s1", "s2"}, Services: []resources.ServiceSpec{{Name: name, Stateful: true}},
		})
	}
	return spec
}

// withRegisters runs a test on such a rack. Its ledgers are kept in a directory, if that is
// not "".
func withRegisters(t *testing.T, dir string, f func(ctx context.Context, r *registers)) {
	t.Helper()
	withStates(t, dir, 0, 0, f)
}

// withStates is withRegisters with states and ledgers of other sizes, unless these are 0.
func withStates(t *testing.T, dir string, size int, space uint64, f func(ctx context.Context, r *registers)) {
	t.Helper()
	withRack(t, dir, &registers{nodes: map[string]*rpc.Node{}, size: size, space: space}, f)
}

// withRack is withRegisters with other settings.
func withRack(t *testing.T, dir string, r *registers, f func(ctx context.Context, r *registers)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		var err error
		if r.Rack, err = simrack.Start(ctx, r.config(dir)); err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Deploy(ctx, registerSpec()); err != nil {
			t.Fatal(err)
		}
		f(ctx, r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

// config is of their rack, with ledgers in a directory.
func (r *registers) config(dir string) simrack.Config {
	cfg := simrack.Config{
		Blades: []simrack.Blade{
			{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "s2", Kind: control.Compute},
			{Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory},
		},
		Machines: [][]string{{"m1", "m2"}}, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait},
		Disk: new(wal.Disk), LedgerDir: dir, LedgerSpace: cmp.Or(r.space, registerSpace),
		Programs: map[string]simrack.Program{"R": r.program, "S": r.program, "F": r.front},
	}
	if r.lone {
		cfg.Machines, cfg.Blades = nil, cfg.Blades[:len(cfg.Blades)-1]
	}
	return cfg
}

// memory are the blades that have the rack's one memory machine.
func (r *registers) memory() []string {
	if r.lone {
		return []string{"m1"}
	}
	return []string{"m1", "m2"}
}

func (r *registers) program(ctx context.Context, j join.Joiner, s control.Start) error {
	node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name))
	if err != nil {
		return err
	}
	name := s.Args[0]
	h := &register{node: node, size: cmp.Or(r.size, registerSize), ahead: r.ahead}
	if err := node.Export(ctx, name, arrays.NewArraysProcessor(h), rpc.WithState(h)); err != nil {
		return err
	}
	r.mu.Lock()
	r.nodes[name] = node
	r.mu.Unlock()
	<-ctx.Done()
	return nil
}

// bladeOf is where the latest node of a program runs.
func (r *registers) bladeOf(program string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.Host("s2").Accepts(r.nodes[program].Address()) {
		return "s2"
	}
	return "s1"
}

// client joins a client, and waits until it can call R and S.
func (r *registers) client(ctx context.Context, t *testing.T) *rpc.Node {
	t.Helper()
	for {
		n, err := r.Join(ctx, "c1", "client")
		if err == nil {
			for _, service := range []string{"R", "S"} {
				for s, err := n.Service(ctx, service); err != nil || s.Health != rpc.Serving; s, err = n.Service(ctx, service) {
					<-time.After(10 * time.Millisecond)
				}
			}
			return n
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		<-time.After(100 * time.Millisecond)
	}
}

func echo(ctx context.Context, n *rpc.Node, service, what string) (uint64, error) {
	b, err := arrays.NewArraysClient(n.Client(service, rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte(what))
	if err != nil {
		return 0, err
	}
	return binary.BigEndian.Uint64(b), nil
}

// TestLargestState: a state may take half of its ledger, at its first change and at each of many later ones, whoever dies between; what is
// larger is refused each time, and changes nothing.
func TestLargestState(t *testing.T) {
	const space, most = 2 << 20, 1<<20 - 8 // what is kept has eight bytes more
	for _, size := range []int{space / 4, space * 3 / 7, most, most + 1, space * 3 / 4} {
		withStates(t, "", size, space, func(ctx context.Context, r *registers) {
			n := r.client(ctx, t)
			for call := range uint64(12) {
				v, err := echo(ctx, n, "R", "")
				if size > most {
					if rpc.CodeOf(err) != rpc.NoSpace {
						t.Errorf("%d bytes, call %d: %d, %v", size, call, v, err)
					}
					continue
				}
				if err != nil || v != call+1 {
					t.Fatalf("%d bytes, call %d: %d, %v", size, call, v, err)
				}
				if call == 1 && (r.Kill("s1", "app/R/1") == nil) == (r.Kill("s2", "app/R/1") == nil) {
					t.Fatal("R was not killed once")
				}
			}
		})
	}
}

// TestStatesInLedgers: calls into a service with state go straight to it, many at a time, and
// each counts once, though the service's program, and at last the whole rack, are gone in
// between; with memory of two copies, and of one. The state is larger than what the Gatekeeper would log.
func TestStatesInLedgers(t *testing.T) {
	for _, lone := range []bool{false, true} {
		r := &registers{nodes: map[string]*rpc.Node{}, lone: lone}
		withRack(t, t.TempDir(), r, func(ctx context.Context, r *registers) { r.lives(ctx, t) })
	}
}

// lives calls R in three lives of the rack.
func (r *registers) lives(ctx context.Context, t *testing.T) {
	t.Helper()
	const callers, each = 6, 2
	for life := range 3 {
		n := r.client(ctx, t)
		var mu sync.Mutex
		seen := map[uint64]bool{}
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					v, err := echo(ctx, n, "R", "")
					mu.Lock()
					if err != nil || seen[v] || v <= uint64(life*callers*each) || v > uint64((life+1)*callers*each) {
						t.Errorf("life %d: %d, %v", life, v, err)
					}
					seen[v] = true
					mu.Unlock()
				}
			})
		}
		all.Wait()
		r.mu.Lock()
		s := r.nodes["R"].Stats()
		r.mu.Unlock()
		if s.Stateful < callers*each {
			t.Errorf("life %d: %d calls into R", life, s.Stateful)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
		r.end(ctx, t, life)
	}
}

// end takes away R's program, the first time, then the whole rack, power and all.
func (r *registers) end(ctx context.Context, t *testing.T, life int) {
	t.Helper()
	blades := append([]string{"c1", "s1", "s2"}, r.memory()...)
	if life == 0 {
		blades = []string{"s1", "s2"}
	} else {
		r.CrashGatekeeper()
	}
	for _, b := range blades {
		if err := r.CrashBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	<-time.After(time.Minute) // virtual
	for _, b := range blades {
		if err := r.BootBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	if life > 0 {
		if err := r.RestartGatekeeper(ctx); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCallsComeAtOnce: a direct call that waits for its callee is sent again when the callee
// is back. Without the callee's announcement the next copy may be a second away.
func TestCallsComeAtOnce(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		if _, err := echo(ctx, n, "R", ""); err != nil { // R's ledger knows the caller from now on
			t.Fatal(err)
		}
		serves := func() *rpc.Node {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.nodes["R"]
		}
		former := serves()
		for _, b := range []string{"s1", "s2"} {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		answered := make(chan time.Time, 1)
		go func() {
			if v, err := echo(ctx, n, "R", ""); v != 2 || err != nil {
				t.Errorf("the call that waits: %d, %v", v, err)
			}
			answered <- time.Now()
		}()
		<-time.After(3*time.Second + 300*time.Millisecond) // virtual
		if err := r.BootBlade("s1"); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(10 * time.Second); serves() == former; <-time.After(time.Millisecond) { // virtual
			if time.Now().After(deadline) {
				t.Fatal("R does not come back")
			}
		}
		exported := time.Now()
		if took := (<-answered).Sub(exported); took > 5*time.Millisecond {
			t.Errorf("the call is answered %v after its service is back", took)
		}
		if n.Stats().Resent == 0 {
			t.Error("its copies are not counted")
		}
	})
}

// TestStatesLost: when all copies of the machine are lost at a time, two or one, and the ledgers with them,
// calls to a service that had its state there fail, whoever decides about them. It begins anew
// when somebody deploys it anew, and not before.
func TestStatesLost(t *testing.T) {
	for _, lone := range []bool{false, true} {
		r := &registers{nodes: map[string]*rpc.Node{}, lone: lone}
		withRack(t, "", r, func(ctx context.Context, r *registers) { r.lose(ctx, t) })
	}
}

// lose loses all copies of the memory, and so R's state.
func (r *registers) lose(ctx context.Context, t *testing.T) {
	t.Helper()
	n := r.client(ctx, t)
	if v, err := echo(ctx, n, "R", ""); err != nil || v != 1 {
		t.Fatalf("%d, %v", v, err)
	}
	calling, ended := make(chan struct{}), make(chan error, 1)
	go func() { // it calls all the time, so it reads the network itself
		err := error(nil)
		for k := 0; err == nil; k++ {
			if k == 100 {
				close(calling)
			}
			_, err = echo(ctx, n, "R", "")
		}
		ended <- err
	}()
	<-calling
	for _, b := range r.memory() {
		if err := r.CrashBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range r.memory() {
		if err := r.BootBlade(b); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-ended:
		if rpc.CodeOf(err) != rpc.Unavailable {
			t.Error(err)
		}
	case <-time.After(time.Minute): // virtual
		t.Fatal("a call into a state that is lost waits for ever")
	}
	fails := func(when string) {
		t.Helper()
		for _, p := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyFateShare} {
			ctx, cancel := context.WithTimeout(ctx, time.Minute) // virtual
			_, err := arrays.NewArraysClient(n.Client("R", rpc.WithPolicy(p))).Echo(ctx, nil)
			if cancel(); rpc.CodeOf(err) != rpc.Unavailable {
				t.Errorf("%s, policy %v: %v", when, p, err)
			}
		}
	}
	fails("when the ledger is lost") // at once: the caller that waits is still the one that reads
	r.CrashGatekeeper()
	if err := r.RestartGatekeeper(ctx); err != nil {
		t.Fatal(err)
	}
	fails("after a restart of the Gatekeeper")
	if !r.lone {
		untilMirrored(t, ctx, r.Rack)
	}
	if err := r.Gatekeeper().Undeploy(ctx, "app"); err != nil {
		t.Fatal(err)
	}
	<-time.After(time.Minute) // virtual
	if err := r.Gatekeeper().Deploy(ctx, registerSpec()); err != nil {
		t.Fatal(err)
	}
	again := r.client(ctx, t)
	if v, err := echo(ctx, again, "R", ""); err != nil || v != 1 {
		t.Errorf("deployed anew: %d, %v", v, err)
	}
	for _, n := range []*rpc.Node{n, again} {
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

// TestStatesLost_Moving: a service is to move to another blade when its state is lost. Calls of policy none do not wait
// for it to move.
func TestStatesLost_Moving(t *testing.T) {
	r := &registers{nodes: map[string]*rpc.Node{}, lone: true}
	withRack(t, "", r, func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		if v, err := echo(ctx, n, "R", ""); err != nil || v != 1 {
			t.Fatalf("%d, %v", v, err)
		}
		for _, b := range r.memory() {
			if err := r.CrashBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		if err := r.Gatekeeper().Drain(ctx, r.bladeOf("R"), "test"); err != nil {
			t.Fatal(err)
		}
		for _, b := range r.memory() {
			if err := r.BootBlade(b); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(10 * time.Second)                         // virtual: the next incarnation has found that its ledger is lost
		short, cancel := context.WithTimeout(ctx, time.Minute) // virtual
		defer cancel()
		_, err := arrays.NewArraysClient(n.Client("R", rpc.WithPolicy(rpc.PolicyNone))).Echo(short, nil)
		if rpc.CodeOf(err) != rpc.Unavailable {
			t.Error(err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestDeclaredExceptions: an exception that the IDL declares is a failure of a kind of its own
// in the rack's figures and histories, of exactly-once calls and of others.
func TestDeclaredExceptions(t *testing.T) {
	for _, policy := range []rpc.Policy{rpc.PolicyRecover, rpc.PolicyNone} {
		t.Run(policy.String(), func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
				defer cancel()
				r := &registers{nodes: map[string]*rpc.Node{}}
				var err error
				if r.Rack, err = simrack.Start(ctx, r.config("")); err != nil {
					t.Fatal(err)
				}
				if err := r.Gatekeeper().Deploy(ctx, registerSpec()); err != nil {
					t.Fatal(err)
				}
				n := r.client(ctx, t)
				c := arrays.NewArraysClient(n.Client("R", rpc.WithPolicy(policy)))
				if _, err := c.Add(ctx, []byte{1}, []byte{2}); err != nil {
					t.Error(err)
				}
				var mismatch *arrays.LengthMismatch
				if _, err := c.Add(rpc.WithHeader(ctx, "tenant", "blue"), []byte{1}, []byte{2, 3}); !errors.As(err, &mismatch) || rpc.CodeOf(err) != rpc.Declared {
					t.Errorf("%v, code %v", err, rpc.CodeOf(err))
				}
				<-time.After(time.Second) // virtual: direct calls have been told
				methods, err := r.Gatekeeper().Methods(ctx)
				if err != nil || len(methods) != 1 || methods[0].Ended[rpc.OK] != 1 || methods[0].Ended[rpc.Declared] != 1 {
					t.Errorf("%+v, %v", methods, err)
				}
				failed, _, err := r.Gatekeeper().Timelines(ctx, trace.Query{Failed: true, Limit: 10})
				if err != nil || len(failed) > 0 { // it is an answer
					t.Errorf("failed are %+v, %v", failed, err)
				}
				all, _, err := r.Gatekeeper().Timelines(ctx, trace.Query{Limit: 10})
				if err != nil || len(all) != 2 || all[0].Code+all[1].Code != rpc.Declared {
					t.Errorf("calls are %+v, %v", all, err)
				}
				for _, k := range all {
					d := k.Details
					if k.Code == rpc.OK && (d.Arguments < 20 || d.Answer < 20 || d.Text != "" || len(d.Headers) > 0) ||
						k.Code == rpc.Declared && (d.Exception != "LengthMismatch" || !strings.Contains(d.Text, "2") || !slices.Equal(d.Headers, []control.Header{{Name: "tenant", Value: "blue"}})) {
						t.Errorf("%v is told with %+v", k.Code, d)
					}
				}
				if err := errors.Join(n.Close(ctx), r.Close()); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestStateDrained: a memory blade that is drained, and alone has the state of a service, is not empty
// until the service is undeployed. What is deployed meanwhile has its ledger elsewhere.
func TestStateDrained(t *testing.T) {
	withMemory(t, 1<<30, nil, func(ctx context.Context, k *clerk) {
		events := k.Gatekeeper().Subscribe(ctx)
		drained := make(chan string, 8)
		go func() {
			for e := range events {
				if e.Kind == gatekeeper.BladeDrained {
					drained <- e.Blade
				}
			}
		}()
		for _, blade := range []string{"m1", "m2"} {
			if err := k.Gatekeeper().Drain(ctx, blade, "test"); err != nil {
				t.Fatal(err)
			}
			<-time.After(10 * time.Second) // virtual
			if err := k.Gatekeeper().ReturnToService(ctx, blade); err != nil {
				t.Fatal(err)
			}
		}
		if len(drained) != 0 { // R and S are at both
			t.Errorf("%s counts as empty", <-drained)
		}
		if err := k.Gatekeeper().Drain(ctx, "m1", "test"); err != nil {
			t.Fatal(err)
		}
		k.deploy(ctx)
		k.until(ctx, 3)
		for _, app := range []string{"app", "office"} { // the main needs the answers of R since its last checkpoint
			if err := k.Gatekeeper().Undeploy(ctx, app); err != nil {
				t.Fatal(err)
			}
		}
		select {
		case blade := <-drained:
			if blade != "m1" {
				t.Errorf("%s counts as empty", blade)
			}
		case <-time.After(time.Minute): // virtual
			t.Error("m1 does not count as empty, though no state or checkpoint is there")
		}
	})
}
