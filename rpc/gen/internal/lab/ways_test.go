package lab_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
)

// TestWays: in calls of policy none a value whose callees read all of it travels in parts up to 16 MiB, however often. All others stand in memory, and so does what a
// ledger would keep.
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
			{16 * mega, none, 0, 0},
			{16*mega + 1, none, 1, 1},
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
		for size, want := range map[int]int{packet + 1: 0, 16 * mega: 0, 16*mega + 1: 2} { // with the result
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

// passer passes on what it was lent, if there is a next one, and else reads it.
type passer struct {
	next *lab.KeeperRefClient
	read func(ctx context.Context, film *rpc.Ref[[]byte]) error
}

func (k *passer) Keep(ctx context.Context, film *rpc.Ref[[]byte]) (int64, error) {
	if k.next != nil {
		return k.next.Keep(ctx, film)
	}
	return 1, k.read(ctx, film)
}

func (*passer) Kept(context.Context) (int64, error) { return 0, nil }
func (*passer) Snapshot() ([]byte, error)           { return nil, nil }
func (*passer) Restore([]byte) error                { return nil }

// Ways to read a film.
func readAll(ctx context.Context, film *rpc.Ref[[]byte]) error {
	_, err := film.Load(ctx)
	return err
}

func readPage(ctx context.Context, film *rpc.Ref[[]byte]) error {
	place, err := film.Place(ctx)
	if err != nil {
		return err
	}
	return place.Read(ctx, place.Size()-4096, make([]byte, 4096))
}

func readInPieces(ctx context.Context, film *rpc.Ref[[]byte]) error {
	place, err := film.Place(ctx)
	for at := int64(0); err == nil && at < place.Size(); at += 64 << 10 {
		err = place.Read(ctx, at, make([]byte, min(64<<10, place.Size()-at)))
	}
	return err
}

func readNothing(context.Context, *rpc.Ref[[]byte]) error { return nil }

// keep has a keeper called with a new value, and returns how many regions and messages it has taken.
func (w *world) keep(n *rpc.Node, client *lab.KeeperRefClient, size, calls int) (regions, messages uint64) {
	w.t.Helper()
	before := n.Stats()
	raw := rpc.RefOf(ones(size))
	for range calls {
		_, err := client.Keep(w.ctx, raw)
		w.must(err)
	}
	w.must(raw.Free(w.ctx))
	after := n.Stats()
	return after.RefsInRegions - before.RefsInRegions, after.RefsInMessages - before.RefsInMessages
}

// TestPassedOn: a value goes into memory at the first node that knows of so many behind it which pass it on that this pays. It stays there along the chain, and goes when
// that node's handler has returned. Who has called often enough knows, too.
func TestPassedOn(t *testing.T) {
	const least = 512 << 10
	onRack(t, func(w *world) {
		var seen []int
		none := rpc.WithPolicy(rpc.PolicyNone)
		below := ""
		for i, name := range []string{"Fourth", "Third", "Second", "Front"} {
			node, err := w.rack.Join(w.ctx, []string{"s1", "s2"}[i%2], name)
			w.must(err)
			defer func() { w.must(node.Close(w.ctx)) }()
			k := &passer{read: func(ctx context.Context, film *rpc.Ref[[]byte]) error {
				seen = append(seen, w.regions())
				return readAll(ctx, film)
			}}
			if below != "" {
				k.next = lab.NewKeeperRefClient(node.Client(below, none))
			}
			name += "Keeper"
			w.must(node.Export(w.ctx, name, lab.NewKeeperRefProcessor(k)))
			below = name
		}
		client := lab.NewKeeperRefClient(w.node.Client(below, none))
		for range 5 {
			w.keep(w.node, client, 100_000, 1)
		}
		seen = nil
		stranger, err := w.rack.Join(w.ctx, "c1", "stranger") // it knows nothing of them
		w.must(err)
		defer func() { w.must(stranger.Close(w.ctx)) }()
		for _, c := range []struct {
			node            *rpc.Node
			size, in        int
			regions, values uint64
		}{
			{stranger, least, 1, 0, 1},     // Front makes the region
			{stranger, least - 1, 0, 0, 1}, // nobody does
			{w.node, least, 1, 1, 0},       // the caller does
			{w.node, least - 1, 0, 0, 1},
		} {
			seen = nil
			regions, values := w.keep(c.node, lab.NewKeeperRefClient(c.node.Client(below, none)), c.size, 1)
			if fmt.Sprint(seen) != fmt.Sprint([]int{c.in}) || regions != c.regions || values != c.values {
				t.Errorf("%d bytes of %s: %v regions while they are read, %d of the caller, %d values; want %+v", c.size, c.node.Name(), seen, regions, values, c)
			}
			w.empty()
		}
	})
}

// TestLearned: what two answers in a row have said of an argument decides how its values travel, until two others say something else. The node's
// figures say beforehand how the next value travels.
func TestLearned(t *testing.T) {
	const half, four = 512 << 10, 4 << 20
	onRack(t, func(w *world) {
		none, server := rpc.WithPolicy(rpc.PolicyNone), w.server
		last := &passer{read: readPage}
		w.must(server.Export(w.ctx, "Last", lab.NewKeeperRefProcessor(last)))
		front := &passer{}
		w.must(server.Export(w.ctx, "Front", lab.NewKeeperRefProcessor(front)))
		client := lab.NewKeeperRefClient(w.node.Client("Front", none))
		type reader = func(context.Context, *rpc.Ref[[]byte]) error
		for i, c := range []struct {
			reads       reader // nil: it passes the value on to one that reads a page
			size, calls int
			regions     uint64
		}{
			{readAll, four, 1, 0}, {readAll, four, 1, 0}, {readAll, four, 3, 0}, // it is read whole
			{readPage, four, 1, 0}, {readPage, four, 1, 0}, {readPage, four, 1, 1}, {readPage, four - 1, 1, 0}, // in part
			{readPage, half, 2, 1}, {readPage, half - 1, 2, 0}, // a region serves all calls that come
			{readAll, four, 1, 1}, {readInPieces, four, 1, 1}, {readInPieces, four, 1, 0}, // whole again
			{readNothing, four, 1, 0}, {readNothing, four, 1, 0}, {readNothing, four, 1, 1}, {readNothing, half, 1, 0}, // not at all
			{nil, half, 1, 0}, {nil, half, 1, 0}, {nil, half, 1, 0}, {nil, half, 1, 1}, {nil, half - 1, 1, 0}, // passed on
		} {
			front.read, front.next = c.reads, nil
			if c.reads == nil {
				front.next = lab.NewKeeperRefClient(server.Client("Last", none))
			}
			from := regionFrom(w.node, "Front", "film")
			if regions, _ := w.keep(w.node, client, c.size, c.calls); regions != c.regions {
				t.Errorf("value %d, of %d bytes: %d regions, want %d", i, c.size, regions, c.regions)
			}
			if (from == 0) != (i == 0) || i > 0 && c.calls == 1 && (int64(c.size) >= from) != (c.regions > 0) {
				t.Errorf("value %d, of %d bytes, takes %d regions; before, the node says that it makes some from %d bytes on", i, c.size, c.regions, from)
			}
		}
		w.empty()
	})
}

// regionFrom is from which length on a node puts an argument's values into memory; 0 if it has learned nothing of it.
func regionFrom(n *rpc.Node, service, argument string) int64 {
	for _, m := range n.Methods() {
		if from, ok := m.RegionFrom[argument]; ok && m.Service == service && !m.Server {
			return from
		}
	}
	return 0
}

// TestNarrow: a receiver that takes less than its callers send gets a value through memory, whatever the IDL says, and a caller an answer. What goes one way,
// where nobody would hear of a refusal, goes through memory if it exceeds a packet.
func TestNarrow(t *testing.T) {
	const least, size = 100_000, 200_000
	onRack(t, func(w *world) {
		narrow := func(name string) *rpc.Node {
			on, err := w.rack.Joiner("s2")
			w.must(err)
			n, err := rpc.Join(join.NewContext(w.ctx, on), rpc.WithName(name), rpc.WithMaxMessage(least))
			w.must(err)
			return n
		}
		server, caller, none := narrow("server"), narrow("caller"), rpc.WithPolicy(rpc.PolicyNone)
		handler := newHandler()
		w.must(lab.ExportLab(w.ctx, server, "Narrow", handler))
		w.must(lab.ExportForced(w.ctx, server, "NarrowForced", forced{}))
		for _, c := range []*lab.LabRefClient{lab.OpenLab(w.node, "Narrow", none), lab.OpenLab(w.node, "Narrow"), lab.OpenLab(caller, "Lab", none), lab.OpenLab(caller, "Lab")} {
			raw := rpc.RefOf(ones(size))
			for range 2 {
				got, err := c.Develop(w.ctx, raw, 1)
				w.must(err)
				if b, err := got.Take(w.ctx); len(b) != size || err != nil {
					t.Errorf("developed: %d bytes, %v", len(b), err)
				}
			}
			w.must(raw.Free(w.ctx))
		}
		for _, n := range []*rpc.Node{w.node, caller} {
			raw := rpc.RefOf(ones(size))
			got, err := lab.OpenForced(n, "NarrowForced", none).OutOfMessage(w.ctx, raw)
			w.must(err)
			if b, err := got.Take(w.ctx); len(b) != size || err != nil {
				t.Errorf("by value: %d bytes, %v", len(b), err)
			}
			w.must(raw.Free(w.ctx))
			raw = rpc.RefOf(ones(size))
			got, err = lab.OpenForced(n, "NarrowForced", none).OutOfRegion(w.ctx, raw)
			w.must(err)
			if b, err := got.Take(w.ctx); len(b) != size || err != nil {
				t.Errorf("back by value: %d bytes, %v", len(b), err)
			}
			w.must(raw.Free(w.ctx))
		}
		film, before := ones(size), w.node.Stats()
		w.must(lab.OpenLab(w.node, "Narrow", none).Archive(w.ctx, rpc.RefOf(film), "there"))
		if got := w.node.Stats().RefsInRegions - before.RefsInRegions; got != 1 {
			t.Fatalf("what goes one way takes %d regions", got)
		}
		if got, want := <-handler.archived, fmt.Sprintf("there %s <nil>", film); got != want {
			t.Errorf("one way: %.100q", got)
		}
		before = w.node.Stats()
		if _, err := lab.OpenLab(w.node, "Narrow", none).Develop(w.ctx, rpc.RefOf([]byte{0}), 1); err == nil {
			t.Error("a corrupt film is developed")
		}
		if after := w.node.Stats(); after.RefsInRegions != before.RefsInRegions {
			t.Error("a call that has failed was made again")
		}
		w.empty()
		w.must(server.Close(w.ctx))
		w.must(caller.Close(w.ctx))
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
