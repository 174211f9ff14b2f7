package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// What people do to the copies of memory machines. Drain and ReturnToService do their
// part of it, too.

// Reasons why Mirror and Unmirror refuse. They come as the Err of a *fault.Error, so that
// errors.Is finds them; the error's code is in parentheses.
var (
	// ErrSameBlade: both names are the same blade, or that blade has the machine's other
	// copy already (BadRequest).
	ErrSameBlade = errors.New("a machine cannot be mirrored onto itself")
	// ErrThirdBlade: the machine has two blades in service (BadRequest).
	ErrThirdBlade = errors.New("a machine has two copies at most")
	// ErrBladeServes: the blade has content of a machine that would be lost (BadRequest).
	ErrBladeServes = errors.New("the blade serves another machine")
	// ErrNoRoom: the blade's capacity is below what the machine holds (NoSpace).
	ErrNoRoom = errors.New("the blade has not enough room")
	// ErrUnknownBlade: no memory blade has that name (NotFound).
	ErrUnknownBlade = errors.New("no such memory blade")
	// ErrNotMirrored: the blade has the machine's only copy (BadRequest).
	ErrNotMirrored = errors.New("the blade has the only copy")
	// ErrAway: the blade is not in service (Unavailable).
	ErrAway = errors.New("the blade is not in service")
)

// FillState is how far a blade has got that is to be a machine's second copy.
type FillState struct {
	// Blade is the blade that is filled; the machine's first copy is the source.
	Blade string `json:"blade"`
	// Done is how many bytes are copied. What is written meanwhile is copied again, and
	// counts again. Total is Done and what is left, as far as is known.
	Done  uint64 `json:"done"`
	Total uint64 `json:"total"`
	// Rate is how fast it goes now, in bytes per second; Left is how long it will take at
	// this rate, 0 while that is not known.
	Rate uint64        `json:"rate"`
	Left time.Duration `json:"left"`
}

// Mirror gives the memory machine of one blade a second copy on another one, which must
// serve nothing. It returns when that is decided; Snapshot.Machines tells how far the copy
// is filled. It replaces a blade of the machine that has no copy.
func (g *Gatekeeper) Mirror(ctx context.Context, first, second string) error {
	return g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) {
		return nil, c.mirrorOnto(first, second)
	})
}

// Unmirror takes a blade's copy from its machine, which has one copy then. The blade is
// empty and serves nothing until ReturnToService or Mirror. The cause is for people. The
// copy goes when the blade of the other one has answered; Unavailable means that it has not
// within 5 s, and that the copy goes as soon as it does.
func (g *Gatekeeper) Unmirror(ctx context.Context, blade, cause string) error {
	gone := make(chan struct{})
	if err := g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) {
		return nil, c.unmirror(blade, cause, func() { close(gone) })
	}); err != nil {
		return err
	}
	if _, err := awaitAnswer(ctx, g, gone); err == nil || errors.Is(err, ErrStopped) {
		return err
	}
	return refuseMirror(fault.Unavailable, "unmirror", ErrAway, "the other blade of blade %s's machine does not answer", blade)
}

// refuseMirror is an error about the copies of a machine.
func refuseMirror(code fault.Code, op string, reason error, format string, args ...any) error {
	return &fault.Error{Code: code, Op: op, Msg: fmt.Sprintf(format, args...), Err: reason}
}

// mirrorOnto does what Mirror says.
func (c *controller) mirrorOnto(first, second string) error {
	const op = "mirror"
	a, err := c.memoryBlade(op, first)
	if err != nil {
		return err
	}
	b, err := c.memoryBlade(op, second)
	switch {
	case err != nil:
		return err
	case a == b:
		return refuseMirror(fault.BadRequest, op, ErrSameBlade, "name two blades, not %s twice", first)
	case !a.alive() || !a.holds():
		return refuseMirror(fault.Unavailable, op, ErrAway, "blade %s has no copy in service", first)
	case a.mirror != nil && a.mirror.has(b):
		return refuseMirror(fault.BadRequest, op, ErrSameBlade, "machine %d has two copies, %s and %s, already", a.hello.Machine, first, second)
	case a.two():
		return refuseMirror(fault.BadRequest, op, ErrThirdBlade, "machine %d has two copies: bifrost unmirror %s or %s first", a.hello.Machine, first, c.other(a).hello.Blade)
	case !b.alive() || c.mark(b):
		return refuseMirror(fault.Unavailable, op, ErrAway, "blade %s must be in service: bifrost return %s", second, second)
	case b.holds() && (b.used > 0 || b.mirror != nil):
		return refuseMirror(fault.BadRequest, op, ErrBladeServes, "blade %s serves machine %d: bifrost drain %s first", second, b.hello.Machine, second)
	case b.holds() && c.hasRegions(b.hello.Machine):
		return refuseMirror(fault.BadRequest, op, ErrBladeServes, "blade %s serves machine %d, which has regions: bifrost drain %s first", second, b.hello.Machine, second)
	case b.mirror != nil && b.mirror != a.mirror && b.mirror.fills(b):
		return refuseMirror(fault.BadRequest, op, ErrBladeServes, "blade %s is being filled for machine %d: bifrost unmirror %s first", second, b.hello.Machine, second)
	case b.hello.Capacity < a.used:
		return refuseMirror(fault.NoSpace, op, ErrNoRoom, "machine %d holds %d bytes, blade %s has room for %d", a.hello.Machine, a.used, second, b.hello.Capacity)
	case b.holds() && c.hasLedgers(b.hello.Machine):
		return refuseMirror(fault.BadRequest, op, ErrBladeServes, "blade %s serves machine %d, which keeps ledgers of nodes: it can take the copy when these have ended", second, b.hello.Machine)
	}
	m := c.mirrorAt(a)
	if m.filling != nil && m.filling.blade != second {
		c.stopFilling(m, "blade "+second+" takes the place of blade "+m.filling.blade)
	}
	m.out, m.again = "", time.Time{}
	if b.mirror == m {
		c.keepMirror(m)
	} else {
		c.takeIn(m, b)
	}
	c.pairUp(m)
	return nil
}

// hasLedgers reports whether nodes keep their ledgers at a memory machine.
func (p *population) hasLedgers(machine uint8) bool {
	birth := p.birthOf(machine)
	for n := range p.everyone {
		if n.ledger != nil && n.ledger.Machine == machine && n.ledger.Birth == birth {
			return true
		}
	}
	return false
}

// mirrorAt returns the mirrored machine of a blade with the first copy, and makes one of a
// machine that has one blade.
func (c *controller) mirrorAt(b *blade) *mirror {
	if b.mirror == nil {
		b.mirror = &mirror{
			machine: b.hello.Machine, blades: []string{b.hello.Blade}, epoch: 1, copies: []copyOf{{Blade: b.hello.Blade}}, birth: b.hello.Birth, lost: b.begin,
		}
		c.mirrors[b.hello.Machine] = b.mirror
		c.command(b, control.KindMirror, b.mirror.mirrorOf(b), nil)
	}
	return b.mirror
}

// takeIn makes a blade that serves nothing the second blade of a machine with one copy. Who
// was that before serves a machine of its own, and it is empty. Both are told when they say
// hello again.
func (c *controller) takeIn(m *mirror, b *blade) {
	if old := c.second(m); old != nil {
		old.mirror, old.hello.Machine, old.anew = nil, 0, true
		c.keepMissed(old)
	}
	switch was := b.mirror; {
	case was != nil:
		was.blades, was.out = slices.DeleteFunc(slices.Clone(was.blades), func(name string) bool { return name == b.hello.Blade }), ""
		c.keepMirror(was)
	default:
		c.machines[b.hello.Machine] = nil
		c.unserve(b)
		c.change(nil, append(c.noMemoryRules(b), c.unwant(homeEntry(c.machinePrefix(b.hello.Machine), 0))...))
	}
	m.blades = []string{m.copies[0].Blade, b.hello.Blade}
	b.mirror, b.hello.Machine, b.anew = m, m.machine, true
	c.keepMissed(b)
	c.keepMirror(m)
}

// moveCopy makes sure that a memory blade which drains is not needed: the machine's other copy
// takes over, or a blade that serves nothing, when it is filled. Without either the blade
// is empty when its regions have been freed.
func (c *controller) moveCopy(name string) {
	b := c.blades[name]
	switch {
	case b == nil || !b.memory() || !b.alive():
	case b.two():
		c.quit(b, "blade "+name+" drains", nil)
	case !b.holds() && b.mirror.fills(b):
		c.stopFilling(b.mirror, "blade "+name+" drains")
	case b.holds() && c.hasRegions(b.hello.Machine):
		for _, o := range c.sortedBlades() {
			if o.memory() && o != b && c.mirrorOnto(name, o.hello.Blade) == nil {
				return
			}
		}
		c.logger.Warn("no memory blade can take the copy of a blade that drains", "blade", name)
	}
}

// unmirror does what Unmirror says; done is called when the machine has one copy.
func (c *controller) unmirror(name, cause string, done func()) error {
	const op = "unmirror"
	b, err := c.memoryBlade(op, name)
	switch {
	case err != nil:
		return err
	case b.mirror == nil || !b.two() && b.mirror.has(b):
		return refuseMirror(fault.BadRequest, op, ErrNotMirrored, "blade %s has the only copy of machine %d: bifrost drain %s moves it elsewhere", name, b.hello.Machine, name)
	}
	if b.two() && !b.alive() {
		return refuseMirror(fault.Unavailable, op, ErrAway, "neither blade of machine %d is in service: the first one that is back keeps its copy", b.hello.Machine)
	}
	b.mirror.out = name
	c.keepMirror(b.mirror)
	if b.two() {
		c.quit(b, cause, done)
	} else {
		done()
	}
	return nil
}

// quit loses the copy of a blade that an operator wants to have none, and says so to
// done, which may be nil.
func (c *controller) quit(b *blade, why string, done func()) {
	unwanted := func() bool { return b.two() && (b.mirror.takenOut(b) || c.mark(b)) }
	if !unwanted() {
		return
	}
	c.giveUpCopy(b, unwanted, func() {
		c.loseCopy(b, why)
		if done != nil {
			done()
		}
	})
}

// pullNow takes a blade out of service that an operator has just marked failed, if it has a
// machine's only copy, and has out closed when it is out of service. pull does it otherwise.
func (c *controller) pullNow(name, cause string, out chan struct{}) {
	b := c.blades[name]
	if b == nil || !b.alive() {
		close(out)
		return
	}
	b.leaving = append(b.leaving, out)
	if b.mirror != nil && !b.two() {
		c.takeOut(b, cause, false)
	}
}

// pull takes a blade out of service that an operator has marked failed: one of two copies when
// the other blade has answered, and one without a copy. The other blade may have turned out to
// be dead: then this one has the only copy and goes on, until there are two again.
func (c *controller) pull(b *blade) {
	if !c.pulled(b) {
		return
	}
	r, _ := c.fleet.Blade(b.hello.Blade)
	switch {
	case b.two():
		c.giveUpCopy(b, func() bool { return b.two() && c.pulled(b) }, func() { c.takeOut(b, r.Cause, false) })
	case !b.holds():
		c.takeOut(b, r.Cause, false)
	}
}

// pulled reports whether a blade is in service that an operator has marked failed.
func (e *estate) pulled(b *blade) bool {
	r, ok := e.fleet.Blade(b.hello.Blade)
	return ok && b.alive() && r.Mark == resources.Failed
}

// returned makes a blade that an operator returns the second copy of its machine again.
func (c *controller) returned(name string) {
	b := c.blades[name]
	if b == nil || b.mirror == nil {
		return
	}
	if r, ok := c.fleet.Blade(name); ok && b.alive() && (r.Down || r.Mark == resources.Failed) { // it was marked failed, and has not gone
		if err := c.registerBlade(&b.hello, false); err != nil {
			c.logger.Error("a blade cannot be used", "blade", name, "error", err)
		}
		b.leaving = nil
	}
	if b.mirror.out == name {
		b.mirror.out = ""
		c.keepMirror(b.mirror)
	}
	c.pairUp(b.mirror)
}

// takenOut reports whether an operator has taken a blade out of its machine.
func (m *mirror) takenOut(b *blade) bool { return m.out == b.hello.Blade }

// A machine with one copy gets a second one while it serves. The blade with the first copy,
// the source, sends its content to the other one, the target (dsm/memory). Clients and we
// know one copy until the last step.
//
//	pairUp ─▶ written down ─▶ KindFill: target, source ─▶ content … heartbeats tell how far
//	  ─▶ ready ─▶ the switch sends to both; barrier ─▶ epoch written down, the target gets commands, too
//	  ─▶ KindComplete: source ─▶ both are copies in the new epoch ─▶ written down
//
// The target drops what the switch sends it until it is complete. The source has
// everything that was acknowledged before the new epoch, and in that epoch nothing is
// settled without its answer. So whatever fails before the end, the source alone goes on,
// in a later epoch, and the target begins anew, as another incarnation.

// A filling that is cut off begins anew, and nothing of it is used again:
//
//   - When the target is gone, so is what it had: a memory blade keeps nothing on disk.
//   - When the source is gone, what the target has is no state of any moment: units were copied
//     at different times, and requests that changed two of them may be there by half.
//   - Only when the target was silent for three heartbeats, or the Gatekeeper restarted, is
//     something there to go on from. To use it, the source would have to note what changes for
//     as long as nobody fills, and both would have to agree on what had arrived. That saves the
//     seconds that the content takes at the rate (16 for 1 GiB) in a case that is rare.

// fillJob is the filling of a machine's second copy.
type fillJob struct {
	blade       string
	incarnation uint32
	token       uint64
	began       time.Time
	progress    control.FillProgress
	joining     bool         // the switch sends to the target, too, or is about to
	closing     bool         // the epoch is raised, and the target gets commands
	later       []laterFence // that were answered meanwhile
}

// laterFence is a copy's answer to a fence, which has to wait until there are two copies.
type laterFence struct {
	blade *blade
	fence control.Fence
	reply control.Message
	then  func()
}

// fillPauses are those before a blade is filled again that could not be.
var fillPauses = pace.Pauses{First: 500 * time.Millisecond, Most: 30 * time.Second}

// pairUp begins to fill a machine's second copy if it has one copy, both of its blades are
// in service, and nothing speaks against it.
func (c *controller) pairUp(m *mirror) {
	if m == nil || len(m.copies) != 1 || m.filling != nil || c.now.Before(m.again) {
		return
	}
	first, second := c.source(m), c.second(m)
	if first == nil || second == nil || !first.alive() || !second.alive() || c.mark(second) || m.takenOut(second) || second.anew {
		return
	}
	if second.hello.Capacity < first.used {
		c.cannotFill(m, fmt.Sprintf("blade %s has room for %d bytes, the machine holds %d", second.hello.Blade, second.hello.Capacity, first.used))
		return
	}
	m.last++
	job := &fillJob{blade: second.hello.Blade, incarnation: m.last, token: uint64(m.epoch)<<32 | uint64(m.last), began: c.now}
	m.filling = job
	m.why = fmt.Sprintf("blade %s is being filled", job.blade)
	c.keepMirror(m)
	c.event(Event{Kind: MachineFilling, Blade: job.blade, Message: fmt.Sprintf("machine %d: %s is filled from %s", m.machine, job.blade, first.hello.Blade)})
	c.logger.Info("memory machine gets a second copy", "machine", m.machine, "from", first.hello.Blade, "to", job.blade, "bytes", first.used)
	q := control.Fill{Token: job.token, Epoch: m.epoch, Incarnation: job.incarnation, From: first.address, To: second.address, Rate: c.cfg.FillRate}
	c.fillCommand(m, second, control.KindFill, q, func() {
		q.Source = true
		c.fillCommand(m, first, control.KindFill, q, nil)
	})
}

// fillCommand has a blade do its part of the present filling, and then goes on. If it does
// not, the filling is over.
func (c *controller) fillCommand(m *mirror, b *blade, kind control.Kind, body any, then func()) {
	job := m.filling
	c.command(b, kind, body, func(reply control.Message) {
		if m.filling != job {
			return
		}
		if o := outcome(reply); o.Code != fault.OK {
			c.stopFilling(m, fmt.Sprintf("blade %s cannot be filled: %s", job.blade, o.Message))
			return
		}
		if then != nil {
			then()
		}
	})
}

// cannotFill says why a machine does not get its second copy. It is tried again later.
func (c *controller) cannotFill(m *mirror, why string) {
	m.pause = fillPauses.Next(m.pause)
	m.again = c.now.Add(m.pause)
	if m.why == why {
		return
	}
	m.why = why
	c.keepMirror(m)
	c.event(Event{Kind: MachineUnmirrored, Blade: m.copies[0].Blade, Message: fmt.Sprintf("machine %d has one copy: %s", m.machine, why)})
	c.logger.Warn("memory machine has one copy", "machine", m.machine, "copy", m.copies[0].Blade, "reason", why)
}

// filled takes in what a source says of the copy that is filled from it.
func (c *controller) filled(b *blade, p *control.FillProgress) {
	m := b.mirror
	if p == nil || m == nil || m.filling == nil || m.filling.token != p.Token || c.source(m) != b {
		return
	}
	job := m.filling
	job.progress = *p
	switch {
	case p.Failed != fault.OK:
		c.stopFilling(m, fmt.Sprintf("blade %s cannot be filled: %s", job.blade, p.Message))
	case p.Ready && !job.joining:
		c.joinGroup(m)
	}
}

// joinGroup has the switch send what changes something to the target, too, and then
// completes the copy.
func (c *controller) joinGroup(m *mirror) {
	job, second := m.filling, c.blades[m.filling.blade]
	job.joining = true
	c.change(nil, c.groupRules(m, c.blades)) // before dsm_home names the group
	c.change(func(error) {
		if m.filling == job {
			c.completeCopy(m)
		}
	}, c.memoryRules(second), c.homeRules(m, c.source(m)))
}

// completeCopy raises the epoch and has the source complete the copy. The target gets every
// command from now on, and those that the source may not have carried out yet. One that
// is carried out twice changes nothing.
func (c *controller) completeCopy(m *mirror) {
	job, first, second := m.filling, c.source(m), c.blades[m.filling.blade]
	job.closing = true
	m.epoch++
	c.keepMirror(m)
	c.serveMemory(second)
	second.reclaims = slices.Clone(first.reclaims)
	c.grantAll(second)
	told := control.Mirror{Epoch: m.epoch, Incarnation: m.copies[0].Incarnation, Members: 2, Lost: m.lost}
	c.fillCommand(m, first, control.KindComplete, control.Complete{Token: job.token, Mirror: told}, func() {
		m.filling, m.why, m.pause = nil, "", 0
		m.copies = append(m.copies, copyOf{job.blade, job.incarnation})
		c.keepMirror(m)
		c.command(second, control.KindMirror, m.mirrorOf(second), nil) // the first copy has not told it what is lost
		c.announce(m)
		c.reconcileLedgers(second) // it may have got ledgers that the source was about to delete
		c.levelLater(job)
		c.reclaimMore(second)
		c.event(Event{Kind: MachineMirrored, Blade: job.blade, Message: fmt.Sprintf("machine %d has two copies: %s and %s", m.machine, first.hello.Blade, job.blade)})
		c.logger.Info("memory machine is mirrored", "machine", m.machine, "first", first.hello.Blade, "second", job.blade, "epoch", m.epoch,
			"bytes", job.progress.Done, "after", c.now.Sub(job.began))
		if c.mark(first) {
			c.loseCopy(first, "blade "+first.hello.Blade+" is to have no copy")
		}
	})
}

// stopFilling gives the filling of a second copy up: the first copy goes on alone, in a new
// epoch.
func (c *controller) stopFilling(m *mirror, why string) {
	job := m.filling
	m.filling = nil
	c.alone(m, c.blades[job.blade], c.source(m), why)
	c.levelLater(job)
	m.pause = fillPauses.Next(m.pause)
	m.again = c.now.Add(m.pause)
}

// levelLater goes on with the fences that were answered while a copy was completed, those
// of the first copy before those of the second: that tells which ones both have answered.
func (c *controller) levelLater(job *fillJob) {
	for _, first := range []bool{true, false} {
		for _, l := range job.later {
			if l.blade.first() == first {
				c.level(l.blade, l.fence, l.reply, l.then)
			}
		}
	}
}

// fills reports whether a blade is the source or the target of a filling.
func (m *mirror) fills(b *blade) bool {
	return m != nil && m.filling != nil && (m.filling.blade == b.hello.Blade || m.has(b))
}

// state is how far the filling has got.
func (job *fillJob) state(now time.Time) *FillState {
	if job == nil {
		return nil
	}
	s := &FillState{Blade: job.blade, Done: job.progress.Done, Total: job.progress.Done + job.progress.Left}
	if took := now.Sub(job.began); took > 0 {
		s.Rate = uint64(float64(s.Done) / took.Seconds())
	}
	if s.Rate > 0 {
		s.Left = duration.Seconds(float64(job.progress.Left) / float64(s.Rate))
	}
	return s
}

// MachineState is a memory machine, the number in a pointer: one blade serves it, or
// two of which each holds a copy.
type MachineState struct {
	Machine uint8    `json:"machine"`
	Blades  []string `json:"blades"`
	// Copies are the blades with a complete copy; the first one answers reads.
	Copies []string `json:"copies"`
	// Incarnations are those of Copies, in the same order: a blade whose copy was lost and
	// filled again has a later one. None for a machine with one blade.
	Incarnations []uint32 `json:"incarnations,omitempty"`
	// InService is how many of them are in service; with none, the machine's regions are
	// unavailable.
	InService int    `json:"in_service"`
	Epoch     uint32 `json:"epoch,omitempty"` // of these copies; 0 for a machine with one blade
	Why       string `json:"why,omitempty"`   // there are not two
	// Filling is how far the second copy is filled, nil if none is.
	Filling *FillState `json:"filling,omitempty"`
	// Capacity and Used are bytes. A machine with two copies has what the smaller one has.
	Capacity uint64 `json:"capacity"`
	Used     uint64 `json:"used"`
}

// machineStates lists the memory machines by their ids.
func (e *estate) machineStates(now time.Time) (all []MachineState) {
	states := map[uint8]MachineState{}
	for id, m := range e.mirrors {
		states[id] = e.mirrorState(m, now)
	}
	for name, b := range e.blades {
		if b.memory() && b.mirror == nil {
			s := MachineState{Machine: b.hello.Machine, Blades: []string{name}, Copies: []string{name}, Why: unpaired(name)}
			states[b.hello.Machine] = e.counted(s)
		}
	}
	for _, id := range slices.Sorted(maps.Keys(states)) {
		all = append(all, states[id])
	}
	return all
}

// unpaired is why a blade's machine has one copy that is not meant to have two.
func unpaired(blade string) string {
	return fmt.Sprintf("blade %s is not paired with another one", blade)
}

func (e *estate) mirrorState(m *mirror, now time.Time) MachineState {
	s := MachineState{Machine: m.machine, Blades: slices.Clone(m.blades), Copies: []string{}, Epoch: m.epoch, Why: m.why, Filling: m.filling.state(now)}
	for _, o := range m.copies {
		s.Copies, s.Incarnations = append(s.Copies, o.Blade), append(s.Incarnations, o.Incarnation)
	}
	return e.counted(s)
}

// counted adds up what the blades of a machine with complete copies tell.
func (e *estate) counted(s MachineState) MachineState {
	for i, name := range s.Copies {
		b := e.blades[name]
		if b == nil {
			continue
		}
		if b.alive() {
			s.InService++
		}
		if i == 0 || b.hello.Capacity < s.Capacity {
			s.Capacity = b.hello.Capacity
		}
		s.Used = max(s.Used, b.used)
	}
	return s
}

// warnUnpaired tells the operator of a rack with pairs of a blade that has no partner.
func (c *controller) warnUnpaired(b *blade) {
	if b.mirror != nil || len(c.pairs) == 0 {
		return
	}
	c.event(Event{
		Kind: MachineUnmirrored, Blade: b.hello.Blade, Message: fmt.Sprintf("machine %d has one copy: %s", b.hello.Machine, unpaired(b.hello.Blade)),
	})
	c.logger.Warn("memory machine has one copy", "machine", b.hello.Machine, "copy", b.hello.Blade, "reason", unpaired(b.hello.Blade))
}
