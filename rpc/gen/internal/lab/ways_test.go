package lab_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
)

// TestWays: in calls of policy none a value travels in parts up to 2 MiB and, if it is passed
// again, below 1 MiB. All others stand in memory, and so does what a ledger would keep.
func TestWays(t *testing.T) {
	const packet, mega = 65487 - 512, 1 << 20
	onRack(t, func(w *world) {
		recovers := lab.OpenLab(w.node, "Lab")
		none := lab.OpenLab(w.node, "Lab", rpc.WithPolicy(rpc.PolicyNone))
		for _, c := range []struct {
			size         int
			client       *lab.LabRefClient
			first, again int // regions
		}{
			{packet + 1, none, 0, 0},
			{mega - 1, none, 0, 0},
			{mega, none, 0, 1},
			{2 * mega, none, 0, 1},
			{2*mega + 1, none, 1, 1},
			{packet, recovers, 0, 0},
			{packet + 1, recovers, 1, 1},
		} {
			raw := rpc.RefOf(make([]byte, c.size))
			for i, want := range []int{c.first, c.again} {
				n, err := c.client.Count(w.ctx, raw)
				if n != int64(c.size) || err != nil {
					t.Errorf("count: %d, %v", n, err)
				}
				if got := w.regions(); got != want {
					t.Errorf("%d bytes take %d regions in call %d, want %d", c.size, got, i+1, want)
				}
			}
			w.must(raw.Free(w.ctx))
			w.empty()
		}
		for size, want := range map[int]int{packet + 1: 0, 2 * mega: 0, 2*mega + 1: 2} { // with the result
			raw := rpc.RefOf(ones(size))
			negative, err := none.Develop(w.ctx, raw, 1)
			w.must(err)
			if got := w.regions(); got != want {
				t.Errorf("%d bytes there and back take %d regions, want %d", size, got, want)
			}
			same, err := none.Develop(w.ctx, negative, -1) // returns what it was lent
			w.must(err)
			if b, err := same.Load(w.ctx); len(b) != size || err != nil || b[size-1] != 0xfe {
				t.Errorf("what was lent came back as %d bytes, %v", len(b), err)
			}
			w.must(raw.Free(w.ctx))
			w.must(negative.Free(w.ctx))
			w.must(same.Free(w.ctx))
			w.empty()
		}
	})
}

func ones(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = 1
	}
	return b
}

// regions is how many there are.
func (w *world) regions() int {
	w.t.Helper()
	s, err := w.rack.Gatekeeper().Snapshot(w.ctx)
	w.must(err)
	return len(s.Regions)
}

// passer lends what it was lent twice, and returns what it was told; the last one loads it.
type passer struct {
	next *lab.KeeperRefClient
	last func()
}

func (p *passer) Keep(ctx context.Context, film *rpc.Ref[[]byte]) (n int64, err error) {
	if p.next == nil {
		p.last()
		b, err := film.Load(ctx)
		return int64(len(b)), err
	}
	for range 2 {
		if n, err = p.next.Keep(ctx, film); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (*passer) Kept(context.Context) (int64, error) { return 0, nil }
func (*passer) Snapshot() ([]byte, error)           { return nil, nil }
func (*passer) Restore([]byte) error                { return nil }

// TestPassedOn: a value that came inside a call and is lent on becomes a region at the first
// node that does so, if it has 1 MiB or more. It stays one along the chain, and goes when the
// first handler has returned.
func TestPassedOn(t *testing.T) {
	const mega = 1 << 20
	onRack(t, func(w *world) {
		var seen []int
		none := rpc.WithPolicy(rpc.PolicyNone)
		below := ""
		for i, name := range []string{"Third", "Middle", "Front"} {
			node, err := w.rack.Join(w.ctx, []string{"s1", "s2", "s1"}[i], name)
			w.must(err)
			defer func() { w.must(node.Close(w.ctx)) }()
			p := &passer{last: func() { seen = append(seen, w.regions()) }}
			if below != "" {
				p.next = lab.NewKeeperRefClient(node.Client(below, none))
			}
			w.must(node.Export(w.ctx, name, lab.NewKeeperRefProcessor(p)))
			below = name
		}
		client := lab.NewKeeperRefClient(w.node.Client(below, none))
		for _, c := range []struct { // the large one first: no node has learned yet that its callee passes it on
			size int
			want string
		}{{mega, "[1 1 1 1]"}, {mega - 1, "[0 0 0 0]"}} {
			seen = nil
			n, err := client.Keep(w.ctx, rpc.RefOf(ones(c.size)))
			if n != int64(c.size) || err != nil {
				t.Errorf("keep: %d, %v", n, err)
			}
			if got := fmt.Sprint(seen); got != c.want {
				t.Errorf("%d bytes that are passed on take %s regions, want %s", c.size, got, c.want)
			}
			w.empty()
		}
	})
}

// TestLearned: what callees pass on goes into memory before its first call, as soon as two answers have
// said so, and no more when they have stopped. Shorter values do not, nor do those of exactly-once calls of handlers.
func TestLearned(t *testing.T) {
	const mega = 1 << 20
	onRack(t, func(w *world) {
		none, server := rpc.WithPolicy(rpc.PolicyNone), w.server
		last := &passer{last: func() {}}
		w.must(server.Export(w.ctx, "Last", lab.NewKeeperRefProcessor(last)))
		front := &passer{next: lab.NewKeeperRefClient(server.Client("Last", none)), last: func() {}}
		w.must(server.Export(w.ctx, "Front", lab.NewKeeperRefProcessor(front)))
		client := lab.NewKeeperRefClient(w.node.Client("Front", none))
		keep := func(size int) (regions, messages uint64) {
			before := w.node.Stats()
			raw := rpc.RefOf(ones(size))
			_, err := client.Keep(w.ctx, raw)
			w.must(err)
			w.must(raw.Free(w.ctx))
			after := w.node.Stats()
			return after.RefsInRegions - before.RefsInRegions, after.RefsInMessages - before.RefsInMessages
		}
		for i, c := range []struct {
			size   int
			passes bool
			region uint64
		}{
			{mega, true, 0}, {mega, true, 0}, {mega, true, 1}, {mega - 1, true, 0}, // it passes them on
			{mega, false, 1}, {mega, false, 1}, {mega, false, 0}, // and has stopped
			{mega, true, 0}, {mega, true, 0}, {mega, true, 1}, // and goes on
		} {
			front.next = nil
			if c.passes {
				front.next = lab.NewKeeperRefClient(server.Client("Last", none))
			}
			if region, message := keep(c.size); region != c.region || message != 1-c.region {
				t.Errorf("call %d of %d bytes: %d regions, %d in messages; want %d regions", i, c.size, region, message, c.region)
			}
		}
		w.empty()
	})
}

// TestForced: the IDL says how a value travels, whatever its size and the policy.
func TestForced(t *testing.T) {
	onRack(t, func(w *world) {
		server := w.server
		w.must(lab.ExportForced(w.ctx, server, "Forced", forced{}))
		for _, policy := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			client := lab.OpenForced(w.node, "Forced", rpc.WithPolicy(policy))
			for _, size := range []int{1, 100_000, 3 << 20} {
				for way, call := range map[string]func(context.Context, *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error){
					"region, then value": client.OutOfRegion, "value, then region": client.OutOfMessage,
				} {
					before, served := w.node.Stats(), server.Stats()
					raw := rpc.RefOf(ones(size))
					got, err := call(w.ctx, raw)
					w.must(err)
					there, back := w.node.Stats().RefsInRegions-before.RefsInRegions, server.Stats().RefsInRegions-served.RefsInRegions
					if b, err := got.Take(w.ctx); len(b) != size || err != nil || b[size-1] != 1 {
						t.Errorf("%s, %d bytes: came back as %d bytes, %v", way, size, len(b), err)
					}
					if out := way == "region, then value"; (there == 1) != out || (back == 1) == out {
						t.Errorf("%s, %d bytes, %s: %d regions there, %d back", way, size, policy, there, back)
					}
					w.must(raw.Free(w.ctx))
					w.empty()
				}
			}
		}
	})
}

type forced struct{}

func (forced) OutOfRegion(ctx context.Context, raw *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	b, err := raw.Load(ctx)
	return rpc.RefOf(b), err
}

func (f forced) OutOfMessage(ctx context.Context, raw *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	return f.OutOfRegion(ctx, raw)
}

// darkroom makes a value of its own and has it developed.
type darkroom struct {
	*handler
	seen func()
}

func (d *darkroom) Develop(ctx context.Context, raw *rpc.Ref[[]byte], contrast int32) (*rpc.Ref[[]byte], error) {
	b, err := raw.Load(ctx)
	if err != nil {
		return nil, err
	}
	made := rpc.RefOf(ones(int(b[0]) << 10))
	got, err := d.again.Develop(ctx, made, contrast)
	if err != nil {
		return nil, err
	}
	d.seen()
	return got, made.Free(ctx)
}

// TestWaysOfExecutions: what an exactly-once execution lends and gets in calls of policy none is
// a region if it exceeds a packet, for the ledger keeps what comes.
func TestWaysOfExecutions(t *testing.T) {
	onRack(t, func(w *world) {
		node, err := w.rack.Join(w.ctx, "s2", "darkroom")
		w.must(err)
		defer func() { w.must(node.Close(w.ctx)) }()
		seen := -1
		d := &darkroom{&handler{again: lab.OpenLab(node, "Second", rpc.WithPolicy(rpc.PolicyNone))}, func() { seen = w.regions() }}
		w.must(lab.ExportLab(w.ctx, node, "Darkroom", d))
		for policy, want := range map[rpc.Policy]int{rpc.PolicyRecover: 2, rpc.PolicyNone: 1} {
			got, err := lab.OpenLab(w.node, "Darkroom", rpc.WithPolicy(policy)).Develop(w.ctx, rpc.RefOf([]byte{100}), 1)
			w.must(err)
			if b, err := got.Take(w.ctx); len(b) != 100<<10 || err != nil {
				t.Errorf("developed: %d bytes, %v", len(b), err)
			}
			if seen != want {
				t.Errorf("a value and its result take %d regions in an execution of policy %v, want %d", seen, policy, want)
			}
			w.empty()
		}
	})
}
