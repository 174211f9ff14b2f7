package simrack_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestHostile_Owners: one program with many nodes writes all it can into the ledger of each of them. Calls of others go on,
// and one that has begun before has the last eighth of its ledger.
func TestHostile_Owners(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2")
	cfg.LedgerSpace = 64 << 10
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s2")
		caller, callee := nodes[0], nodes[1]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		echo := func(what string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			if _, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte("kept")); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
		echo("before")
		server := r.MemoryServer("m1")
		const greedy = 24
		blades := make([]string, greedy)
		for i := range blades {
			blades[i] = "s1"
		}
		hostile := joinAll(t, ctx, r, blades...)
		<-time.After(time.Second) // virtual: all have their ledgers
		for i, n := range hostile {
			name := control.LedgerOf(n.Address())
			is, ok := server.LedgerState(name)
			if !ok {
				t.Fatalf("node %d has no ledger", i)
			}
			incarnation := incarnationOf(t, r, n.Address())
			send := func(q dsmpacket.LedgerRequest) {
				q.Ledger, q.Run, q.Incarnation = n.Address().As16(), 1, incarnation
				r.Host("s1").SendRaw(netip.AddrPortFrom(n.Address(), rackaddr.PortDSM),
					netip.AddrPortFrom(dsmpacket.LedgerAddress(rackaddr.DefaultDSMPrefix, 1, q.Op).Addr(), rackaddr.PortDSM), q.Append(nil))
			}
			send(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerOpen})
			for number := is.Next; number < is.Next+70; number++ {
				send(dsmpacket.LedgerRequest{Op: dsmpacket.LedgerAppend, Chunk: dsmpacket.Chunk{Number: number, Data: make([]byte, 1000)}})
				if number%16 == 0 {
					<-time.After(10 * time.Millisecond) // virtual: they have arrived
				}
			}
		}
		<-time.After(time.Second) // virtual: all have arrived
		space := server.Ledgers()
		if space.Used < space.Total/3 {
			t.Errorf("the ledgers of %d nodes take %d of %d bytes: that is no attack; %v", greedy, space.Used, space.Total, server.Metrics().RefusedLedgers)
		}
		for i := range 100 {
			echo(fmt.Sprint("call ", i))
		}
		refused := server.RefusedOwners()["ledgers"]
		for o, n := range refused {
			if o.Port == 0 || n == 0 {
				t.Errorf("refused to %v: %d", o, n)
			}
		}
		if len(refused) != 1 {
			t.Errorf("refused: %v", refused)
		}
	})
}

// TestHostile_MemoryOwners: one program with many nodes allocates all that it gets, has another owner's service allocate for it, and asks on without end.
// Calls by reference of others go on.
func TestHostile_MemoryOwners(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2", "s3")
	cfg.Impair = wire.Impairment{Delay: 10 * time.Microsecond}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s2", "s3", "s1", "s1", "s1", "s1", "s1", "s1")
		caller, hostile := nodes[0], nodes[3:]
		for i, name := range []string{"Arrays", "Helper"} {
			if err := nodes[1+i].Export(ctx, name, arrays.NewArraysProcessor(service.Arrays{})); err != nil {
				t.Fatal(err)
			}
		}
		const small, block, total = 4 << 10, 16 << 10, 1 << 20 / (16 << 10)
		var kept []dsm.Pointer
		for _, n := range hostile {
			p, err := n.Memory().Alloc(ctx, block)
			for ; err == nil; p, err = n.Memory().Alloc(ctx, block) {
				kept = append(kept, p)
			}
			if rpc.CodeOf(err) != rpc.NoSpace || !strings.Contains(err.Error(), "have their share") || !strings.Contains(err.Error(), "Free regions") {
				t.Fatalf("a block too many: %v", err)
			}
		}
		if len(kept) < total/2 || len(kept) > total*5/8 {
			t.Errorf("one owner has %d of %d blocks", len(kept), total)
		}
		helper := arrays.NewArraysClient(hostile[0].Client("Helper", rpc.WithPolicy(rpc.PolicyRecover)))
		got := 0
		for ; got < 1<<20; got += small {
			if _, err := helper.EchoRef(ctx, rpc.GlobalPointer(kept[0]), small); err != nil {
				break
			}
		}
		if left := 1<<20 - len(kept)*block - got; got == 0 || left < 1<<20/10 {
			t.Fatalf("another owner has allocated %d bytes for it, which leaves %d", got, left)
		}
		<-time.After(5 * time.Second) // virtual: nodes know how little memory is free, and keep none idle
		stop, stopped := make(chan struct{}), make(chan struct{})
		raw := newRawAllocator(t, ctx, r, "s1")
		go func() { // asks for regions that nobody waits for, so that nobody frees them
			defer close(stopped)
			for number := uint64(1 << 20); ; number++ {
				raw.alloc(number, small)
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Microsecond): // virtual
				}
			}
		}()
		for i := range 20 {
			if err := byReference(ctx, caller); err != nil {
				t.Errorf("call %d: %v", i, err)
			}
		}
		close(stop)
		<-stopped
		raw.close()
		if refused := r.MemoryServer("m1").RefusedOwners()["regions"]; len(refused) != 2 {
			t.Errorf("refused: %v", refused)
		}
		for _, n := range append(hostile, nodes[1:3]...) {
			if err := n.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		<-time.After(time.Minute) // virtual: what they had is freed
		if used := r.MemoryServer("m1").Used(); used > 1<<20/8 {
			t.Errorf("%d bytes are left of nodes that have gone", used)
		}
	})
}

// TestHostile_Unheard: a program asks for regions, hears no answer, and says that it has had each. They are its own from their answers on, and are
// freed when it has gone.
func TestHostile_Unheard(t *testing.T) {
	cfg, _ := watched("s1")
	cfg.Blades[1].Capacity = 64 << 20
	cfg.Impair = wire.Impairment{Delay: 10 * time.Microsecond}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		server := r.MemoryServer("m1")
		var before uint64 // what the first one has
		for i := range 2 {
			raw := newRawAllocator(t, ctx, r, "s1")
			for number := uint64(1 << 20); number < 1<<20+6000; number++ {
				raw.alloc(number, 4096)
				if number%100 == 0 {
					<-time.After(100 * time.Microsecond) // virtual
				}
			}
			<-time.After(time.Millisecond) // virtual: all have arrived
			if used := server.Used(); used < before+8<<20 {
				t.Errorf("%d bytes are used, and were %d: that is no attack", used, before)
			}
			if i == 0 {
				before = server.Used()
				continue
			}
			raw.close()
			<-time.After(30 * time.Second) // virtual
			if used := server.Used(); used > before+1<<20 {
				t.Errorf("%d bytes are used, and were %d", used, before)
			}
		}
	})
}

// TestHostile_UndoOwners: a program with many nodes writes on behalf of executions that nobody commits, as much as it may. An execution of somebody else
// finds room for what it overwrites.
func TestHostile_UndoOwners(t *testing.T) {
	cfg, _ := watched("c1", "s1", "s2")
	cfg.MemoryLimits.Undo = 256 << 10
	cfg.Impair = wire.Impairment{Delay: 10 * time.Microsecond}
	inVirtualTimeWith(t, cfg, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s2", "s1", "s1", "s1", "s1")
		full := func(n *rpc.Node) dsm.Pointer {
			p, err := n.Memory().Alloc(ctx, 64<<10)
			if err == nil {
				_, err = n.Memory().Write(ctx, p, bytes.Repeat([]byte("o"), 64<<10))
			}
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		mine := full(nodes[1])
		for _, n := range nodes[2:] {
			p := full(n)
			m := dsmpacket.Header{Kind: dsmpacket.Request, Incarnation: incarnationOf(t, r, n.Address()), Execution: [16]byte{1}, Length: 1}
			for range 3 {
				for m.Request = 1 << 10; m.Request < 1<<10+16; m.Request++ { // a byte of each page
					to := p.Add(int64(m.Request-1<<10) << 12)
					r.Host("s1").SendRaw(netip.AddrPortFrom(n.Address(), rackaddr.PortDSM), netip.AddrPortFrom(to.With(dsmpacket.OpWrite).Addr(), rackaddr.PortDSM), append(m.Append(nil), 'x'))
				}
				<-time.After(time.Millisecond) // virtual: they have arrived, and it is known whose the node is
			}
		}
		undo := r.MemoryServer("m1").Metrics().Undo
		if undo.Bytes < 128<<10 || undo.Bytes > 256<<10*7/9+8<<10 { // strangers have what one blade may have
			t.Errorf("one owner has %d bytes of undo", undo.Bytes)
		}
		if err := nodes[1].Export(ctx, "Arrays", arrays.NewArraysProcessor(&writing{mine: mine, before: func() {}})); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		what := strings.Repeat("w", 12<<10)
		got, err := arrays.NewArraysClient(nodes[0].Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, []byte(what))
		if err != nil || string(got) != what {
			t.Errorf("an execution that overwrites %d bytes: %v", len(what), err)
		}
		if refused := r.MemoryServer("m1").RefusedOwners()["undo"]; refused[share.Owner{Port: 2}] == 0 || refused[share.Owner{Port: 1}]+refused[share.Owner{Port: 3}] > 0 {
			t.Errorf("refused: %v", refused)
		}
	})
}

// byReference makes a call that lends memory and gets some.
func byReference(ctx context.Context, caller *rpc.Node) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	memory := caller.Memory()
	p, err := memory.Alloc(ctx, 4096)
	if err != nil {
		return err
	}
	result, err := arrays.NewArraysClient(caller.Client("Arrays", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(p), 4096)
	if err != nil {
		return err
	}
	q, err := rpc.PointerOf(result)
	return errors.Join(err, memory.Free(ctx, p), memory.Free(ctx, q))
}

// rawAllocator is a node whose program allocates by packets of its own.
type rawAllocator struct {
	t       *testing.T
	ctx     context.Context
	host    *wire.Host
	session join.Session
	batches []uint32
}

func newRawAllocator(t *testing.T, ctx context.Context, r *simrack.Rack, blade string) *rawAllocator {
	t.Helper()
	j, err := r.Joiner(blade)
	if err != nil {
		t.Fatal(err)
	}
	a := &rawAllocator{t: t, ctx: ctx, host: r.Host(blade)}
	if a.session, err = j.Join(ctx, "raw"); err != nil {
		t.Fatal(err)
	}
	if a.batches, err = a.session.Batches(ctx, 1, 100); err != nil || len(a.batches) < 95 {
		t.Fatalf("%d batches: %v", len(a.batches), err)
	}
	return a
}

// alloc asks for a region in the next slot, and says that it has heard of all before.
func (a *rawAllocator) alloc(number, length uint64) {
	id := a.session.Node()
	slots := uint64(len(a.batches)) * dsmpacket.BatchSlots
	slot := a.batches[number%slots/dsmpacket.BatchSlots]*dsmpacket.BatchSlots + uint32(number%dsmpacket.BatchSlots)
	m := dsmpacket.Header{Kind: dsmpacket.Request, Request: number, Floor: number, Incarnation: id.Incarnation, Length: length}
	to := dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, dsmpacket.IDOf(slot, uint32(1+(number-1<<20)/slots%8))).With(dsmpacket.OpAlloc)
	a.host.SendRaw(netip.AddrPortFrom(id.Address, rackaddr.PortDSM), netip.AddrPortFrom(to.Addr(), rackaddr.PortDSM), m.Append(nil))
}

func (a *rawAllocator) close() {
	if err := a.session.Close(a.ctx); err != nil {
		a.t.Error(err)
	}
}
