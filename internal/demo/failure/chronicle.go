package failure

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// chronicle follows the Gatekeeper's events and the packets of calls, and tells those of the performance.
type chronicle struct {
	lanes   *lanes
	victims []string
	noticed chan struct{}

	mu     sync.Mutex
	known  known
	seen   map[sight]bool
	server map[rpcpacket.ID]string // who serves a call
	news   chan struct{}           // closed with every event
	open   bool                    // what happens is told
	start  time.Time               // of the teller's call; zero before
	death  time.Time
	detect time.Time // all deaths noticed
	whole  time.Time // the last recovery
	done   time.Time // the end of the caller's work
	sequel bool      // all that a report times has happened
}

// known is what the events have said so far.
type known struct {
	exports int
	blade   map[netip.Addr]string // of each node
	name    map[netip.Addr]string
	failed  map[netip.Addr]bool // nodes that are to come back
	fallen  map[string]bool     // blades
	copies  int                 // of the memory machine
}

// ailing is how many nodes are to come back.
func (k *known) ailing() int { return len(k.failed) }

func newChronicle(out io.Writer, blades, victims []string, noticed chan struct{}) *chronicle {
	return &chronicle{
		lanes: newLanes(out, blades), victims: victims, noticed: noticed, news: make(chan struct{}),
		seen: map[sight]bool{}, server: map[rpcpacket.ID]string{},
		known: known{blade: map[netip.Addr]string{}, name: map[netip.Addr]string{}, failed: map[netip.Addr]bool{}, fallen: map[string]bool{}, copies: len(memoryBlades)},
	}
}

// follow takes events until there are no more.
func (c *chronicle) follow(events <-chan gatekeeper.Event) {
	for e := range events {
		c.mu.Lock()
		c.learn(e)
		if c.open {
			c.tell(e)
		}
		close(c.news)
		c.news = make(chan struct{})
		c.mu.Unlock()
	}
}

// aim says who is to die.
func (c *chronicle) aim(victims []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.victims = victims
}

// await waits until the events have said something.
func (c *chronicle) await(ctx context.Context, what string, good func(*known) bool) error {
	for {
		c.mu.Lock()
		ok, news := good(&c.known), c.news
		c.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-news:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s: %w", what, ctx.Err())
		}
	}
}

// begin tells what happens from now on.
func (c *chronicle) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = true
	fmt.Fprintln(c.lanes.out)
	c.lanes.head()
}

// died says that the victims have lost their power. The caller does not wait, for it
// may hold up the wire.
func (c *chronicle) died(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.death = at
	for _, b := range c.victims {
		c.lanes.down[b] = true
	}
	for _, b := range c.victims {
		c.lanes.mark(c.since(at), b, "✗", b+" loses its power")
	}
}

// again tells what happens after the caller's work, of which a report says nothing.
func (c *chronicle) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open, c.sequel = true, true
}

// end tells no more.
func (c *chronicle) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open = false
}

// power says that a blade loses its power, or has it again.
func (c *chronicle) power(blade string, on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lanes.down[blade] = !on
	if on {
		delete(c.known.fallen, blade)
		c.lanes.mark(c.since(time.Now()), blade, "▲", blade+" starts again, empty")
		return
	}
	c.victims = append(slices.Clone(c.victims), blade)
	c.lanes.mark(c.since(time.Now()), blade, "✗", blade+" loses its power")
}

// since is the time since the performance began.
func (c *chronicle) since(at time.Time) time.Duration {
	if c.start.IsZero() {
		c.start = at
	}
	return max(at.Sub(c.start), 0)
}

// learn takes note of what an event says.
func (c *chronicle) learn(e gatekeeper.Event) {
	k := &c.known
	switch e.Kind {
	case gatekeeper.ServiceExported:
		k.exports++
	case gatekeeper.NodeJoined:
		k.blade[e.Node], k.name[e.Node] = e.Blade, e.Name
	case gatekeeper.NodeFailed:
		k.failed[e.Node] = true
	case gatekeeper.NodeRecovered, gatekeeper.NodeLeft:
		delete(k.failed, e.Node)
		if e.Kind == gatekeeper.NodeRecovered && !c.sequel {
			c.whole = e.Time
		}
	case gatekeeper.BladeFailed:
		c.notice(e)
	case gatekeeper.MachineMirrored:
		k.copies = 2
	case gatekeeper.MachineUnmirrored:
		k.copies = 1
		if !c.sequel {
			c.whole = e.Time
		}
	}
}

// notice closes noticed when all victims are known to be dead.
func (c *chronicle) notice(e gatekeeper.Event) {
	k := &c.known
	k.fallen[e.Blade] = true
	for _, v := range c.victims {
		if !k.fallen[v] {
			return
		}
	}
	if !c.death.IsZero() && c.detect.IsZero() {
		c.detect = e.Time
		close(c.noticed)
	}
}

// fill puts times into a report.
func (c *chronicle) fill(r *Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.death.IsZero() {
		return
	}
	r.Killed = c.victims
	after := func(at time.Time) float64 {
		if at.IsZero() {
			return 0
		}
		return float64(at.Sub(c.death).Microseconds()) / 1000
	}
	r.DetectMS, r.RecoverMS, r.AnswerMS = after(c.detect), after(c.whole), after(c.done)
}
