package simrack_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// large is a rack whose service Large is called direct: Echo answers with as many bytes as the
// first eight of its argument say.
type large struct {
	*testing.T
	*simrack.Rack
	runs       atomic.Int64
	increments atomic.Int64 // of runs, those of Increment
	waits      int64        // which of these waits until it is killed
	client     *rpc.Node
	server     *rpc.Node // of the present incarnation
	up         chan struct{}
}

// largeService is the handler.
type largeService struct {
	service.Arrays
	r *large
}

func (s largeService) Echo(_ context.Context, data []byte) ([]byte, error) {
	s.r.runs.Add(1)
	return answerTo(data), nil
}

// Increment waits once until it is killed.
func (s largeService) Increment(ctx context.Context, data []byte, _ int8) ([]byte, error) {
	s.r.runs.Add(1)
	if s.r.increments.Add(1) == s.r.waits {
		s.r.up <- struct{}{}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return answerTo(data), nil
}

// Add has an effect. In its first run its program is killed after that; the answer of the second one is lost.
func (s largeService) Add(ctx context.Context, a, _ []byte) ([]byte, error) {
	run := s.r.runs.Add(1)
	if _, err := rpc.Effect(ctx, "effect", func(context.Context) ([]byte, error) { return nil, nil }); err != nil {
		return nil, err
	}
	if run == 1 {
		if err := s.r.KillSoon("s1", "app/p/1"); err != nil {
			return nil, err
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	s.r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{Loss: 1})
	return a, nil
}

func answerTo(data []byte) []byte {
	return bytes.Repeat(append(data[:8:8], data[len(data)-8:]...), int(binary.BigEndian.Uint64(data))/16) //nolint:gosec // small
}

func withLarge(t *testing.T, mtu int, space uint64, f func(r *large)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &large{T: t, waits: 1, up: make(chan struct{}, 2)}
		var err error
		r.Rack, err = simrack.Start(t.Context(), simrack.Config{
			MTU: mtu, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), LedgerSpace: space,
			Programs: map[string]simrack.Program{"server": r.serve},
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Gatekeeper().Deploy(t.Context(), resources.Spec{Name: "app", Programs: []resources.Program{{
			Name: "p", Args: []string{"server"}, Nodes: 1, Blades: []string{"s1"}, Services: []resources.ServiceSpec{{Name: "Large"}},
		}}}); err != nil {
			t.Fatal(err)
		}
		<-r.up
		if r.client, err = r.Join(t.Context(), "c1", "client"); err != nil {
			t.Fatal(err)
		}
		f(r)
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func (r *large) serve(ctx context.Context, j join.Joiner, _ control.Start) error {
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("server"))
	if err != nil {
		return err
	}
	r.server = n
	if err := n.Export(ctx, "Large", arrays.NewArraysProcessor(largeService{r: r})); err != nil {
		return err
	}
	r.up <- struct{}{}
	<-ctx.Done()
	if errors.Is(context.Cause(ctx), simrack.ErrKilled) {
		return nil // like a process: not another word
	}
	return n.Close(context.WithoutCancel(ctx))
}

// echo calls with so many bytes, for an answer of so many.
func (r *large) echo(argument, answer int) error {
	data := bytes.Repeat([]byte("argument"), argument/8)
	binary.BigEndian.PutUint64(data, uint64(answer))             //nolint:gosec // not negative
	ctx, cancel := context.WithTimeout(r.Context(), time.Minute) // virtual
	defer cancel()
	got, err := arrays.NewArraysClient(r.client.Client("Large", rpc.WithPolicy(rpc.PolicyRecover))).Echo(ctx, data)
	if err == nil && !bytes.Equal(got, answerTo(data)) {
		err = errors.New("another array came back")
	}
	return err
}

// largeSizes are those of calls and answers, around what packets and records hold.
func largeSizes() []int {
	sizes := []int{1 << 10, 2 << 10, 20 << 10, 1 << 20, 5 << 20}
	if testing.Short() {
		return append(sizes[:3:3], 100<<10) // the race detector sees the same
	}
	return sizes
}

// TestLargeAnswersGoDirect: answers of any size go from node to node, and the Gatekeeper has no
// part in them.
func TestLargeAnswersGoDirect(t *testing.T) {
	for _, mtu := range []int{1500, 65535} {
		withLarge(t, mtu, 0, func(r *large) {
			for _, size := range largeSizes() {
				if err := r.echo(16, size); err != nil {
					r.Errorf("MTU %d, an answer of %d bytes: %v", mtu, size, err)
				}
			}
			if s := r.server.Stats(); s.Accepted != uint64(len(largeSizes())) || s.Parts == 0 {
				r.Errorf("MTU %d: %+v", mtu, s)
			}
		})
	}
}

// TestLargeAnswerSurvives: the node dies when its caller has a part of an answer. Its next
// incarnation has the rest, and does not run the call again.
func TestLargeAnswerSurvives(t *testing.T) {
	withLarge(t, 1500, 0, func(r *large) {
		client := r.Host("c1")
		client.Impair(wire.Impairment{}, wire.Impairment{Loss: 0.7})
		done := make(chan error, 1)
		go func() { done <- r.echo(16, 1<<20) }()
		for i := 0; r.server.Stats().Parts == 0 && i < 1000; i++ {
			<-time.After(time.Millisecond) // virtual
		}
		if err := r.KillSoon("s1", "app/p/1"); err != nil {
			r.Fatal(err)
		}
		<-r.up
		client.Impair(wire.Impairment{}, wire.Impairment{})
		if err := <-done; err != nil || r.runs.Load() != 1 {
			r.Errorf("%v after %d runs", err, r.runs.Load())
		}
		if s := r.server.Stats(); s.Parts == 0 || s.AnsweredFromLedger == 0 {
			r.Errorf("%+v", s)
		}
	})
}

// TestCallRunsAgain: the callee's program dies when a call of any size has begun. The next incarnation runs it again, and knows that the
// copy that its caller sends after that is the same call.
func TestCallRunsAgain(t *testing.T) {
	for _, size := range largeSizes() {
		withLarge(t, 1500, 0, func(r *large) {
			done := make(chan error, 1)
			go func() {
				_, err := arrays.NewArraysClient(r.client.Client("Large", rpc.WithPolicy(rpc.PolicyRecover))).Add(r.Context(), make([]byte, size), nil)
				done <- err
			}()
			<-r.up
			<-time.After(5 * time.Second) // virtual: its second run is over
			r.Host("c1").Impair(wire.Impairment{}, wire.Impairment{})
			if err := <-done; err != nil || r.runs.Load() != 2 {
				r.Errorf("%d bytes: %v after %d runs", size, err, r.runs.Load())
			}
			if s := r.server.Stats(); s.AnsweredFromLedger == 0 {
				r.Errorf("%d bytes: %+v: want an answer that was asked for again", size, s)
			}
		})
	}
}

// TestLargeCallsGoDirect: so do calls of any size.
func TestLargeCallsGoDirect(t *testing.T) {
	for _, mtu := range []int{1500, 65535} {
		withLarge(t, mtu, 0, func(r *large) {
			for _, size := range largeSizes() {
				if err := r.echo(size, 16); err != nil {
					r.Errorf("MTU %d, an argument of %d bytes: %v", mtu, size, err)
				}
			}
			if s := r.server.Stats(); s.Accepted != uint64(len(largeSizes())) || r.client.Stats().Parts == 0 {
				r.Errorf("MTU %d: %+v", mtu, s)
			}
		})
	}
}

// TestLargeCallsWithoutRoom: a call that the ledger will never have room for fails, and the node
// lives. Others wait for room.
func TestLargeCallsWithoutRoom(t *testing.T) {
	withLarge(t, 9000, 4<<20, func(r *large) {
		if err := r.echo(5<<20, 16); rpc.CodeOf(err) != rpc.NoSpace {
			r.Errorf("a call that is larger than the ledger: %v", err)
		}
		if n := r.runs.Load(); n != 0 {
			r.Errorf("it has run %d times", n)
		}
		var all sync.WaitGroup
		for range 10 { // at a time
			all.Go(func() {
				if err := r.echo(1<<20, 16); err != nil {
					r.Error(err)
				}
			})
		}
		all.Wait()
		if s := r.server.Stats(); s.Accepted != 11 || s.NoRoom == 0 {
			r.Errorf("%+v", s)
		}
	})
}

// TestLargeCallAnnounced: a node that announces a large call, and sends no more of it, leaves room
// for the calls of others.
func TestLargeCallAnnounced(t *testing.T) {
	withLarge(t, 9000, 4<<20, func(r *large) {
		if err := r.echo(1<<10, 16); err != nil { // the ledger is open
			r.Fatal(err)
		}
		stranger, err := r.Join(r.Context(), "s2", "stranger")
		if err != nil {
			r.Fatal(err)
		}
		method, err := rpcpacket.MethodOf("echo")
		if err != nil {
			r.Fatal(err)
		}
		a := rackaddr.Service("Large").As16()
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Call, Flags: rpcpacket.FlagMore.WithPolicy(rpcpacket.PolicyRecover), NameLength: 4, Method: method,
			Service: binary.BigEndian.Uint64(a[8:]),
		}, Payload: make([]byte, rpcpacket.MorePreface+1000), Trailer: make([]byte, 8)}
		m.Call.Derive()
		place(r.T, r.Rack, &m.Header, stranger.Address(), incarnationOf(r.T, r.Rack, stranger.Address()), 0, 1)
		r.Host("s2").Impair(wire.Impairment{}, wire.Impairment{Loss: 1}) // nobody says that there is no such call
		binary.BigEndian.PutUint64(m.Payload, 1<<20)                     // about as much as an owner may have: a record and a base of that size
		r.Host("s2").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortBulk), netip.AddrPortFrom(r.server.Address(), rackaddr.PortBulk), m.Append(nil))
		<-time.After(time.Millisecond) // virtual: it has arrived
		began := time.Now()
		if err := r.echo(6<<10, 16); err != nil || time.Since(began) > time.Second {
			r.Errorf("another's call: %v after %s", err, time.Since(began))
		}
		if s := r.server.Stats(); s.LargeMessages != 1 || s.NoRoom != 0 || s.LedgerRoom > 1<<20 {
			r.Errorf("%+v", s)
		}
	})
}

// TestLargeAnswersWithoutRoom: what the ledger can never have room for fails, and stays so; the node
// lives. Other answers wait until those before them are forgotten.
func TestLargeAnswersWithoutRoom(t *testing.T) {
	withLarge(t, 9000, 4<<20, func(r *large) {
		if err := r.echo(16, 5<<20); rpc.CodeOf(err) != rpc.NoSpace {
			r.Errorf("an answer that is larger than the ledger: %v", err)
		}
		for range 10 {
			if err := r.echo(16, 1<<20); err != nil {
				r.Errorf("one that fits: %v", err)
			}
		}
		var all sync.WaitGroup
		for range 10 { // at a time
			all.Go(func() {
				if err := r.echo(16, 1<<20); err != nil {
					r.Error(err)
				}
			})
		}
		all.Wait()
		if err := r.echo(16, 1<<20); err != nil {
			r.Errorf("when there is room again: %v", err)
		}
	})
}

// TestLargeAnswersWhileMemoryIsSilent: an answer waits for room in the ledger while memory is silent, for
// longer than it would wait for room else.
func TestLargeAnswersWhileMemoryIsSilent(t *testing.T) {
	withLarge(t, 9000, 5<<20, func(r *large) {
		link := func(up bool) {
			for _, m := range []string{"m1", "m2", "m3"} {
				r.Host(m).SetLink(up)
			}
		}
		var all sync.WaitGroup
		var answered atomic.Int64
		const calls = 2 // the ledger has room for one answer at a time
		for range calls {
			all.Go(func() {
				if err := r.echo(16, 1<<20); err != nil {
					r.Error(err)
				}
				answered.Add(1)
			})
		}
		<-time.After(10 * time.Millisecond) // virtual
		if n := answered.Load(); n == 0 || n == calls {
			r.Errorf("%d of %d calls are answered before memory is silent", n, calls)
		}
		link(false)
		<-time.After(2600 * time.Millisecond) // virtual: not yet as long as tells a failure
		link(true)
		all.Wait()
	})
}
