package simrack_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// book is a region that a clerk keeps over its checkpoints, and what it must find there.
type book struct {
	*clerk
	at      dsm.Pointer
	letters atomic.Int64 // that were read
	keeps   bool         // it sends no letters
}

// slow is a service that reads what it is lent after a while, and returns a copy.
type slow struct{ service.Arrays }

func (s slow) EchoRef(ctx context.Context, p *bifrost.GlobalPointer, n int64) (*bifrost.GlobalPointer, error) {
	<-time.After(300 * time.Millisecond) // virtual
	return s.Arrays.EchoRef(ctx, p, n)
}

// page is what the book holds after a round.
func page(round int) string { return fmt.Sprintf("page %d!!", round) }

// turn is a round: it sends one-ways, reads what the round before has written, writes, allocates, lends the book, and frees.
// The last round frees the book.
func (b *book) turn(ctx context.Context, round int) error {
	m := rpc.Memory(ctx)
	if err := b.post(ctx, round); err != nil {
		return err
	}
	if round == 0 {
		p, err := m.Alloc(ctx, 8)
		if err != nil {
			return err
		}
		if !b.at.IsNil() && b.at != p {
			return fmt.Errorf("the next run has got %s, the first one %s", p, b.at)
		}
		b.at = p
	} else if err := holds(ctx, m, b.at, page(round-1)); err != nil {
		return err
	}
	if _, err := m.Write(ctx, b.at, []byte(page(round))); err != nil {
		return err
	}
	scrap, err := m.Alloc(ctx, 5000)
	if err == nil {
		err = holds(ctx, m, scrap, "\x00\x00")
	}
	if err == nil {
		_, err = m.Write(ctx, scrap, []byte(page(round)))
	}
	if err == nil {
		err = b.lent(ctx, page(round))
	}
	if err == nil && !b.keeps {
		err = b.send(ctx, round)
	}
	if err != nil {
		return err
	}
	if round == b.rounds-1 {
		err = m.Free(ctx, b.at)
	}
	return errors.Join(err, m.Free(ctx, scrap))
}

// send hands a letter over, and does not use it any more.
func (b *book) send(ctx context.Context, round int) error {
	m := rpc.Memory(ctx)
	letter, err := m.Alloc(ctx, 8)
	if err == nil {
		_, err = m.Write(ctx, letter, []byte(page(round)))
	}
	if err == nil {
		err = hand(ctx, b.clerk.at(), "Letters", letter)
	}
	if err == nil {
		if err := m.Free(ctx, letter); rpc.CodeOf(err) != rpc.PermissionDenied && ctx.Err() == nil {
			b.t.Errorf("the letter is freed by who has handed it over: %v", err)
		}
	}
	return err
}

// letters is who gets them.
type letters struct {
	service.Arrays
	*book
}

func (l letters) EchoRef(ctx context.Context, p *bifrost.GlobalPointer, _ int64) (*bifrost.GlobalPointer, error) {
	at, err := rpc.PointerOf(p)
	if err != nil {
		return nil, err
	}
	got, m := make([]byte, 8), rpc.Memory(ctx)
	if _, err := m.Read(ctx, at, got); err != nil || !strings.HasPrefix(string(got), "page ") {
		l.t.Errorf("a letter holds %q: %v", got, err)
	}
	if _, err := m.Write(ctx, at, []byte("read")); err != nil {
		l.t.Errorf("who gets a letter writes to it: %v", err)
	}
	l.letters.Add(1)
	return nil, nil
}

// lent lends the book, and checks the copy that it gets, which stays until the main is over.
func (b *book) lent(ctx context.Context, want string) error {
	g, err := arrays.NewArraysClient(b.clerk.at().Client("Slow", rpc.WithPolicy(rpc.PolicyRecover))).EchoRef(ctx, rpc.GlobalPointer(b.at), 8)
	if err != nil {
		return err
	}
	p, err := rpc.PointerOf(g)
	if err != nil {
		return err
	}
	return holds(ctx, rpc.Memory(ctx), p, want)
}

// holds checks what a region begins with.
func holds(ctx context.Context, m *dsm.Client, p dsm.Pointer, want string) error {
	got := make([]byte, len(want))
	_, err := m.Read(ctx, p, got)
	if err == nil && string(got) != want {
		err = fmt.Errorf("%s holds %q, want %q", p, got, want)
	}
	return err
}

// decides reports whether a frame that has arrived is a word of a node about what an execution has changed in memory, or the
// answer to one, or a message of a node to the Gatekeeper, or its answer.
func decides(f wire.Frame) bool {
	u, err := frame.ParseUDP6(f.Data)
	if err != nil || f.Stage != wire.Arrived {
		return false
	}
	for _, a := range []netip.AddrPort{u.Src, u.Dst} {
		p := dsmpacket.FromAddr(a.Addr())
		if a.Port() == rackaddr.PortDSM && p.InPrefix(rackaddr.DefaultDSMPrefix) && p.Op() == dsmpacket.OpLedger && dsmpacket.LedgerOp(p.Arg()).Word() {
			return true
		}
		if a.Addr() == rackaddr.Gatekeeper && a.Port() == rackaddr.PortRPC {
			return true
		}
	}
	return false
}

// keeps runs a book's main to its end, and counts the frames that decide. At one of them, if there is one with that number, its
// program is killed; the Gatekeeper dies with it if it is to.
func keeps(t *testing.T, at int64, gatekeeper bool) (frames int64, s rpc.Stats) {
	t.Helper()
	withClerk(t, 3, func(ctx context.Context, k *clerk) {
		n, err := k.Join(ctx, "c1", "others")
		b := &book{clerk: k}
		if err == nil {
			err = errors.Join(n.Export(ctx, "Slow", arrays.NewArraysProcessor(slow{})), n.Export(ctx, "Letters", arrays.NewArraysProcessor(letters{book: b})))
		}
		if err != nil {
			t.Fatal(err)
		}
		k.aside = b.turn
		var seen atomic.Int64
		died := make(chan struct{})
		see := func(f wire.Frame) {
			if !decides(f) || seen.Add(1) != at {
				return
			}
			for _, blade := range []string{"c1", "s1", "s2"} {
				_ = k.KillSoon(blade, "office/clerk/1") // it runs at one of them
			}
			if gatekeeper {
				k.CrashGatekeeper()
			}
			close(died)
		}
		k.onFrame.Store(&see)
		k.deploy(ctx)
		if at > 0 && gatekeeper {
			<-died
			<-time.After(time.Second) // virtual
			if err := k.RestartGatekeeper(ctx); err != nil {
				t.Fatal(err)
			}
		}
		k.ended(ctx)
		if n := b.letters.Load(); n != int64(k.rounds) {
			t.Errorf("frame %d: %d letters were read, want %d", at, n, k.rounds)
		}
		frames, s = seen.Load(), k.stats
		k.onFrame.Store(nil)
		k.regions(ctx, 0)
		for _, name := range []string{"m1", "m2"} {
			if u := k.MemoryServer(name).Metrics().Undo; u.Executions != 0 {
				t.Errorf("frame %d: undo is left on %s: %+v", at, name, u)
			}
		}
		k.counted(ctx, 2*k.rounds)
	})
	return frames, s
}

// TestMainMemory: a durable main allocates, writes, lends, frees, sends one-ways and makes checkpoints. Its program dies when any
// packet has arrived that decides what becomes of that, alone or with the Gatekeeper. The next run finds what memory held at its
// last checkpoint, and gets the regions that the one before had got. At the end nothing is left.
func TestMainMemory(t *testing.T) {
	all, _ := keeps(t, 0, false)
	t.Logf("%d frames decide", all)
	for at := int64(1); at <= all; at++ {
		if !testing.Short() || at%15 == 1 {
			keeps(t, at, at%3 == 0)
		}
	}
}

// TestMainMemory_Again: the function of a durable main fails, and the main runs once more in the same program. What the
// first run has changed in memory is taken back, and the second one gets the same regions.
func TestMainMemory_Again(t *testing.T) {
	withClerk(t, 3, func(ctx context.Context, k *clerk) {
		n, err := k.Join(ctx, "c1", "others")
		if err == nil {
			err = n.Export(ctx, "Slow", arrays.NewArraysProcessor(slow{}))
		}
		if err != nil {
			t.Fatal(err)
		}
		b := &book{clerk: k, keeps: true}
		var failed []int
		k.aside = func(ctx context.Context, round int) error {
			err := b.turn(ctx, round)
			if err == nil && !slices.Contains(failed, round) {
				failed = append(failed, round)
				err = errAgain
			}
			return err
		}
		k.again = errAgain
		k.deploy(ctx)
		k.ended(ctx)
		if !slices.Equal(k.begun, []int{0, 0, 1, 2}) {
			t.Errorf("runs begun with rounds %v", k.begun)
		}
		k.regions(ctx, 0)
		k.counted(ctx, 2*k.rounds)
	})
}

var errAgain = errors.New("once more")

// TestMainMemory_Away: no machine has two copies. One of them cannot be heard when a main that has changed it makes its
// checkpoint, and is back with what it had. The checkpoint waits for it. The main's program dies meanwhile, or does
// not: what the checkpoint has committed is there, and what came after it is not.
func TestMainMemory_Away(t *testing.T) {
	for _, dies := range []bool{false, true} {
		for _, away := range []string{"m1", "m2"} {
			withMemory(t, 3, nil, func(ctx context.Context, k *clerk) {
				var at []dsm.Pointer
				k.aside = func(ctx context.Context, round int) error {
					m := rpc.Memory(ctx)
					if round == 0 {
						at = nil
					}
					machines := map[uint8]bool{}
					for round == 0 && len(machines) < 2 {
						p, err := m.Alloc(ctx, 8)
						if err != nil {
							return err
						}
						machines[p.Machine()] = true
						at = append(at, p)
					}
					slices.SortStableFunc(at, func(p, q dsm.Pointer) int { // the one that is away comes last
						return strings.Compare(strings.TrimPrefix(fmt.Sprintf("m%d", p.Machine()), away), strings.TrimPrefix(fmt.Sprintf("m%d", q.Machine()), away))
					})
					slices.Reverse(at)
					for _, p := range at {
						if round > 0 {
							if err := holds(ctx, m, p, page(round-1)); err != nil {
								return err
							}
						}
						if _, err := m.Write(ctx, p, []byte(page(round))); err != nil {
							return err
						}
					}
					if round != 1 || len(k.begun) > 1 {
						return nil
					}
					k.Host(away).SetLink(false)
					if dies {
						time.AfterFunc(time.Second, func() { k.kill() })    // virtual
						time.AfterFunc(10*time.Second, func() { k.kill() }) // the next one, which waits
					}
					time.AfterFunc(20*time.Second, func() { k.Host(away).SetLink(true) })
					return nil
				}
				k.deploy(ctx)
				k.ended(ctx)
				if dies != (len(k.begun) > 1) {
					t.Errorf("%s: runs begun with rounds %v", away, k.begun)
				}
				k.regions(ctx, 0)
			})
		}
	}
}

// TestMainMemory_Lost: the first copies of a main's last one-way, which hands a letter over, are lost. The main is over when
// the letter has been taken.
func TestMainMemory_Lost(t *testing.T) {
	withClerk(t, 1, func(ctx context.Context, k *clerk) {
		n, err := k.Join(ctx, "c1", "others")
		b := &book{clerk: k}
		if err == nil {
			err = n.Export(ctx, "Letters", arrays.NewArraysProcessor(letters{book: b}))
		}
		if err != nil {
			t.Fatal(err)
		}
		k.aside = b.send
		var lost atomic.Int64
		lose := func(f wire.Frame) {
			u, err := frame.ParseUDP6(f.Data)
			if err != nil || !f.ToSwitch || !rackaddr.OfCalls(u.Dst.Port()) {
				return
			}
			m, err := rpcpacket.Parse(u.Payload)
			switch {
			case err != nil || m.Type != rpcpacket.Oneway || len(m.Lists) == 0:
			case f.Stage == wire.Arriving && lost.Load() < 3:
				k.Host(f.Host).SetLink(false)
			case f.Stage == wire.Lost:
				if lost.Add(1) == 3 && k.isOver() {
					t.Error("the main is over, and nobody has taken the letter")
				}
				k.Host(f.Host).SetLink(true)
			}
		}
		k.onFrame.Store(&lose)
		k.deploy(ctx)
		k.ended(ctx)
		if n := b.letters.Load(); n != 1 || lost.Load() != 3 {
			t.Errorf("%d letters were read, want 1; %d copies were lost, want 3", n, lost.Load())
		}
		k.onFrame.Store(nil)
		k.regions(ctx, 0)
	})
}
