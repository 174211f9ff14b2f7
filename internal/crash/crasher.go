package crash

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
)

// crasher crashes what it is told to, at the packets that it is told.
type crasher struct {
	run     *Run
	flooded func()          // called when there are too many packets
	due     map[int][]Crash // by packet
	begin   sync.WaitGroup  // comebacks under way
	hand    chan struct{}   // holds a token while a packet is looked at
	began   time.Time
	most    int      // packets
	refused *refusal // nil: the last request about a ledger may change it

	mu      sync.Mutex
	armed   bool
	packets int // while armed
	all     int
	hit     int
	struck  map[string]bool // programs that were hit
	down    map[string]bool // of them, and of the other victims, those that are not back
	nested  int             // crashes while somebody was down
	broken  int             // reasons why no Gatekeeper can start
	did     map[string]int  // what has happened, as kind of victim and way
}

func newCrasher(r *Run) *crasher {
	c := &crasher{run: r, hand: make(chan struct{}, 1), struck: map[string]bool{}, down: map[string]bool{}, due: map[int][]Crash{}, did: map[string]int{}, began: time.Now()}
	c.most = maxPackets + len(r.p.Clients)*packetsPerClient + int(r.opt.Setting.Idle/time.Second)*packetsPerSecond + r.opt.Setting.Calls*packetsPerCall
	if r.opt.Setting.Large > 0 {
		c.most += packetsOfLarge + copiesOfLarge*r.opt.Setting.Large/usualMTU
	}
	c.most *= max(1, usualMTU/r.opt.Setting.mtu())
	for _, one := range r.opt.Crashes {
		c.due[one.At] = append(c.due[one.At], one)
	}
	return c
}

// arm begins to count packets. disarm ends it: when it returns, nothing more
// crashes.
func (c *crasher) arm() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = true
}

func (c *crasher) disarm() {
	c.hand <- struct{}{}
	defer func() { <-c.hand }()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.armed = false
}

// nestedHits is how many crashes came while somebody was down.
func (c *crasher) nestedHits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.nested
}

func (c *crasher) hits() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hit
}

// wait waits until all that comes back is back.
func (c *crasher) wait() { c.begin.Wait() }

// onFrame is the wire's.
func (c *crasher) onFrame(f wire.Frame) {
	if f.Stage == wire.Lost {
		return
	}
	c.hand <- struct{}{}
	defer func() { <-c.hand }()
	if f.Stage == wire.Arriving {
		c.judgeLedgers(f)
	}
	at, armed := c.see(f)
	if log := c.run.opt.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug(describe(f), "packet", at)
	}
	c.copyLate(f, at, armed)
	if !armed {
		return
	}
	for _, one := range c.due[at] {
		if one.After == (f.Stage == wire.Arrived) {
			c.strike(one)
		}
	}
	for _, m := range c.run.opt.When {
		if !m.Came && m.Crash.After == (f.Stage == wire.Arrived) && m.Is(f) {
			m.Came = true
			c.strike(m.Crash)
		}
	}
}

// copyLate keeps a copy of the packet that is to arrive once more, and lets it arrive.
func (c *crasher) copyLate(f wire.Frame, at int, armed bool) {
	l := c.run.opt.Late
	if l == nil || f.Stage != wire.Arrived {
		return
	}
	if l.Is != nil && !f.ToSwitch && l.Is(f) {
		l.Is, l.blade, l.copy = nil, f.Host, bytes.Clone(f.Data)
	}
	if armed && at >= l.At && l.copy != nil {
		f := wire.Frame{Host: l.blade, Data: l.copy}
		l.copy = nil
		c.judgeLedgers(f)
		c.later(0, func() error { c.run.rack.Host(f.Host).Receive(f.Data); return nil })
	}
}

// see counts a packet and tells which one it is.
func (c *crasher) see(f wire.Frame) (at int, armed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at = c.packets
	if f.Stage != wire.Arrived {
		return at, c.armed
	}
	if c.armed {
		c.packets++
	}
	if c.all++; c.all > c.most && c.all < c.most+20 {
		c.run.ledger.complain("after %s, one packet too many: %s", time.Since(c.began), describe(f))
	}
	if c.all == c.most+20 {
		c.flooded()
	}
	return at, c.armed
}

// count notes a crash, and whom it has hit.
func (c *crasher) count(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hit++
	c.nested += min(1, len(c.down))
	for _, name := range names {
		c.struck[name] = true
		if !strings.HasPrefix(name, "client") { // which does not come back
			c.down[name] = true
		}
	}
}

// back notes that programs have joined again, or go on.
func (c *crasher) back(names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		delete(c.down, name)
	}
}

// happened reports whether something, as "program twin", has happened.
func (c *crasher) happened(what string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.did[what] > 0
}

// wasHit reports whether a crash has hit a program.
func (c *crasher) wasHit(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.struck[name]
}

// wasLong counts long calls that have been lent regions, and long answers with one.
func (c *crasher) wasLong(script []byte, lent, region bool) {
	if len(script) < longSpaces {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if lent {
		c.did["long calls that lend memory"]++
	}
	if region {
		c.did["long answers with a region"]++
	}
}

// takenBack is what a node's Stats.TakenBack counts as.
const takenBack = "nodes taken back for direct calls"

// wentDirect counts what a node has done with direct calls.
func (c *crasher) wentDirect(n *rpc.Node) {
	s := n.Stats()
	c.mu.Lock()
	defer c.mu.Unlock()
	for what, count := range map[string]uint64{
		"direct calls": s.Accepted, "direct calls that lend memory": s.Lending, "direct calls into services with state": s.Stateful, "one-ways that went direct": s.Oneways, "direct one-ways that hand memory over": s.OnewaysWithRegions, "one-ways that left with a done": s.OnewaysSent,
		"direct calls and answers in parts": s.LargeMessages, "direct calls resumed": s.Resumed, "direct calls answered again": s.AnsweredFromLedger,
		"regions allocated by direct executions": s.RegionsAllocated, "regions freed at the end of direct executions": s.RegionsFreed,
		"memory " + c.run.opt.Setting.copies() + "committed by nodes": s.Committed, "memory " + c.run.opt.Setting.copies() + "taken back by nodes": s.RolledBack,
		"direct calls of mains": s.MainCalls, "checkpoints in ledgers": s.MainCheckpoints, takenBack: s.TakenBack, "standing leases given by services": s.LeasesGiven,
	} {
		if count > 0 {
			c.did[what] += int(count) //nolint:gosec // few
		}
	}
}
