package rpc_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// noise is n bytes that are easily told from others.
func noise(seed uint64, n int) []byte {
	random := rand.New(rand.NewPCG(seed, uint64(n)))
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(random.Uint32())
	}
	return b
}

// Values of any size pass both ways at every MTU, and nothing is left over.
func TestLargeValues(t *testing.T) {
	for _, mtu := range []int{1280, 1500, 9000, 65535} {
		t.Run(fmt.Sprint("mtu=", mtu), func(t *testing.T) {
			p := &pair{rack: testrack.New(t, wire.Config{MTU: mtu}), handler: &testsvc.Handler{}}
			p.server = serve(t, p.rack, p.handler)
			p.caller = joinNode(t, p.rack, "client")
			p.client = p.newClient()
			for _, size := range []int{mtu - 300, mtu - 200, mtu - 100, mtu, 2 * mtu, 64 << 10, 1 << 20, 5<<20 + 1} {
				want := noise(1, size)
				got, err := p.client.Blob(t.Context(), want)
				if err != nil || !bytes.Equal(got, want) {
					t.Fatalf("%d bytes came back as %d, %v", size, len(got), err)
				}
			}
			text := string(bytes.Repeat([]byte("long "), 50000))
			if got, err := p.client.MethodWithAVeryLongName(t.Context(), text); got != text || err != nil {
				t.Errorf("a string of %d bytes came back with %d, %v", len(text), len(got), err)
			}
			if s := p.server.Stats(); s.Parts == 0 || p.caller.Stats().Parts == 0 {
				t.Errorf("no parts were sent: %+v", s)
			}
		})
	}
}

// The least bad network of a rack and a much worse one carry large values too; a call
// runs once. Several at a time share the windows.
func TestLargeOnBadNetwork(t *testing.T) {
	virtual(t, 5, nil, func(t *testing.T, p *pair) {
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				c := p.newClient()
				for n := range 3 {
					want := noise(uint64(i), 100_000+n*700_000)
					if got, err := c.Blob(t.Context(), want); err != nil || !bytes.Equal(got, want) {
						t.Errorf("%d bytes came back as %d, %v", len(want), len(got), err)
					}
				}
			})
		}
		wg.Wait()
		if s := p.server.Stats(); s.Served != 24 {
			t.Errorf("%d calls ran: %+v", s.Served, s)
		}
	})
}

// slowly takes its time over a blob.
type slowly struct {
	*testsvc.Handler
	wait time.Duration
}

func (h slowly) Blob(_ context.Context, raw []byte) ([]byte, error) {
	<-time.After(h.wait) // virtual
	return raw[:1], nil
}

// The copies of a large call that its callee runs do not bring its parts again.
func TestCopiesWithoutParts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{MTU: 1500, Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}})
		caller := joinNode(t, r, "client")
		parts := map[time.Duration]uint64{}
		for _, wait := range []time.Duration{0, time.Minute} {
			name := "After" + wait.String()
			if err := joinNode(t, r, name).Export(t.Context(), name, testsvc.NewTestProcessor(slowly{&testsvc.Handler{}, wait})); err != nil {
				t.Fatal(err)
			}
			c := testsvc.NewTestClient(plain(caller, name))
			if err := c.Ping(t.Context()); err != nil { // now the caller knows where parts go
				t.Fatal(err)
			}
			before := caller.Stats()
			if got, err := c.Blob(t.Context(), noise(1, 1<<20)); len(got) != 1 || err != nil {
				t.Errorf("blob: %d bytes, %v", len(got), err)
			}
			after := caller.Stats()
			parts[wait] = after.Parts - before.Parts
			if resent := after.Resent - before.Resent; wait > 0 && resent == 0 {
				t.Error("no copy was sent")
			}
		}
		if parts[0] == 0 || parts[0] != parts[time.Minute] {
			t.Errorf("a call in %d parts sends %d with copies", parts[0], parts[time.Minute])
		}
	})
}

// TestCopiesSayNothingPushed: the first packet of a large call says that parts follow, and copies of it, behind which none do, say so.
func TestCopiesSayNothingPushed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		r := testrack.New(t, wire.Config{MTU: 1500})
		callee, caller := newPeerOn(t, r, "callee", rackaddr.Node(78), rackaddr.PortBulk), joinNode(t, r, "client")
		r.Play(rackaddr.Node(78), "Test")
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second) // virtual
		defer cancel()
		go func() { _, _ = testsvc.NewTestClient(plain(caller, "Test")).Blob(ctx, make([]byte, 1<<20)) }()
		for copies := range 2 {
			m := callee.must()
			o, err := m.Opening()
			if err != nil || (o.Pushed.Node == 78) != (copies == 0) {
				t.Errorf("copy %d says that to node %d %d parts are pushed, %v", copies, o.Pushed.Node, o.Pushed.Parts, err)
			}
		}
		<-ctx.Done()
	})
}

// A message beyond a limit is refused with the limit and the remedy: by the caller, by
// the callee, and each of them for an answer.
func TestTooLarge(t *testing.T) {
	r := testrack.New(t, wire.Config{MTU: 1500})
	limited := func(name string, limit uint64) *rpc.Node {
		n, err := rpc.Join(join.NewContext(t.Context(), r.Joiner()), rpc.WithName(name), rpc.WithMaxMessage(limit))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { closeNode(t, n) })
		return n
	}
	small, large := limited("small", 50_000), limited("large", 200_000)
	for n, name := range map[*rpc.Node]string{small: "Small", large: "Large"} {
		if err := n.Export(t.Context(), name, testsvc.NewTestProcessor(verbose{&testsvc.Handler{}})); err != nil {
			t.Fatal(err)
		}
	}
	for name, c := range map[string]struct {
		caller *rpc.Node
		callee string
		size   int
		remote bool
		bytes  string // of the message that is refused
	}{
		"the caller's limit":            {small, "Large", 50_000, false, "50024 bytes"},
		"the callee's limit":            {large, "Small", 60_000, true, "60024 bytes"},
		"an answer, the callee's limit": {large, "Small", 10, true, "100024 bytes"},
		"an answer, the caller's limit": {small, "Large", 10, true, "100024 bytes"},
	} {
		var coded *rpc.Error
		_, err := testsvc.NewTestClient(plain(c.caller, c.callee)).Blob(t.Context(), make([]byte, c.size))
		if !errors.As(err, &coded) || coded.Code != rpc.BadRequest || coded.Remote != c.remote ||
			!strings.Contains(err.Error(), c.bytes) || !strings.Contains(err.Error(), "WithMaxMessage") {
			t.Errorf("%s: %v", name, err)
		}
		if err := testsvc.NewTestClient(plain(c.caller, c.callee)).Check(t.Context(), 1); err != nil {
			t.Errorf("%s: the next call: %v", name, err)
		}
	}
	if _, err := testsvc.NewTestClient(plain(large, "Large")).Blob(t.Context(), make([]byte, 199_000)); err != nil {
		t.Errorf("within the limits: %v", err)
	}
}

// A caller that gives a large call up leaves nothing behind on either side.
func TestLargeGivenUp(t *testing.T) {
	virtual(t, 9, nil, func(t *testing.T, p *pair) {
		for n := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(n)*200*time.Microsecond)
			_, err := p.client.Blob(ctx, make([]byte, 4<<20))
			cancel()
			if code := rpc.CodeOf(err); code != rpc.OK && code != rpc.Deadline {
				t.Fatal(err)
			}
		}
		if _, err := p.client.Blob(t.Context(), make([]byte, 4<<20)); err != nil {
			t.Fatal(err)
		}
		pass(time.Minute)
		for _, n := range []*rpc.Node{p.caller, p.server} {
			if open, claimed := n.LargeInUse(); open != 0 || claimed != 0 {
				t.Errorf("%s: %d transfers, %d bytes are left", n.Name(), open, claimed)
			}
			if calls := n.UnderWay(); calls != 0 {
				t.Errorf("%s says that %d calls run", n.Name(), calls)
			}
		}
	})
}

// A callee that is away in the middle of a transfer gets the call when it is back.
func TestLargeCalleeAway(t *testing.T) {
	virtual(t, 4, nil, func(t *testing.T, p *pair) {
		server := p.rack.Net.Host("server")
		time.AfterFunc(2*time.Millisecond, func() { server.SetLink(false) })
		time.AfterFunc(time.Minute, func() { server.SetLink(true) })
		want := noise(3, 8<<20)
		start := time.Now()
		got, err := p.client.Blob(t.Context(), want)
		if err != nil || !bytes.Equal(got, want) || time.Since(start) < time.Minute {
			t.Errorf("%d bytes after %v: %v", len(got), time.Since(start), err)
		}
	})
}

// What arrives at the port for parts and is none changes nothing.
func TestForgedParts(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		p := newPair(t)
		stranger := newPeer(t, p.rack, "stranger", rackaddr.Node(77))
		h := bulk.Header{Kind: bulk.Part, Call: callOf(t, "ping", 1, nil).Call, Total: 100, Offset: 10, Size: 90, First: 10}
		good := append(h.Append(nil), make([]byte, 90)...)
		pull := h
		pull.Kind, pull.Offset = bulk.Pull, 0
		for _, b := range [][]byte{nil, {1, 2, 3}, good, good[:50], pull.Append(nil, bulk.Range{Offset: 10, Length: 90})} {
			stranger.sendTo(p.server.Address(), rackaddr.PortBulk, b)
		}
		synctest.Wait()
		if s := p.server.Stats(); s.Malformed != 3 {
			t.Errorf("%+v", s)
		}
		want := noise(2, 200_000)
		if got, err := p.client.Blob(t.Context(), want); err != nil || !bytes.Equal(got, want) {
			t.Error(len(got), err)
		}
	})
}
