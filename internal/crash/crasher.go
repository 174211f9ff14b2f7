package crash

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/internal/wire"
)

// crasher crashes what it is told to, at the packets that it is told.
type crasher struct {
	run     *Run
	flooded func()          // called when there are too many packets
	due     map[int][]Crash // by packet
	begin   sync.WaitGroup  // comebacks under way
	hand    chan struct{}   // holds a token while a packet is looked at
	began   time.Time

	mu      sync.Mutex
	armed   bool
	packets int // while armed
	all     int
	hit     int
	struck  map[string]bool // programs that were hit
	down    map[string]bool // of them, and the Gatekeeper, those that are not back
	nested  int             // crashes while somebody was down
}

func newCrasher(r *Run) *crasher {
	c := &crasher{run: r, hand: make(chan struct{}, 1), struck: map[string]bool{}, down: map[string]bool{}, due: map[int][]Crash{}, began: time.Now()}
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
	at, armed := c.see(f)
	if log := c.run.opt.Log; log.Enabled(context.Background(), slog.LevelDebug) {
		log.Debug(describe(f), "packet", at)
	}
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
	if c.all++; c.all > maxPackets && c.all < maxPackets+20 {
		c.run.ledger.complain("after %s, one packet too many: %s", time.Since(c.began), describe(f))
	}
	if c.all == maxPackets+20 {
		c.flooded()
	}
	return at, c.armed
}

// strike carries a crash out.
func (c *crasher) strike(one Crash) {
	rack := c.run.rack
	if one.How == Restart {
		c.count(Gatekeeper)
		rack.CrashGatekeeper()
		c.later(one.Back, func() error {
			defer c.back(Gatekeeper)
			return rack.RestartGatekeeper(context.Background())
		})
		return
	}
	at, ok := c.run.where(one.Victim)
	if !ok {
		at, ok = place{blade: one.Victim}, slices.Contains(c.run.serving(), one.Victim)
	}
	if !ok {
		return
	}
	switch one.How {
	case Kill:
		c.count(one.Victim)
		_ = rack.KillSoon(at.blade, at.instance) // which may have ended
	case Cut:
		c.count(c.run.on(at.blade)...)
		if rack.CrashBlade(at.blade) == nil {
			c.later(one.Back, func() error { return rack.BootBlade(at.blade) })
		}
	case Pause:
		c.count(c.run.on(at.blade)...)
		host := rack.Host(at.blade)
		host.SetLink(false)
		c.later(one.Back, func() error { host.SetLink(true); c.back(c.run.on(at.blade)...); return nil })
	case Stop:
		c.count(c.run.on(at.blade)...)
		host := rack.Host(at.blade)
		late := wire.Impairment{Delay: one.Back}
		host.Impair(late, late)
		c.later(one.Back, func() error {
			now := c.run.network()
			host.Impair(now, now)
			c.back(c.run.on(at.blade)...)
			return nil
		})
	}
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

// wasHit reports whether a crash has hit a program.
func (c *crasher) wasHit(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.struck[name]
}

// later does something after a time.
func (c *crasher) later(after time.Duration, f func() error) {
	c.begin.Go(func() {
		<-time.After(after)
		if err := f(); err != nil {
			c.run.ledger.complain("coming back: %v", err)
		}
	})
}
