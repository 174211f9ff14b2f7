package memory

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// copies are two servers of which the first has filled the second. Node 1 has three regions of 64 KiB there, and a ledger of two chunks.
type copies struct {
	t       *testing.T
	servers [2]*Server
	host    [2]*wire.Host
	next    uint64 // request
}

const (
	levelled   = 64 << 10 // bytes of a region
	levelClass = 16
)

var (
	pairNames   = [2]string{"m3", "m4"}
	levelNode   = rackaddr.Node(1)
	levelWriter = ledger.Writer{Node: levelNode, Incarnation: 1}
	levelFence  = control.Fence{Node: levelNode, Incarnation: 1}
)

// onCopies runs f with two copies of epoch 1. The second one may have a disk.
func onCopies(t *testing.T, impair wire.Impairment, d *LedgerDisk, f func(t *testing.T, c *copies)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		n := wire.New(wire.Config{})
		n.Connect(n.Router())
		c := &copies{t: t}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, len(c.servers))
		for i := range c.servers {
			var err error
			c.host[i], err = n.AddHost(wire.HostConfig{Name: pairNames[i], Port: datapath.Port(i + 1), Address: rackaddr.Blade(uint64(i + 1))}) //nolint:gosec // two
			must(t, err)
			c.host[i].Impair(impair, impair)
			cfg := Config{Stack: c.host[i], Prefix: prefix, Machine: machine, Capacity: 1 << 20, Ledgers: LedgerConfig{Space: 1 << 16, Birth: uint64(i + 1)}}
			if i == 1 {
				cfg.Ledgers.Disk = d
			}
			c.servers[i], err = NewServer(cfg)
			must(t, err)
			go func() { ended <- c.servers[i].Run(ctx) }()
		}
		c.fill()
		f(t, c)
		stop()
		for range c.servers {
			must(t, <-ended)
		}
	})
}

// fill makes the second server a copy of the first one, in which node 1 has something.
func (c *copies) fill() {
	first := c.servers[0]
	must(c.t, first.Become(control.Mirror{Incarnation: 1, Members: 1}))
	for i := range uint64(3) {
		must(c.t, first.Grant(control.Grant{Batches: []control.BatchOf{{Batch: 1, Node: levelNode}}}))
		c.alloc(0, levelID(int(i)))
	}
	name := ledger.NameOf(levelNode)
	must(c.t, first.now(func(*store.Store) error {
		l := first.ledgers.store
		l.Grant(name, levelWriter, share.Owner{Port: 1})
		l.Open(name, 1, levelWriter)
		return nil
	}))
	c.append(0, 1)
	q := control.Fill{Token: 7, Incarnation: 2, From: rackaddr.Blade(1), To: rackaddr.Blade(2)}
	must(c.t, c.servers[1].Fill(q))
	q.Source = true
	must(c.t, first.Fill(q))
	must(c.t, first.Complete(c.t.Context(), control.Complete{Token: 7, Mirror: control.Mirror{Epoch: 1, Incarnation: 1, Members: 2}}))
	must(c.t, c.servers[1].Become(control.Mirror{Epoch: 1, Incarnation: 2, Copy: 1, Members: 2}))
	c.append(0, 2)
	c.append(1, 2)
}

func levelID(region int) dsmpacket.RegionID {
	return dsmpacket.IDOf(dsmpacket.BatchSlots+uint32(region), 7)
}

func levelAt(region int, offset int64) dsmpacket.Pointer {
	return dsmpacket.Make(prefix, machine, levelID(region)).Add(offset)
}

// ask has a copy carry out a request that the node does not settle.
func (c *copies) ask(i int, op dsmpacket.Op, p dsmpacket.Pointer, data []byte) {
	c.t.Helper()
	c.next++
	must(c.t, c.servers[i].now(func(st *store.Store) error {
		a, drop := st.Handle(&store.Request{Node: levelNode, To: p.With(op), Data: data, Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: c.next, Floor: 4, Incarnation: 1, Length: uint64(len(data)),
		}})
		if drop != store.NotDropped || a.Header.Status != fault.OK {
			c.t.Errorf("%v at copy %d: %v, %v", op, i, a.Header.Status, drop)
		}
		return nil
	}))
}

// alloc makes a region at a copy. The node settles it.
func (c *copies) alloc(i int, id dsmpacket.RegionID) {
	c.t.Helper()
	c.next++
	must(c.t, c.servers[i].now(func(st *store.Store) error {
		to := dsmpacket.Make(prefix, machine, id).With(dsmpacket.OpAlloc)
		a, drop := st.Handle(&store.Request{Node: levelNode, To: to, Header: dsmpacket.Header{
			Kind: dsmpacket.Request, Request: c.next, Floor: c.next, Incarnation: 1, Length: levelled,
		}})
		if drop != store.NotDropped || a.Header.Status != fault.OK {
			c.t.Errorf("alloc at copy %d: %v, %v", i, a.Header.Status, drop)
		}
		return nil
	}))
}

// append appends a chunk at a copy.
func (c *copies) append(i int, number uint64) {
	c.t.Helper()
	must(c.t, c.servers[i].now(func(*store.Store) error {
		if a := c.servers[i].ledgers.store.Append(ledger.NameOf(levelNode), 1, levelWriter, 0, chunk(number, "record")); a.Status != fault.OK {
			c.t.Errorf("chunk %d at copy %d: %v", number, i, a.Status)
		}
		return nil
	}))
}

// differ makes the copies differ in all ways that there are.
func (c *copies) differ() {
	c.ask(0, dsmpacket.OpWrite, levelAt(0, 100), bytes.Repeat([]byte{1}, 3000))
	c.ask(1, dsmpacket.OpWrite, levelAt(0, 50000), bytes.Repeat([]byte{2}, 3000))
	c.ask(0, dsmpacket.OpFree, levelAt(1, 0), nil)
	c.ask(1, dsmpacket.OpFree, levelAt(2, 0), nil)
	c.append(1, 3)
}

// fence fences the node at both copies, and returns the command that makes them level.
func (c *copies) fence() control.Level {
	c.t.Helper()
	var told [2]control.Fenced
	for i, s := range c.servers {
		var err error
		told[i], err = s.Fence(levelFence)
		must(c.t, err)
	}
	return control.Level{Epoch: 1, Fence: levelFence, First: told[0].Unsettled, Second: told[1].Unsettled}
}

// content is what a copy has.
func (c *copies) content(i int) (region []byte, regions []control.RegionID, l control.Ledger) {
	c.t.Helper()
	region, _ = c.servers[i].ReadRegion(levelID(0), levelled)
	list, err := c.servers[i].Regions(control.Regions{})
	must(c.t, err)
	l, _ = c.servers[i].LedgerState(control.LedgerOf(levelNode))
	return region, list.Regions, l
}

// equal checks that the copies are equal, and that neither remembers anything unsettled.
func (c *copies) equal() {
	c.t.Helper()
	a, regionsA, ledgerA := c.content(0)
	b, regionsB, ledgerB := c.content(1)
	if !bytes.Equal(a, b) || a[100] != 1 || a[50000] != 0 || !slices.Equal(regionsA, regionsB) || len(regionsA) != 1 || ledgerA != ledgerB || ledgerA.Next != 3 {
		c.t.Errorf("not level: %d at 100, %d at 50000; %d and %d; regions %+v, %+v; ledgers %+v, %+v", a[100], a[50000], b[100], b[50000], regionsA, regionsB, ledgerA, ledgerB)
	}
	if q := c.fence(); !q.Equal() {
		c.t.Errorf("level, and a fence tells of %+v", q)
	}
}

// TestLevel: the first copy makes the second one what it is itself, over a network that loses, doubles and reorders, however often it
// is told to.
func TestLevel(t *testing.T) {
	for _, impair := range []wire.Impairment{{}, {Loss: 0.2, Duplicate: 0.2, Reorder: 0.2, Late: 0.05, LateBy: time.Second}} {
		onCopies(t, impair, nil, func(t *testing.T, c *copies) {
			c.differ()
			q := c.fence()
			if n := len(q.First.Writes) + len(q.Second.Writes) + len(q.First.Frees) + len(q.Second.Frees); n != 4 || len(q.First.Ledgers) != 1 {
				t.Fatalf("fenced: %+v", q)
			}
			for range 2 {
				must(t, c.servers[0].Level(t.Context(), q))
				c.equal()
			}
		})
	}
}

// TestLevel_FencedAgain: a Gatekeeper that restarts fences again, before or while the copies are made level, and knows of nothing that was
// told before. The second answer to a fence told nothing of writes and frees, so the copies differed for good.
func TestLevel_FencedAgain(t *testing.T) {
	onCopies(t, wire.Impairment{Delay: time.Millisecond}, nil, func(t *testing.T, c *copies) {
		c.differ()
		former, again := c.fence(), c.fence()
		if len(again.First.Writes) != 1 || len(again.Second.Frees) != 1 {
			t.Errorf("fenced again, and told of %+v", again)
		}
		ended := make(chan error, 1)
		go func() { ended <- c.servers[0].Level(context.Background(), former) }()
		synctest.Wait() // it waits for the second copy
		must(t, c.servers[0].Level(t.Context(), c.fence()))
		must(t, <-ended)
		c.equal()
	})
}

// TestLevel_OtherCopies: the second copy goes on alone. From then on nothing of the first one changes it, though that is there and sends.
func TestLevel_OtherCopies(t *testing.T) {
	onCopies(t, wire.Impairment{}, nil, func(t *testing.T, c *copies) {
		c.differ()
		q := c.fence()
		must(t, c.servers[1].Become(control.Mirror{Epoch: 2, Incarnation: 2, Members: 1}))
		before, regions, l := c.content(1)
		if err := c.servers[0].Level(t.Context(), q); fault.CodeOf(err) != fault.Deadline {
			t.Errorf("a copy that goes on alone is made level: %v", err)
		}
		if after, regionsAfter, lAfter := c.content(1); !bytes.Equal(before, after) || !slices.Equal(regions, regionsAfter) || l != lAfter {
			t.Error("a copy that goes on alone has changed")
		}
		if err := c.servers[0].Level(t.Context(), q); fault.CodeOf(err) != fault.Stale {
			t.Errorf("there is no stream any more: %v", err)
		}
		again, err := c.servers[1].Fence(levelFence)
		must(t, err)
		if u := again.Unsettled; len(u.Writes)+len(u.Frees) > 0 {
			t.Errorf("alone, and a fence tells of %+v", u)
		}
	})
}

// TestLevel_Refused: a command that makes no sense here changes nothing.
func TestLevel_Refused(t *testing.T) {
	onCopies(t, wire.Impairment{}, nil, func(t *testing.T, c *copies) {
		c.differ()
		good := c.fence()
		for name, x := range map[string]struct {
			at     int
			change func(q *control.Level)
			want   fault.Code
		}{
			"other epoch":       {0, func(q *control.Level) { q.Epoch = 2 }, fault.Stale},
			"second copy":       {1, func(*control.Level) {}, fault.Stale},
			"more than is told": {0, func(q *control.Level) { q.Second.More = true }, fault.NoSpace},
			"beyond a region":   {0, func(q *control.Level) { q.Second.Writes = []control.Span{{ID: levelID(0), Length: levelled + 1}} }, fault.BadRequest},
			"ledger not as it is": {0, func(q *control.Level) {
				q.Second.Ledgers = []control.Ledger{{Name: control.LedgerOf(levelNode), Run: 1, First: 9, Next: 9}}
			}, fault.BadRequest},
		} {
			q := good
			x.change(&q)
			if err := c.servers[x.at].Level(t.Context(), q); fault.CodeOf(err) != x.want {
				t.Errorf("%s: %v", name, err)
			}
		}
		if _, regions, _ := c.content(1); len(regions) != 2 {
			t.Errorf("refused, and the second copy has %+v", regions)
		}
		must(t, c.servers[0].Level(t.Context(), good))
		c.equal()
	})
}

// TestLevel_HeldForABackup: a second copy that changes nothing, for a backup, is made level when it may change.
func TestLevel_HeldForABackup(t *testing.T) {
	onCopies(t, wire.Impairment{}, nil, func(t *testing.T, c *copies) {
		c.ask(0, dsmpacket.OpWrite, levelAt(0, 100), bytes.Repeat([]byte{1}, 3000))
		q, began := c.fence(), time.Now()
		if part, err := c.servers[1].Backup(control.Backup{ID: 1, Step: control.BackupHold}); err != nil || part.Code != fault.OK {
			t.Fatalf("%+v, %v", part, err)
		}
		must(t, c.servers[0].Level(t.Context(), q))
		if took := time.Since(began); took < holdTime {
			t.Errorf("level after %s", took)
		}
		if b, _, _ := c.content(1); b[100] != 1 {
			t.Error("not level")
		}
	})
}

// TestLevel_Disk: the copies are level when the second one's ledger is on its disk: from then on the node's next incarnation reads it.
func TestLevel_Disk(t *testing.T) {
	var pause atomic.Int64
	m := &disk.Memory{Pause: func() time.Duration { return time.Duration(pause.Load()) }}
	d, err := MemoryLedgerDisk(m)
	must(t, err)
	onCopies(t, wire.Impairment{}, d, func(t *testing.T, c *copies) {
		c.differ()
		q := c.fence()
		pause.Store(int64(time.Second))
		began := time.Now()
		must(t, c.servers[0].Level(t.Context(), q))
		if took := time.Since(began); took < time.Second {
			t.Errorf("level after %s, and the second copy's ledger is not on its disk", took)
		}
		c.equal()
	})
}
