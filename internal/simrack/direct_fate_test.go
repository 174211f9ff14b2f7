package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// chain is a rack with three deployed programs, one a blade: top calls middle, and middle calls bottom. All calls go direct.
type chain struct {
	*testing.T
	*simrack.Rack
	links

	mu      sync.Mutex
	nodes   map[string]*rpc.Node
	began   map[string]int // programs
	ran     map[string]int // handlers
	entered chan string
	up      chan struct{}
}

// links is what the calls of a chain are like.
type links struct {
	policies map[string]rpc.Policy // of the calls to a program
	state    bool                  // the services have one
	lends    bool                  // a call lends its callee a region, and the answer hands one over
	spare    bool                  // the last program may run on c1, too
	together bool                  // one deployment has all programs
	closed   bool                  // no service declares that strangers may share its fate
	// does is what a handler does when it runs for the n-th time, if it is not to call the next program, and the last one to wait.
	does func(ctx context.Context, k *chain, name string, n int) error
}

// calls is whom a program calls, and blades where it runs.
var (
	calls  = map[string]string{"top": "middle", "middle": "bottom"}
	blades = map[string]string{"top": "s1", "middle": "s2", "bottom": "s3"}
)

// noState is the state of a service that keeps nothing.
type noState struct{}

func (noState) Snapshot() ([]byte, error) { return nil, nil }
func (noState) Restore([]byte) error      { return nil }

func withChain(t *testing.T, links links, f func(k *chain)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		k := &chain{
			T: t, links: links, nodes: map[string]*rpc.Node{}, began: map[string]int{}, ran: map[string]int{},
			entered: make(chan string, 10), up: make(chan struct{}, 100),
		}
		var err error
		k.Rack, err = simrack.Start(t.Context(), simrack.Config{
			Blades:   append(simrack.Thesis(), simrack.Blade{Name: "s3", Kind: control.Compute}),
			Machines: [][]string{{"m1", "m2"}},
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{"chain": k.serve},
		})
		if err != nil {
			t.Fatal(err)
		}
		whole := resources.Spec{Name: "whole"}
		for name, blade := range blades {
			on := []string{blade}
			if links.spare && name == "bottom" {
				on = append(on, "c1")
			}
			p := resources.Program{Name: "p", Args: []string{"chain", name}, Nodes: 1, Blades: on, Services: []resources.ServiceSpec{{Name: name, Stateful: links.state}}}
			spec := resources.Spec{Name: name, Programs: []resources.Program{p}}
			if links.together {
				p.Name = name
				whole.Programs = append(whole.Programs, p)
				spec = whole
			}
			if err := k.Gatekeeper().Deploy(t.Context(), spec); err != nil {
				t.Fatal(err)
			}
			<-k.up
		}
		f(k)
		if err := k.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (k *chain) serve(ctx context.Context, j join.Joiner, s control.Start) error {
	name := s.Args[1]
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(name))
	if err != nil {
		return err
	}
	k.mu.Lock()
	k.nodes[name] = n
	k.began[name]++
	k.mu.Unlock()
	handle := func(ctx context.Context) error {
		k.mu.Lock()
		k.ran[name]++
		times := k.ran[name]
		k.mu.Unlock()
		if k.does != nil {
			return k.does(ctx, k, name, times)
		}
		if to := calls[name]; to != "" {
			return k.call(ctx, n, to)
		}
		if times > 1 {
			return nil
		}
		k.entered <- name
		select { // longer than all that follows from a crash
		case <-time.After(30 * time.Second):
		case <-ctx.Done():
		}
		return ctx.Err()
	}
	var options []rpc.ExportOption
	if k.state {
		options = append(options, rpc.WithState(noState{}))
	}
	if !k.closed {
		options = append(options, rpc.WithMethodPolicy(rpc.PolicyFateShare))
	}
	var processor thrift.TProcessor = arrays.NewPingProcessor(pinger(handle))
	if k.lends {
		processor = arrays.NewArraysProcessor(exchange{k: k, handle: handle})
	}
	if err := n.Export(ctx, name, processor, options...); err != nil {
		return err
	}
	k.up <- struct{}{}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	return n.Close(context.WithoutCancel(ctx))
}

// exchange is a service that is lent a region for one of its own.
type exchange struct {
	service.Arrays
	k      *chain
	handle func(ctx context.Context) error
}

func (x exchange) EchoRef(ctx context.Context, data *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	lent, err := rpc.PointerOf(data)
	if err != nil {
		return nil, err
	}
	x.k.has(ctx, rpc.Memory(ctx), lent)
	own, err := fresh(ctx)
	if err == nil {
		err = x.handle(ctx)
	}
	x.k.has(ctx, rpc.Memory(ctx), lent)
	return rpc.GlobalPointer(own), err
}

// has checks what a region has, unless the program dies.
func (k *chain) has(ctx context.Context, m *dsm.Client, p dsm.Pointer) {
	b := make([]byte, 8)
	if _, err := m.Read(ctx, p, b); ctx.Err() == nil && (err != nil || !bytes.Equal(b, []byte("contents"))) {
		k.Errorf("a region has %q, %v", b, err)
	}
}

// call calls a program. It changes and frees what it has lent, and what it gets.
func (k *chain) call(ctx context.Context, n *rpc.Node, to string) error {
	if !k.lends {
		return arrays.NewPingClient(n.Client(to, rpc.WithPolicy(k.policies[to]))).Ping(ctx)
	}
	m := n.Memory()
	if n.Name() != "client" {
		m = rpc.Memory(ctx)
	}
	return lentOut(ctx, m, func(p dsm.Pointer) error {
		data, err := arrays.NewArraysClient(n.Client(to, rpc.WithPolicy(k.policies[to]))).EchoRef(ctx, rpc.GlobalPointer(p), 8)
		if err != nil {
			return err
		}
		got, err := rpc.PointerOf(data)
		if err != nil {
			return err
		}
		k.has(ctx, m, got)
		if _, err := m.Write(ctx, got, []byte("changed!")); err != nil {
			return err
		}
		return m.Free(ctx, got)
	})
}

// TestDirectFates kills a program in the middle of a chain of direct calls: those are started anew that share its fate, once,
// and no others; and the call succeeds.
func TestDirectFates(t *testing.T) {
	const recovers, shares, tainted = rpc.PolicyRecover, rpc.PolicyFateShare, rpc.PolicyTainted
	for name, c := range map[string]struct {
		middle, bottom rpc.Policy // of the calls to these
		dies           string
		began          map[string]int
	}{
		"recover, callee dies":             {recovers, recovers, "bottom", map[string]int{"top": 1, "middle": 1, "bottom": 2}},
		"recover, caller dies":             {recovers, recovers, "middle", map[string]int{"top": 1, "middle": 2, "bottom": 1}},
		"fate-share, callee dies":          {recovers, shares, "bottom", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
		"fate-share, caller dies":          {recovers, shares, "middle", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
		"fate-share twice, the last dies":  {shares, shares, "bottom", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"fate-share twice, the first dies": {shares, shares, "top", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"fate-share above, callee dies":    {shares, recovers, "middle", map[string]int{"top": 2, "middle": 2, "bottom": 1}},
		"tainted, caller dies":             {tainted, recovers, "top", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"tainted, callee dies":             {tainted, recovers, "middle", map[string]int{"top": 2, "middle": 2, "bottom": 2}},
		"tainted, what is below dies":      {tainted, recovers, "bottom", map[string]int{"top": 1, "middle": 1, "bottom": 2}},
		"tainted below, callee dies":       {recovers, tainted, "bottom", map[string]int{"top": 1, "middle": 2, "bottom": 2}},
	} {
		for _, kind := range []links{{}, {state: true}, {lends: true}, {state: true, lends: true}} {
			if testing.Short() && (!kind.state || !kind.lends) { // with the race detector
				continue
			}
			kind.policies = map[string]rpc.Policy{"top": recovers, "middle": c.middle, "bottom": c.bottom}
			t.Run(fmt.Sprintf("%s, state %v, lends %v", name, kind.state, kind.lends), func(t *testing.T) {
				withChain(t, kind, func(k *chain) { k.fails(c.dies, c.began) })
			})
		}
	}
}

// fails makes a call through the whole chain, in the middle of which a program dies. Programs must have been started so
// often after that.
func (k *chain) fails(dies string, began map[string]int) {
	k.Helper()
	client, err := k.Join(k.Context(), "c1", "client")
	if err != nil {
		k.Fatal(err)
	}
	result := make(chan error, 1)
	go func() { result <- k.call(k.Context(), client, "top") }()
	<-k.entered
	killed := time.Now()
	instance := dies + "/p/1"
	if k.together {
		instance = "whole/" + dies + "/1"
	}
	if err := k.Kill(blades[dies], instance); err != nil {
		k.Fatal(err)
	}
	if err := <-result; err != nil {
		k.Error(err)
	}
	if took := time.Since(killed); began["bottom"] > 1 && took > time.Second { // virtual
		k.Errorf("the call has been answered %v after that", took)
	}
	<-time.After(5 * time.Second) // virtual: whoever shares a fate has met it, and nobody asks for the answer any more
	if page, err := k.Gatekeeper().Regions(k.Context(), gatekeeper.RegionQuery{Limit: 100}); err != nil || len(page.Regions) != 0 {
		k.Errorf("%d regions are left: %v, %v", len(page.Regions), page, err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if !maps.Equal(k.began, began) {
		k.Errorf("programs were started %v times, want %v", k.began, began)
	}
	for name, n := range k.nodes {
		if s := n.Stats(); s.Accepted+s.Resumed == 0 {
			k.Errorf("%s: %d direct, %d resumed", name, s.Accepted, s.Resumed)
		}
	}
}

// TestDirectFates_Spared: a caller that nobody would start anew is not taken back. Its callee runs the call again, and the caller
// goes on.
func TestDirectFates_Spared(t *testing.T) {
	withChain(t, links{policies: map[string]rpc.Policy{"hand": rpc.PolicyRecover, "bottom": rpc.PolicyFateShare}}, func(k *chain) {
		hand, err := k.Join(k.Context(), "c1", "hand")
		if err != nil {
			k.Fatal(err)
		}
		handler := pinger(func(ctx context.Context) error { return k.call(ctx, hand, "bottom") })
		if err := hand.Export(k.Context(), "hand", arrays.NewPingProcessor(handler)); err != nil {
			k.Fatal(err)
		}
		client, err := k.Join(k.Context(), "c1", "client")
		if err != nil {
			k.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { result <- k.call(k.Context(), client, "hand") }()
		<-k.entered
		began := time.Now()
		if err := k.Kill(blades["bottom"], "bottom/p/1"); err != nil {
			k.Fatal(err)
		}
		if err := <-result; err != nil || k.ran["bottom"] != 2 || time.Since(began) > time.Second { // virtual
			k.Errorf("%v, after %d runs and %v", err, k.ran["bottom"], time.Since(began))
		}
		if s := hand.Stats(); s.TakenBack+s.Accepted != 1 {
			k.Errorf("%d direct, taken back %d times", s.Accepted, s.TakenBack)
		}
	})
}

// TestHostile_Fates: a caller that says that it has begun anew has its callee's program started anew only if that is so.
func TestHostile_Fates(t *testing.T) {
	withShelf(t, false, func(r *shelf) {
		begun, over := make(chan struct{}), make(chan struct{})
		r.handle = func(context.Context, *dsm.Pointer) error {
			close(begun)
			<-over
			return nil
		}
		method, err := rpcpacket.MethodOf("echo")
		if err != nil {
			t.Fatal(err)
		}
		a := rackaddr.Service("Shelf").As16()
		arguments := append([]byte{0x80, 1, 0, byte(thrift.CALL), 0, 0, 0, 4}, "echo\x00\x00\x00\x01"...)
		arguments = append(arguments, encode(t, r.Context(), &arrays.ArraysEchoArgs{Data: []byte("x")})...)
		id := rpcpacket.ID{1}
		id.Derive()
		present := incarnationOf(t, r.Rack, r.client.Address())
		for incarnation := present; incarnation < present+3; incarnation++ {
			m := rpcpacket.Message{Header: rpcpacket.Header{
				Type: rpcpacket.Call, Flags: rpcpacket.Flags(0).WithPolicy(rpc.PolicyFateShare), NameLength: 4, Method: method,
				Service: binary.BigEndian.Uint64(a[8:]), Call: id,
			}, Payload: arguments}
			place(t, r.Rack, &m.Header, r.client.Address(), incarnation, 0, 1)
			at := netip.AddrPortFrom(r.client.Address(), rackaddr.PortDirect)
			r.Host("c1").SendRaw(at, netip.AddrPortFrom(r.server.Address(), rackaddr.PortDirect), m.Append(nil))
			if incarnation == present {
				<-begun
			}
		}
		forget := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Forget, Flags: rpcpacket.FlagSettled.WithPolicy(rpc.PolicyRecover), Call: rpcpacket.ID{2}, CallerIncarnation: present + 9,
		}, Payload: make([]byte, 28)}
		r.Host("c1").SendRaw(netip.AddrPortFrom(r.client.Address(), rackaddr.PortDirect), netip.AddrPortFrom(r.server.Address(), rackaddr.PortDirect), forget.Append(nil))
		server := r.server
		<-time.After(3 * time.Second) // virtual
		close(over)
		if s := server.Stats(); s.TakenBack != 0 || s.Accepted != 1 || r.server != server {
			t.Errorf("taken back %d times, %d direct calls; the same program: %v", s.TakenBack, s.Accepted, r.server == server)
		}
	})
}
