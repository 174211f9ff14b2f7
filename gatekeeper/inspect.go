package gatekeeper

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/recovery"
	"github.com/bifrost-rack/bifrost/internal/control"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// ErrNoSwitch is returned by methods that need the switch while it is away.
var ErrNoSwitch = errors.New("the switch is not connected")

// Settings are what a Gatekeeper was started with, defaults filled in.
type Settings struct {
	Boot      uint64
	Election  control.Election
	DeviceID  uint64
	DSMPrefix uint8
	MTU       int // bytes
	Heartbeat time.Duration
}

// Settings returns what the Gatekeeper was started with.
func (g *Gatekeeper) Settings() Settings {
	return Settings{g.cfg.Boot, g.cfg.Election, g.cfg.DeviceID, g.cfg.DSMPrefix, g.cfg.MTU, g.cfg.Heartbeat}
}

// Connected reports whether the switch obeys, its tables as they should be. It
// fails with ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Connected(ctx context.Context) (connected bool, err error) {
	err = g.do(ctx, func() { connected = g.ctl.connected })
	return connected, err
}

// Overview is the state at one moment without the lists that grow with the
// rack's load: how much there is of them instead.
type Overview struct {
	Snapshot      // Regions and Calls are nil
	RegionCount   int
	CallCount     int // on record, finished ones included
	CallsUnderWay int // in the call graph, those included that are not held
	EventsWaiting int // in the lease machine: for rules, or for another event
	// Recoveries are the nodes that have failed and are not back, or cleaned up after,
	// yet.
	Recoveries []recovery.View
	// LogRecords and LogBytes are what the log holds; 0 without one.
	LogRecords int
	LogBytes   uint64
}

// Overview copies the state, but neither regions nor calls. It fails with
// ErrStopped if the Gatekeeper does not run.
func (g *Gatekeeper) Overview(ctx context.Context) (o Overview, err error) {
	err = g.do(ctx, func() {
		o = Overview{
			Snapshot: g.ctl.overview(), RegionCount: g.ctl.leases.Len(),
			CallsUnderWay: g.ctl.graph.Len(), EventsWaiting: g.ctl.leases.Pending(), Recoveries: g.ctl.recoveries.Recoveries(),
		}
		exact, _ := g.ctl.table.Calls()
		o.CallCount = len(g.ctl.calls) + exact
	})
	if g.cfg.Store != nil {
		s := g.cfg.Store.Stats()
		o.LogRecords, o.LogBytes = s.Records, s.Bytes
	}
	return o, err
}

// RegionQuery selects regions; the zero value selects all.
type RegionQuery struct {
	// Node controls the region, allocated it or has a lease.
	Node netip.Addr
	// Pointer lies in the region; nil for any.
	Pointer packet.Pointer
	// After is the base of the last region of the page before.
	After packet.Pointer
	// Limit is how many regions a page has at most, at least 1.
	Limit int
}

// Regions returns a page of regions in the order of their addresses, and whether
// more follow. Other inputs come in between.
func (g *Gatekeeper) Regions(ctx context.Context, q RegionQuery) (page []RegionState, more bool, err error) {
	for left := true; left && len(page) <= q.Limit; {
		if err := g.do(ctx, func() { left = g.ctl.scanRegions(&q, &page) }); err != nil {
			return nil, false, err
		}
	}
	if len(page) <= q.Limit {
		return page, false, nil
	}
	return page[:q.Limit], true, nil
}

// scanRegions looks at some regions, adds those that are meant to the page until
// that has one too many, and reports whether there is more to look at.
func (c *controller) scanRegions(q *RegionQuery, page *[]RegionState) (left bool) {
	if !q.Pointer.IsNil() {
		if r, ok := c.leases.Find(q.Pointer); ok && q.matches(&r) && bytes.Compare(r.Region.Base[:], q.After[:]) > 0 {
			*page = append(*page, regionState(r))
		}
		return false
	}
	seen := 0
	for r := range c.leases.After(q.After) {
		if seen++; seen > c.cfg.Limits.Scan || len(*page) > q.Limit {
			return true
		}
		q.After = r.Region.Base
		if q.matches(&r) {
			*page = append(*page, regionState(r))
		}
	}
	return false
}

func (q *RegionQuery) matches(r *lease.Region) bool {
	return !q.Node.IsValid() || r.Controller == q.Node || r.Owner == q.Node ||
		slices.ContainsFunc(r.Leases, func(l lease.Lease) bool { return l.Node == q.Node })
}

func compareIDs(a, b rpc.ID) int { return slices.Compare(a[:], b[:]) }

// Rules reads entries of some of the switch's tables back, of all if none is
// named, sorted by their keys. It fails with ErrNoSwitch while the switch is
// away.
func (g *Gatekeeper) Rules(ctx context.Context, tables ...string) ([]p4rtclient.Entry, error) {
	connected, err := g.Connected(ctx)
	if err != nil {
		return nil, err
	}
	if !connected {
		return nil, ErrNoSwitch
	}
	entries, err := g.client.Read(ctx, tables...)
	slices.SortFunc(entries, func(a, b p4rtclient.Entry) int { return cmp.Compare(a.Key(), b.Key()) })
	return entries, err
}

// Tables lists the tables of the program that runs on the switch.
func (g *Gatekeeper) Tables() []string { return g.client.Program().Tables() }
