package simrack_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/daemon"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// byHand is a rack of registers to which nothing is deployed: the test starts their programs by hand.
type byHand struct {
	*registers
	*testing.T
	caller  *rpc.Node
	running map[string]daemon.Process
}

func withByHand(t *testing.T, f func(ctx context.Context, h *byHand)) {
	t.Helper()
	withByHandAnd(t, nil, f)
}

// withByHandAnd is withByHand where more programs can be deployed.
func withByHandAnd(t *testing.T, programs map[string]simrack.Program, f func(ctx context.Context, h *byHand)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		h := &byHand{registers: &registers{nodes: map[string]*rpc.Node{}}, T: t, running: map[string]daemon.Process{}}
		cfg := h.config("")
		maps.Copy(cfg.Programs, programs)
		var err error
		if h.Rack, err = simrack.Start(ctx, cfg); err != nil {
			t.Fatal(err)
		}
		if h.caller, err = h.Join(ctx, "c1", "caller"); err != nil {
			t.Fatal(err)
		}
		f(ctx, h)
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
}

// start starts a program that has a register by hand, and waits until the register is called. Its node is called as the
// program; a program that is told to end closes the node.
func (h *byHand) start(ctx context.Context, blade, program, service string) error {
	up := make(chan error, 1)
	p, err := h.Rack.Run(blade, program, func(ctx context.Context, j join.Joiner, _ control.Start) error {
		node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(program))
		if err != nil {
			up <- err
			return err
		}
		r := &register{node: node, size: cmp.Or(h.size, registerSize)}
		if err := node.Export(ctx, service, arrays.NewArraysProcessor(r), rpc.WithState(r)); err != nil {
			up <- err
			return node.Close(context.WithoutCancel(ctx))
		}
		h.mu.Lock()
		h.nodes[program] = node
		h.mu.Unlock()
		up <- nil
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return nil
		}
		return node.Close(context.WithoutCancel(ctx))
	})
	if err != nil {
		return err
	}
	h.running[program] = p
	return <-up
}

// leave has a program close its node and end.
func (h *byHand) leave(program string) {
	h.running[program].Terminate()
	<-h.running[program].Done()
}

func (h *byHand) must(err error) {
	h.Helper()
	if err != nil {
		h.Fatal(err)
	}
}

// counts calls a register, which is to have counted this call as the given one.
func (h *byHand) counts(ctx context.Context, service string, want uint64) {
	h.Helper()
	if v, err := echo(ctx, h.caller, service, ""); err != nil || v != want {
		h.Errorf("%s has counted %d, %v; want %d", service, v, err, want)
	}
}

// awaited are the addresses of nodes that wait for their programs.
func (h *byHand) awaited(ctx context.Context) (all []gatekeeper.NodeState) {
	h.Helper()
	o, err := h.Gatekeeper().Overview(ctx)
	h.must(err)
	for _, n := range o.Nodes {
		if !n.Awaited.IsZero() {
			all = append(all, n)
		}
	}
	return all
}

// TestByHand_State: a service with state whose program was started by hand gets its calls straight, and has its state in
// its node's ledger. The program is killed and started again, and the Gatekeeper with it: the next program of that name
// on that blade is the node's next incarnation, and has the state.
func TestByHand_State(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		address := h.nodes["counter"].Address()
		h.counts(ctx, "R", 1)
		for life := range uint64(4) {
			h.must(h.Kill("s1", "counter"))
			<-time.After(time.Second) // virtual
			if all := h.awaited(ctx); len(all) != 1 || all[0].Address != address || all[0].Name != "counter" || time.Since(all[0].Awaited) > 2*time.Second {
				t.Errorf("awaited are %+v", all)
			}
			if o, err := h.Gatekeeper().Overview(ctx); err != nil || len(o.Recoveries) > 0 {
				t.Errorf("recoveries: %+v, %v", o.Recoveries, err)
			}
			if life%2 == 1 {
				h.CrashGatekeeper()
				h.must(h.RestartGatekeeper(ctx))
			}
			waits := make(chan struct{})
			go func() {
				defer close(waits)
				h.counts(ctx, "R", 2*life+2) // it waits for the program
			}()
			<-time.After(time.Second) // virtual
			h.must(h.start(ctx, "s1", "counter", "R"))
			<-waits
			h.counts(ctx, "R", 2*life+3)
			if n := h.nodes["counter"]; n.Address() != address || n.Stats().Stateful == 0 {
				t.Errorf("life %d: the node is %s, was %s; %d direct calls into R", life, n.Address(), address, n.Stats().Stateful)
			}
		}
		if all := h.awaited(ctx); len(all) > 0 {
			t.Errorf("awaited are %+v", all)
		}
	})
}

// TestByHand_AtOnce: a program that is started again before its former node is cut off waits for that.
func TestByHand_AtOnce(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.counts(ctx, "R", 1)
		address := h.nodes["counter"].Address()
		h.must(h.KillSoon("s1", "counter"))
		h.must(h.start(ctx, "s1", "counter", "R"))
		if n := h.nodes["counter"]; n.Address() != address {
			t.Errorf("the node is %s, was %s", n.Address(), address)
		}
		h.counts(ctx, "R", 2)
	})
}

// TestByHand_WhileItJoins: a node loses its identity while its program reads the ledger, whose memory is away. The program hears
// that, so that somebody can start it again.
func TestByHand_WhileItJoins(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.counts(ctx, "R", 1)
		h.must(h.Kill("s1", "counter"))
		<-time.After(time.Second) // virtual
		for _, b := range []string{"m1", "m2"} {
			h.Host(b).SetLink(false)
		}
		<-time.After(5 * time.Second) // virtual: they count as failed
		ended := make(chan error, 1)
		go func() { ended <- h.start(ctx, "s1", "counter", "R") }()
		<-time.After(time.Second) // virtual
		h.Host("s1").SetLink(false)
		<-time.After(5 * time.Second) // virtual: so does its blade
		h.Host("s1").SetLink(true)
		select {
		case err := <-ended:
			if rpc.CodeOf(err) != rpc.Unavailable {
				t.Error(err)
			}
		case <-time.After(5 * time.Second): // virtual
			t.Error("it goes on joining")
		}
		for _, b := range []string{"m1", "m2"} {
			h.Host(b).SetLink(true)
		}
		<-time.After(5 * time.Second) // virtual
		if err := h.start(ctx, "s1", "counter", "R"); err == nil {
			h.counts(ctx, "R", 2)
		} else {
			t.Error(err)
		}
	})
}

// TestByHand_Leaves: a program that leaves by itself keeps its state. New calls to its service fail at once.
func TestByHand_Leaves(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		for range 2 {
			h.must(h.start(ctx, "s1", "counter", "R"))
			v, err := echo(ctx, h.caller, "R", "")
			h.must(err)
			h.leave("counter")
			<-time.After(3 * time.Second) // virtual: the caller asks again who serves R
			if all := h.awaited(ctx); len(all) != 1 {
				t.Fatalf("after %d calls awaited are %+v", v, all)
			}
			h.CrashGatekeeper()
			h.must(h.RestartGatekeeper(ctx))
			<-time.After(3 * time.Second) // virtual
			from := time.Now()
			if v, err := echo(ctx, h.caller, "R", ""); rpc.CodeOf(err) != rpc.Unavailable || time.Since(from) > time.Second {
				t.Errorf("after %s: %d, %v", time.Since(from), v, err)
			}
		}
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.counts(ctx, "R", 3)
	})
}

// TestByHand_CallerAwaited: a node closes while another one is awaited that has called it. Nobody may ever start that one's
// program anew, and its next incarnation asks for none of the calls that clients have made outside of executions.
func TestByHand_CallerAwaited(t *testing.T) {
	for name, end := range map[string]func(*byHand){
		"left": func(h *byHand) { h.leave("counter") },
		"killed": func(h *byHand) {
			h.must(h.Kill("s1", "counter"))
			<-h.running["counter"].Done()
		},
	} {
		t.Run(name, func(t *testing.T) {
			withByHand(t, func(ctx context.Context, h *byHand) {
				h.must(h.start(ctx, "s1", "counter", "R"))
				h.must(h.start(ctx, "s2", "callee", "Q"))
				q := arrays.NewArraysClient(h.nodes["counter"].Client("Q", rpc.WithPolicy(rpc.PolicyRecover), rpc.WithPlainCalls()))
				_, err := q.Echo(ctx, nil)
				h.must(err)
				end(h)
				closing, cancel := context.WithTimeout(ctx, time.Minute) // virtual
				defer cancel()
				if err := h.nodes["callee"].Close(closing); err != nil {
					t.Errorf("the callee: %v", err)
				}
				if all := h.awaited(ctx); len(all) == 0 || all[0].Name != "counter" {
					t.Errorf("awaited are %+v", all)
				}
				h.leave("callee")
			})
		})
	}
}

// TestByHand_Names: who goes on as a node is decided by blade and name. A program of another name, or on another blade, is
// a node of its own and has no part in the state; so is a second one of the name.
func TestByHand_Names(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.counts(ctx, "R", 1)
		address := h.nodes["counter"].Address()
		second, err := h.Join(ctx, "s1", "counter") // while the first one runs
		h.must(err)
		h.must(h.Kill("s1", "counter"))
		<-time.After(time.Second) // virtual
		for _, at := range [][2]string{{"s1", "other"}, {"s2", "counter"}} {
			if err := h.start(ctx, at[0], at[1], "R"); rpc.CodeOf(err) != rpc.PermissionDenied {
				t.Errorf("program %s of %s exports R: %v", at[1], at[0], err)
			}
		}
		if second.Address() == address || second.Export(ctx, "R", arrays.NewArraysProcessor(&register{}), rpc.WithState(&register{})) == nil {
			t.Errorf("the second program is node %s, and exports R", second.Address())
		}
		if all := h.awaited(ctx); len(all) != 1 || all[0].Address != address {
			t.Errorf("awaited are %+v", all)
		}
		h.must(h.start(ctx, "s1", "counter", "R"))
		if n := h.nodes["counter"]; n.Address() != address {
			t.Errorf("the node is %s, was %s", n.Address(), address)
		}
		h.counts(ctx, "R", 2)
	})
}

// TestByHand_Deployed: a program that was started by hand has begun a main, and has ended. A deployment runs a main of that
// name: it begins anew, and the node is not awaited any more. A node that keeps something else is, and the deployment's main waits until it is
// forgotten.
func TestByHand_Deployed(t *testing.T) {
	begun := 0
	job := func(ctx context.Context, j join.Joiner, s control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(s.Name))
		if err != nil {
			return err
		}
		err = rpc.Main(ctx, n, "clerk", func(_ context.Context, state []byte) error {
			if state != nil {
				t.Errorf("the main goes on from %q", state)
			}
			begun++
			return nil
		})
		if err != nil {
			return err // it is started again
		}
		return n.Close(context.WithoutCancel(ctx))
	}
	for _, keeps := range []bool{false, true} {
		begun = 0
		withByHandAnd(t, map[string]simrack.Program{"job": job}, func(ctx context.Context, h *byHand) {
			began := make(chan struct{})
			_, err := h.Rack.Run("s2", "office", func(ctx context.Context, j join.Joiner, _ control.Start) error {
				n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("office"))
				if err != nil {
					return err
				}
				if r := new(register); keeps {
					if err := n.Export(ctx, "R", arrays.NewArraysProcessor(r), rpc.WithState(r)); err != nil {
						return err
					}
				}
				return beginsClerk(ctx, n, began)
			})
			h.must(err)
			<-began
			h.must(h.Kill("s2", "office"))
			<-time.After(time.Second) // virtual
			if all := h.awaited(ctx); len(all) != 1 {
				t.Errorf("awaited are %+v", all)
			}
			h.must(h.Gatekeeper().Deploy(ctx, resources.Spec{Name: "app", Programs: []resources.Program{{Name: "job", Args: []string{"job"}, Nodes: 1, Job: true}}}))
			<-time.After(10 * time.Second) // virtual
			all := h.awaited(ctx)
			if (len(all) > 0) != keeps || (begun == 0) != keeps {
				t.Fatalf("keeps a state, too: %v; awaited are %+v, the deployment's main has begun %d times", keeps, all, begun)
			}
			for _, n := range all {
				h.must(h.Gatekeeper().ForgetNode(ctx, n.Address))
			}
			<-time.After(time.Minute) // virtual
			if begun != 1 {
				t.Errorf("the deployment's main has begun %d times", begun)
			}
		})
	}
}

// TestByHand_Stateless: a node that keeps nothing goes with its program.
func TestByHand_Stateless(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		_, err := h.Rack.Run("s1", "echo", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("echo"))
			if err != nil {
				return err
			}
			r := new(register)
			if err := n.Export(ctx, "E", arrays.NewArraysProcessor(r)); err != nil {
				return err
			}
			<-ctx.Done()
			return nil
		})
		h.must(err)
		for {
			if s, err := h.caller.Service(ctx, "E"); err == nil && s.Health == rpc.Serving {
				break
			}
			<-time.After(10 * time.Millisecond) // virtual
		}
		_, err = echo(ctx, h.caller, "E", "")
		h.must(err)
		h.must(h.Kill("s1", "echo"))
		<-time.After(3 * time.Second) // virtual
		if all := h.awaited(ctx); len(all) > 0 {
			t.Errorf("awaited are %+v", all)
		}
		if _, err := echo(ctx, h.caller, "E", ""); rpc.CodeOf(err) != rpc.Unavailable {
			t.Error(err)
		}
	})
}

// TestByHand_Forgotten: an operator forgets awaited nodes. Their states, mains, ledgers and names go; calls that wait for them
// fail. Whoever takes a name then begins anew. Nodes that are there are not forgotten.
func TestByHand_Forgotten(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s1", "counter", "R"))
		h.counts(ctx, "R", 1)
		address := h.nodes["counter"].Address()
		if err := h.Gatekeeper().ForgetNode(ctx, address); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("a node that is there is forgotten: %v", err)
		}
		began := make(chan struct{})
		main := func(_ context.Context, state []byte) error {
			if state != nil {
				t.Error("a forgotten main goes on")
			}
			return nil
		}
		_, err := h.Rack.Run("s2", "clerk", func(ctx context.Context, j join.Joiner, _ control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("clerk"))
			if err != nil {
				return err
			}
			return beginsClerk(ctx, n, began)
		})
		h.must(err)
		<-began
		h.must(h.Kill("s2", "clerk"))
		h.must(h.Kill("s1", "counter"))
		<-time.After(time.Second) // virtual
		failed := make(chan error)
		go func() {
			_, err := echo(ctx, h.caller, "R", "")
			failed <- err
		}()
		<-time.After(time.Second)  // virtual
		h.must(h.CrashBlade("m2")) // so nobody answers when it is told
		for _, n := range h.awaited(ctx) {
			h.must(h.Gatekeeper().ForgetNode(ctx, n.Address))
		}
		h.CrashGatekeeper() // nor has it got far
		h.must(h.RestartGatekeeper(ctx))
		if err := <-failed; rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("the call that waited: %v", err)
		}
		h.must(h.BootBlade("m2"))
		<-time.After(10 * time.Second) // virtual
		if all := h.awaited(ctx); len(all) > 0 {
			t.Errorf("awaited are %+v", all)
		}
		if err := h.Gatekeeper().ForgetNode(ctx, address); rpc.CodeOf(err) != rpc.NotFound {
			t.Errorf("forgotten twice: %v", err)
		}
		h.nothingLeft(ctx, h.caller)
		h.must(h.start(ctx, "s2", "other", "R")) // the names have no owners any more
		h.counts(ctx, "R", 1)
		n, err := h.Join(ctx, "s2", "another")
		h.must(err)
		h.must(rpc.Main(ctx, n, "clerk", main))
	})
}

// nothingLeft checks that the log has nothing of states and mains, nor of nodes but some, and memory no other ledgers.
func (h *byHand) nothingLeft(ctx context.Context, but ...*rpc.Node) {
	h.Helper()
	for r, err := range h.Rack.Log().Records() {
		h.must(err)
		known := slices.ContainsFunc(but, func(n *rpc.Node) bool { return n.Address() == r.Callee.Address })
		if r.Kind == wal.KindMain || r.Kind == wal.KindNode && !known {
			h.Errorf("record %s is left", r.Key())
		}
	}
	o, err := h.Gatekeeper().Overview(ctx)
	h.must(err)
	for _, b := range o.Blades {
		if b.Ledgers != nil && b.Ledgers.Count > len(but) {
			h.Errorf("blade %s has %d ledgers", b.Name, b.Ledgers.Count)
		}
	}
}

// TestByHand_Bounded: a blade has control.MaxKeptByHand nodes of programs that were started by hand and keep something, those
// included that are awaited. The next one is told how to make room.
func TestByHand_Bounded(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		var first netip.Addr
		for k := range control.MaxKeptByHand {
			name := fmt.Sprint("R", k)
			h.size = 8
			h.must(h.start(ctx, "s1", name, name))
			if k == 0 {
				first = h.nodes[name].Address()
			}
			if k < 40 { // a blade runs 96 nodes at a time
				h.must(h.Kill("s1", name))
			}
		}
		<-time.After(time.Second) // virtual
		if err := h.start(ctx, "s1", "more", "More"); rpc.CodeOf(err) != rpc.NoSpace || !strings.Contains(err.Error(), "bifrost forget") {
			t.Errorf("one more: %v", err)
		}
		h.must(h.start(ctx, "s2", "elsewhere", "Elsewhere"))
		n, err := h.Join(ctx, "s1", "main")
		h.must(err)
		if err := rpc.Main(ctx, n, "main", func(context.Context, []byte) error { return nil }); rpc.CodeOf(err) != rpc.NoSpace {
			t.Errorf("a main: %v", err)
		}
		h.must(h.start(ctx, "s1", "R0", "R0")) // it counts already
		h.must(h.Kill("s1", "R0"))
		<-time.After(time.Second) // virtual
		h.must(h.Gatekeeper().ForgetNode(ctx, first))
		h.must(h.start(ctx, "s1", "more", "More"))
	})
}

// TestByHand_Main kills a durable main that was started by hand again and again, and the Gatekeeper now and then. It goes
// on from its checkpoints, which are in its node's ledger. When it is over and its program has left, its node goes.
func TestByHand_Main(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		const rounds = 60
		h.must(h.start(ctx, "s1", "counter", "R"))
		k := &clerk{registers: h.registers, t: t, rounds: rounds, over: make(chan struct{})}
		start := func() {
			_, err := h.Rack.Run("s2", "clerk", func(ctx context.Context, j join.Joiner, s control.Start) error { return k.program(ctx, j, s) })
			h.must(err)
		}
		dice := rand.New(rand.NewPCG(1, 2))
		start()
		var address netip.Addr
		for kills := range 30 {
			<-time.After(time.Duration(1 + dice.IntN(4_000_000))) // virtual
			k.mu.Lock()
			if n := k.node; n != nil && address.IsValid() && n.Address() != address {
				t.Errorf("the node is %s, was %s", n.Address(), address)
			} else if n != nil {
				address = n.Address()
			}
			ended := k.over == nil
			k.mu.Unlock()
			if ended {
				t.Fatalf("it is over after %d kills", kills)
			}
			h.must(h.Kill("s2", "clerk"))
			if kills%10 == 9 {
				h.CrashGatekeeper()
				h.must(h.RestartGatekeeper(ctx))
			}
			if kills%3 == 0 {
				<-time.After(time.Second) // virtual: else it is started at once
				if all := h.awaited(ctx); len(all) != 1 || address.IsValid() && all[0].Address != address {
					t.Errorf("awaited are %+v", all)
				}
			}
			start()
		}
		k.ended(ctx)
		k.mu.Lock()
		defer k.mu.Unlock()
		if len(k.begun) < 10 || k.begun[len(k.begun)-1] == 0 || k.stats.MainCheckpoints == 0 {
			t.Errorf("its runs begin with %v; %+v", k.begun, k.stats)
		}
		<-time.After(5 * time.Second) // virtual
		if all := h.awaited(ctx); len(all) > 0 {
			t.Errorf("awaited are %+v", all)
		}
		for r, err := range h.Rack.Log().Records() {
			if h.must(err); r.Kind == wal.KindMain {
				t.Errorf("record %s is left", r.Key())
			}
		}
	})
}

// front starts a program by hand on s1 that keeps nothing: a ping of F sends R a one-way.
func (h *byHand) front(ctx context.Context) {
	h.Helper()
	up := make(chan error, 1)
	p, err := h.Rack.Run("s1", "front", func(ctx context.Context, j join.Joiner, _ control.Start) error {
		node, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("front"))
		if err != nil {
			up <- err
			return err
		}
		h.mu.Lock()
		h.nodes["front"] = node
		h.mu.Unlock()
		up <- node.Export(ctx, "F", arrays.NewPingProcessor(pinger(func(ctx context.Context) error {
			_, err := node.Client("R", rpc.WithPolicy(rpc.PolicyRecover)).Call(ctx, "echo", &arrays.ArraysEchoArgs{}, nil)
			return err
		})))
		<-ctx.Done()
		if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
			return nil
		}
		return node.Close(context.WithoutCancel(ctx))
	})
	h.must(err)
	h.running["front"] = p
	h.must(<-up)
}

// TestByHand_Oneways: a program that was started by hand, and keeps nothing else, owes one-ways when it dies. Its node is awaited, and
// the next program of its name delivers them, once. When it has left in order nobody waits for it.
func TestByHand_Oneways(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.must(h.start(ctx, "s2", "counter", "R"))
		h.front(ctx)
		address := h.nodes["front"].Address()
		h.must(ping(ctx, h.caller, "F"))
		<-time.After(time.Second) // virtual
		h.counts(ctx, "R", 2)
		h.must(h.Kill("s2", "counter"))
		<-time.After(time.Second)        // virtual
		h.must(ping(ctx, h.caller, "F")) // R is to come back
		h.CrashGatekeeper()
		h.must(h.RestartGatekeeper(ctx))
		for range 2 {
			h.must(h.Kill("s1", "front"))
			<-time.After(time.Second) // virtual
			if all := h.awaited(ctx); !slices.ContainsFunc(all, func(n gatekeeper.NodeState) bool { return n.Address == address }) {
				h.Errorf("awaited are %+v", all)
			}
			h.front(ctx) // which can deliver nothing
			if n := h.nodes["front"]; n.Address() != address {
				h.Errorf("the node is %s, was %s", n.Address(), address)
			}
		}
		h.must(h.start(ctx, "s2", "counter", "R"))
		<-time.After(10 * time.Second) // virtual
		h.counts(ctx, "R", 4)
		h.leave("front")
		<-time.After(time.Second) // virtual
		if all := h.awaited(ctx); len(all) > 0 {
			h.Errorf("awaited are %+v", all)
		}
	})
}

// TestByHand_OnewaysBounded: no further node of a blade can owe one-ways if as many as may keep something already. Its
// executions are told so.
func TestByHand_OnewaysBounded(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.size = 8
		h.must(h.start(ctx, "s2", "counter", "R"))
		h.front(ctx)
		for k := range control.MaxKeptByHand {
			name := fmt.Sprint("R", k)
			h.must(h.start(ctx, "s1", name, name))
			h.must(h.Kill("s1", name))
		}
		<-time.After(time.Second) // virtual
		if err := ping(ctx, h.caller, "F"); rpc.CodeOf(err) != rpc.NoSpace || !strings.Contains(err.Error(), "bifrost forget") {
			h.Errorf("one more: %v", err)
		}
		h.must(h.Gatekeeper().ForgetNode(ctx, h.awaited(ctx)[0].Address))
		h.must(ping(ctx, h.caller, "F"))
		<-time.After(time.Second) // virtual
		h.counts(ctx, "R", 2)
	})
}

// beginsClerk runs the main clerk, which closes began at its first checkpoint and then waits for its end.
func beginsClerk(ctx context.Context, n *rpc.Node, began chan struct{}) error {
	return rpc.Main(ctx, n, "clerk", func(ctx context.Context, _ []byte) error {
		err := rpc.Checkpoint(ctx, []byte("begun"))
		close(began)
		<-ctx.Done()
		return err
	})
}
