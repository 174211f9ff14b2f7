package gatekeeper

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Nobody tells the Gatekeeper whose regions are. It finds out when somebody wants to know: memory blades list their
// regions, and the switch's registers say who owns them and which open calls have them. That is not one moment.
//
//	Regions, Holders, Snapshot ─▶ wait ─▶ survey: registers │ lists of the memory blades ─▶ surveyed ─▶ all who waited

// surveyPatience is for how long a survey waits for the next answer of memory blades and the switch. What is not told by then is left out, and the survey
// says who was to tell it.
const surveyPatience = time.Second

// surveyShare bounds how much of the time the switch is read for people: a survey follows another one after so many times as long as that took.
const surveyShare = 4

// survey is a reading of everything that is under way.
type survey struct {
	reading
	began time.Time
	heard time.Time       // the last answer
	read  time.Duration   // of reading the registers
	lists map[string]bool // by memory blade: it is to list its regions, and has not listed all of them
	asked int             // blades that have not answered a question
	made  []control.RegionID
	at    []uint8      // machines of them
	gone  []netip.Addr // nodes whose rest has ended meanwhile
	done  bool
}

// surveyed is what the last survey has found.
type surveyed struct {
	when    time.Time
	took    time.Duration
	regions []surveyedRegion               // by their bases
	open    []slotCell                     // open call slots
	calls   map[rpcpacket.Ref]rpcpacket.ID // of the first ones, as far as callees have told of them
	silent  []string                       // memory blades that have not listed all of their regions
	partial bool                           // the switch has not told of all registers
}

// surveyedRegion is a region with those who have to do with it.
type surveyedRegion struct {
	region     dsmpacket.Region
	maker      netip.Addr // whose allocation it was
	controller netip.Addr
	frozen     bool
	leases     []LeaseState
	calls      []rpcpacket.ID // of them, as far as their callees have told of them
}

// surveys are the present one, and who waits for the next.
type surveys struct {
	now  *survey
	wait []chan struct{} // for the present one
	next []chan struct{} // for one that begins later
	last surveyed
}

// survey returns when a survey that has begun after the call is over.
func (g *Gatekeeper) survey(ctx context.Context) error {
	done := make(chan struct{})
	if err := g.do(ctx, func() {
		c := g.ctl
		c.surveys.next = append(c.surveys.next, done)
		c.beginSurvey()
	}); err != nil {
		return err
	}
	select {
	case <-done:
		return nil
	case <-g.stopped:
		return ErrStopped
	case <-ctx.Done():
		return ctx.Err()
	}
}

// beginSurvey begins a survey if somebody waits for one, and none is under way. Without a switch nothing is known.
func (c *controller) beginSurvey() {
	s := &c.surveys
	switch {
	case s.now != nil || len(s.next) == 0:
		return
	case !c.connected, c.rebuild != nil:
		s.end()
		return
	case c.now.Before(s.last.when.Add(surveyShare * s.last.took)):
		c.timers = true
		return
	}
	s.wait, s.next = s.next, nil
	s.now = &survey{reading: reading{blocks: c.allBlocks(), batches: c.allBatches()}.begun(), began: c.now, lists: map[string]bool{}}
	c.timers = true
	c.hand.begin(s.now)
	for _, b := range c.sortedBlades() {
		if !b.memory() || !b.first() {
			continue
		}
		s.now.lists[b.hello.Blade] = true
		if b.alive() {
			s.now.asked++
			c.surveyMemory(s.now, b, 0)
		}
	}
	c.reach()
	c.goOnSurvey(s.now)
}

// surveyMemory asks a memory blade for its regions.
func (c *controller) surveyMemory(s *survey, b *blade, from dsmpacket.RegionID) {
	err := b.port.ask(c.now, control.KindRegions, control.Regions{From: from, Max: control.MaxRegions}, func(m control.Message) {
		page, err := regionList(m)
		for _, r := range page.Regions {
			s.made, s.at = append(s.made, r), append(s.at, b.hello.Machine)
		}
		switch {
		case err == nil && page.Next > from && b.alive() && !s.done:
			c.surveyMemory(s, b, page.Next)
		case err == nil && page.Next <= from:
			delete(s.lists, b.hello.Blade)
			fallthrough
		default:
			s.asked--
		}
		c.goOnSurvey(s)
	})
	if err != nil {
		s.asked--
	}
}

// goOnSurvey goes on with an answer, and ends a survey that is complete.
func (c *controller) goOnSurvey(s *survey) {
	s.heard = c.now
	if s.left == 0 && s.read == 0 {
		s.read = c.now.Sub(s.began)
	}
	if s.left == 0 && s.asked == 0 {
		c.endSurvey(s)
	}
}

func (c *controller) endSurvey(s *survey) {
	if s.done {
		return
	}
	s.done = true
	c.hand.end(s)
	c.surveys.last = s.found(&c.population, &c.told, c.now)
	if s.left == 0 {
		if all := c.unowned(s); len(all) > 0 {
			c.logger.Warn("memory has regions that nobody owns: they are freed", "regions", len(all), "one", all[0])
			c.reclaim(all)
		}
	}
	c.surveys.now = nil
	for _, done := range c.surveys.wait {
		close(done)
	}
	c.surveys.wait = nil
	c.beginSurvey()
}

// end tells those who wait for a survey that there is none.
func (s *surveys) end() {
	for _, done := range append(s.wait, s.next...) {
		close(done)
	}
	s.wait, s.next = nil, nil
}

// bySlot are the words that were read.
func (s *survey) bySlot() map[uint32]word {
	words := map[uint32]word{}
	for _, w := range s.words {
		words[w.region.Slot()] = w
	}
	return words
}

// found puts together what a survey has read.
func (s *survey) found(p *population, t *told, now time.Time) surveyed {
	out := surveyed{when: now, took: s.read, open: s.slots, calls: map[rpcpacket.Ref]rpcpacket.ID{}, silent: slices.Sorted(maps.Keys(s.lists)), partial: s.left > 0}
	words := s.bySlot()
	type use struct {
		in     rpcpacket.Ref
		callee netip.Addr // else a node could name others' calls
	}
	told := map[use]rpcpacket.ID{}
	for id, k := range t.calls {
		told[use{k.in, k.callee.Address}] = id
	}
	leases, calls := map[dsmpacket.RegionID][]LeaseState{}, map[dsmpacket.RegionID][]rpcpacket.ID{}
	for _, k := range s.slots {
		first := rpcpacket.Ref{Slot: k.slot - rpcpacket.Slot(k.place), Number: k.number}
		call, name := told[use{first, p.rows.of[k.callee]}], fmt.Sprintf("slot %d, number %s", first.Slot, first.Number)
		if !call.IsZero() { // its callee has told of it
			name, out.calls[first] = call.String(), call
		}
		if k.given {
			continue
		}
		lent := LeaseState{Call: name, Node: p.rows.of[k.callee]}
		if k.standing {
			lent = LeaseState{Node: lent.Node, Standing: k.slot}
		}
		for _, id := range k.regions {
			leases[id] = append(leases[id], lent)
			if !call.IsZero() && !slices.Contains(calls[id], call) {
				calls[id] = append(calls[id], call)
			}
		}
	}
	for i, r := range s.made {
		of := surveyedRegion{region: r.Region(p.prefix, s.at[i]), maker: r.Owner, leases: leases[r.ID], calls: calls[r.ID]}
		if w := words[r.ID.Slot()]; w.region == r.ID {
			of.controller, of.frozen = p.rows.of[w.owner], w.owner == frozen
		}
		slices.SortFunc(of.leases, func(a, b LeaseState) int { return cmp.Or(cmp.Compare(a.Call, b.Call), a.Node.Compare(b.Node)) })
		of.leases = slices.Compact(of.leases)
		out.regions = append(out.regions, of)
	}
	slices.SortFunc(out.regions, func(a, b surveyedRegion) int { return bytes.Compare(a.region.Base[:], b.region.Base[:]) })
	slices.SortFunc(out.open, func(a, b slotCell) int { return int(a.slot) - int(b.slot) })
	return out
}

// region is the region that a pointer lies in. It fails as NotFound if there is none, and as Unavailable if there may be one.
func (c *controller) region(op string, p dsmpacket.Pointer) (*surveyedRegion, error) {
	switch r, silent := c.surveys.last.find(p), c.silent(); {
	case r != nil:
		return r, nil
	case len(silent) > 0:
		return nil, fault.New(fault.Unavailable, op, "%s lies in no region that is known: %s has not said which it has", p, strings.Join(silent, ", "))
	}
	return nil, fault.New(fault.NotFound, op, "%s lies in no region", p)
}

// holders does what Gatekeeper.Holders says.
func (c *controller) holders(p dsmpacket.Pointer, out *Holders) error {
	r, err := c.region("pointer", p)
	if err != nil {
		return err
	}
	out.Region = r.state()
	for _, id := range r.calls {
		if k := c.told.calls[id]; k != nil {
			out.Calls = append(out.Calls, c.told.state(k))
		}
	}
	return nil
}

// missing names who has not told what the survey was to find: memory blades, and "switch".
func (c *controller) missing() []string { return append(c.unread(), c.silent()...) }

// outdated reports whether the last survey is from before: without the switch's registers there are no others.
func (c *controller) outdated() bool { return !c.connected || c.rebuild != nil }

// unread is "switch" if the switch has not told of all registers, else empty.
func (c *controller) unread() []string {
	if c.surveys.last.partial || c.outdated() {
		return []string{"switch"}
	}
	return nil
}

// silent are the memory blades that have not listed all of their regions.
func (c *controller) silent() (names []string) {
	if !c.outdated() {
		return c.surveys.last.silent
	}
	for _, b := range c.sortedBlades() {
		if b.memory() && b.first() {
			names = append(names, b.hello.Blade)
		}
	}
	slices.Sort(names)
	return names
}

// openCalls is how many calls had open slots.
func (s *surveyed) openCalls() (n int) {
	for _, k := range s.open {
		if k.place == 0 {
			n++
		}
	}
	return n
}

func (r *surveyedRegion) state() RegionState {
	return RegionState{Region: r.region.String(), Size: r.region.Size(), Owner: r.maker, Controller: r.controller, Frozen: r.frozen, Leases: r.leases}
}

// matches reports whether a region is meant.
func (r *surveyedRegion) matches(q *RegionQuery) bool {
	return !q.Node.IsValid() || r.controller == q.Node || r.maker == q.Node || slices.ContainsFunc(r.leases, func(l LeaseState) bool { return l.Node == q.Node })
}

// find is the region that a pointer lies in.
func (s *surveyed) find(p dsmpacket.Pointer) *surveyedRegion {
	i, found := slices.BinarySearchFunc(s.regions, p.Base(), func(r surveyedRegion, base dsmpacket.Pointer) int { return bytes.Compare(r.region.Base[:], base[:]) })
	if !found || p.Offset() >= s.regions[i].region.Size() {
		return nil
	}
	return &s.regions[i]
}

// scan adds the regions of a page to it, and one more if more follow.
func (s *surveyed) scan(q *RegionQuery, page *[]RegionState) {
	for i := range s.regions {
		r := &s.regions[i]
		in := q.Pointer.IsNil() || s.find(q.Pointer) == r
		if in && bytes.Compare(r.region.Base[:], q.After[:]) > 0 && r.matches(q) && len(*page) <= q.Limit {
			*page = append(*page, r.state())
		}
	}
}

// tickSurvey gives up what a survey waits for, and begins the next one.
func (c *controller) tickSurvey() {
	if s := c.surveys.now; s != nil && (!c.connected || !c.now.Before(s.heard.Add(surveyPatience))) {
		c.endSurvey(s)
	}
	c.auditDue()
	c.beginSurvey()
}

func (c *controller) surveyDue(earliest func(time.Time)) {
	switch s := &c.surveys; {
	case s.now != nil:
		earliest(s.now.heard.Add(surveyPatience))
	case len(s.next) > 0:
		earliest(s.last.when.Add(surveyShare * s.last.took))
	}
	if at, due := c.nextAudit(); due {
		earliest(at)
	}
}
