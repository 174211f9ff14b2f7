package simrack_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestDeadlockOfDirectCalls: services with state that are called direct, and wait for each
// other, are told so: one that comes back to itself, and two that call each other.
func TestDeadlockOfDirectCalls(t *testing.T) {
	withRegisters(t, "", func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		if _, err := echo(ctx, n, "R", "S R "); rpc.CodeOf(err) != rpc.Deadlock {
			t.Errorf("R calls S, which calls R: %v", err)
		}
		for round := range 8 {
			var all sync.WaitGroup
			failed := make(chan error, 2)
			for _, way := range [][2]string{{"R", "S "}, {"S", "R "}} {
				all.Go(func() {
					_, err := echo(ctx, n, way[0], way[1])
					failed <- err
				})
			}
			all.Wait()
			for range 2 {
				if err := <-failed; err != nil && rpc.CodeOf(err) != rpc.Deadlock {
					t.Errorf("round %d: %v", round, err)
				}
			}
		}
		if v, err := echo(ctx, n, "R", ""); err != nil {
			t.Errorf("in the end: %d, %v", v, err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestDeadlock_ByReference: a service with state calls another one by reference with policy none, which calls it back.
func TestDeadlock_ByReference(t *testing.T) {
	withRack(t, "", &registers{nodes: map[string]*rpc.Node{}, size: 8}, func(ctx context.Context, r *registers) {
		n := r.client(ctx, t)
		for what, code := range map[string]rpc.Code{"@ S ": rpc.OK, "@ S R ": rpc.Deadlock, "S @ R ": rpc.Deadlock, "@ S @ R ": rpc.Deadlock} {
			began := time.Now()
			if v, err := echo(ctx, n, "R", what); rpc.CodeOf(err) != code {
				t.Errorf("R, %q: %d, %v", what, v, err)
			}
			if took := time.Since(began); took > time.Second { // virtual
				t.Errorf("R, %q: it took %v", what, took)
			}
		}
		if v, err := echo(ctx, n, "R", ""); err != nil || v != 1 {
			t.Errorf("R in the end: %d, %v", v, err)
		}
		if v, err := echo(ctx, n, "S", ""); err != nil || v != 2 {
			t.Errorf("S in the end: %d, %v", v, err)
		}
		if err := n.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// byReference calls a register with policy none. What it is to do is lent to it, and its answer is handed over.
func (r *register) byReference(ctx context.Context, service string, what []byte) ([]byte, error) {
	m := rpc.Memory(ctx)
	p, err := stored(ctx, m, what)
	if err != nil {
		return nil, err
	}
	g, err := arrays.NewArraysClient(r.node.Client(service, rpc.WithPolicy(rpc.PolicyNone))).EchoRef(ctx, rpc.GlobalPointer(p), int64(len(what)))
	if err != nil {
		return nil, errors.Join(err, m.Free(ctx, p))
	}
	got, err := rpc.PointerOf(g)
	if err != nil {
		return nil, err
	}
	answer := make([]byte, 8)
	_, err = m.Read(ctx, got, answer)
	return answer, errors.Join(err, m.Free(ctx, got), m.Free(ctx, p))
}

// EchoRef is Echo of what it is lent.
func (r *register) EchoRef(ctx context.Context, data *bifrost.GlobalPointer, length int64) (*bifrost.GlobalPointer, error) {
	p, err := rpc.PointerOf(data)
	if err != nil {
		return nil, err
	}
	m, what := rpc.Memory(ctx), make([]byte, length)
	if _, err := m.Read(ctx, p, what); err != nil {
		return nil, err
	}
	answer, err := r.Echo(ctx, what)
	if err != nil {
		return nil, err
	}
	result, err := stored(ctx, m, answer)
	return rpc.GlobalPointer(result), err
}

// TestDeadlocksAtRandom: six clients call services with state that call each other, one way and the
// other. Each call ends, within a second of when nothing
// but a deadlock holds it up, and counts once if it succeeds; and in calls of one way only nothing
// is taken for a deadlock, however long they wait.
func TestDeadlocksAtRandom(t *testing.T) {
	seeds, rounds := uint64(6), 20
	if testing.Short() { // with the race detector, under which they took a third of the package's time
		seeds, rounds = 2, 5
	}
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			withRegisters(t, "", func(ctx context.Context, r *registers) {
				n := r.client(ctx, t)
				cyclic := seed%2 == 0
				var counted, deadlocks atomic.Int64
				var all sync.WaitGroup
				for k := range uint64(6) {
					all.Go(func() {
						random := rand.New(rand.NewPCG(seed, k))
						for range rounds {
							way := wayOf(random, cyclic)
							bounded, cancel := context.WithTimeout(ctx, 10*time.Second)
							_, err := echo(bounded, n, way[0], strings.Join(way[1:], " "))
							cancel()
							switch rpc.CodeOf(err) {
							case rpc.OK:
								counted.Add(1)
							case rpc.Deadlock:
								deadlocks.Add(1)
							default:
								t.Errorf("%q: %v", way, err)
							}
						}
					})
				}
				all.Wait()
				t.Logf("%d calls, %d deadlocks", counted.Load(), deadlocks.Load())
				if cyclic != (deadlocks.Load() > 0) {
					t.Errorf("%d deadlocks", deadlocks.Load())
				}
				sum := uint64(0)
				for _, service := range []string{"R", "S"} {
					v, err := echo(ctx, n, service, "")
					if err != nil {
						t.Fatal(err)
					}
					sum += v - 1
				}
				if got := uint64(counted.Load()); sum != got { //nolint:gosec // not negative
					t.Errorf("%d calls counted, want %d", sum, got)
				}
				if err := n.Close(ctx); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// wayOf is a way through services with state: the last one counts.
func wayOf(random *rand.Rand, cyclic bool) []string {
	way := []string{"R"}
	if cyclic && random.IntN(2) == 0 {
		way[0] = "S"
	}
	if random.IntN(2) == 0 {
		way = append(way, map[string]string{"R": "S", "S": "R"}[way[0]])
	}
	if cyclic && len(way) == 2 && random.IntN(6) == 0 { // this one waits for itself in any case
		way = append(way, way[0])
	}
	if last := len(way) - 1; last > 0 && random.IntN(4) == 0 { // a call of policy none
		way = slices.Insert(way, last, "?")
	}
	return append(way, "")
}

// TestDeadlock_Long: services with state call each other in a row. A call for which more of them wait than its trailer can
// name fails, whatever its policy.
func TestDeadlock_Long(t *testing.T) {
	withByHand(t, func(ctx context.Context, h *byHand) {
		h.size = 8
		var names []string
		for k := range control.MaxSerial + 2 {
			names = append(names, fmt.Sprint("R", k))
			h.must(h.start(ctx, "s1", names[k], names[k]))
		}
		last := len(names) - 1
		if v, err := echo(ctx, h.caller, names[0], strings.Join(names[1:last], " ")+" "); err != nil || v != 1 {
			h.Errorf("%d services wait: %d, %v", control.MaxSerial, v, err)
		}
		for _, policy := range []string{"", "? "} {
			way := strings.Join(names[1:last], " ") + " " + policy + names[last] + " "
			if _, err := echo(ctx, h.caller, names[0], way); rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "16 services with state wait for each other") {
				h.Errorf("%q: %v", way, err)
			}
		}
		h.counts(ctx, names[last], 1)
	})
}

// TestDeadlock_Unnamed: the caller of a handler of policy none does not say who waits for the call. The handler's exactly-once call
// goes direct.
func TestDeadlock_Unnamed(t *testing.T) {
	ran := 0
	withDirect(t, func(context.Context) error { ran++; return nil }, func(d *direct) {
		method, err := rpcpacket.MethodOf("ping")
		if err != nil {
			d.Fatal(err)
		}
		args := thrift.NewTMemoryBuffer()
		out := thrift.NewTBinaryProtocolConf(args, nil)
		if err := errors.Join(out.WriteMessageBegin(d.Context(), "ping", thrift.CALL, 0), (&arrays.PingPingArgs{}).Write(d.Context(), out), out.WriteMessageEnd(d.Context())); err != nil {
			d.Fatal(err)
		}
		front := rackaddr.Service("Front").As16()
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Call, NameLength: 4, Method: method,
			Parent: rpcpacket.ID{9}, Service: binary.BigEndian.Uint64(front[8:]), CalleeIncarnation: incarnationOf(t, d.rack, d.front.Address()),
		}, Payload: args.Bytes()}
		place(t, d.rack, &m.Header, d.client.Address(), incarnationOf(t, d.rack, d.client.Address()), 0, 1)
		d.rack.Host("c1").SendRaw(netip.AddrPortFrom(d.client.Address(), rackaddr.PortDirect), netip.AddrPortFrom(d.front.Address(), rackaddr.PortDirect), m.Append(nil))
		<-time.After(5 * time.Second) // virtual
		if s := d.back.Stats(); ran != 1 || s.Accepted != 1 {
			d.Errorf("it has run %d times; %+v", ran, s)
		}
	})
}
