package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// What people do to the copies of memory machines. Drain and ReturnToService do their
// part of it, too.

// Reasons why Mirror and Unmirror refuse. They come as the Err of a *fault.Error, so that
// errors.Is finds them; the error's code is in brackets.
var (
	// ErrSameBlade: both names are the same blade, or that blade has the machine's other
	// copy already [BadRequest].
	ErrSameBlade = errors.New("a machine cannot be mirrored onto itself")
	// ErrThirdBlade: the machine has two blades in service [BadRequest].
	ErrThirdBlade = errors.New("a machine has two copies at most")
	// ErrBladeServes: the blade has content of a machine that would be lost [BadRequest].
	ErrBladeServes = errors.New("the blade serves another machine")
	// ErrNoRoom: the blade's capacity is below what the machine holds [NoSpace].
	ErrNoRoom = errors.New("the blade has not enough room")
	// ErrUnknownBlade: no memory blade has that name [NotFound].
	ErrUnknownBlade = errors.New("no such memory blade")
	// ErrNotMirrored: the blade has the machine's only copy [BadRequest].
	ErrNotMirrored = errors.New("the blade has the only copy")
	// ErrAway: the blade is not in service [Unavailable].
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
	ctx, cancel := context.WithTimeout(ctx, commandPatience)
	defer cancel()
	select {
	case <-gone:
		return nil
	case <-ctx.Done():
		return refuseMirror(fault.Unavailable, "unmirror", ErrAway, "the other blade of blade %s's machine does not answer", blade)
	}
}

// refuseMirror is an error about the copies of a machine.
func refuseMirror(code fault.Code, op string, reason error, format string, args ...any) error {
	return &fault.Error{Code: code, Op: op, Msg: fmt.Sprintf(format, args...), Err: reason}
}

// memoryBlade finds a memory blade by name.
func (c *controller) memoryBlade(op, name string) (*blade, error) {
	b := c.blades[name]
	switch {
	case b == nil:
		return nil, refuseMirror(fault.NotFound, op, ErrUnknownBlade, "blade %q has never said hello; bifrost blades lists those that have", name)
	case !b.memory():
		return nil, refuseMirror(fault.NotFound, op, ErrUnknownBlade, "blade %q is a %s blade", name, b.hello.Kind)
	}
	return b, nil
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

// hasRegions reports whether a memory machine has regions.
func (c *controller) hasRegions(machine uint8) bool {
	for r := range c.leases.After(packet.Make(c.cfg.DSMPrefix, machine, 0)) {
		return r.Region.Base.Machine() == machine
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
		c.change(nil, append(c.noMemoryRules(b), c.base.unwant(homeEntry(c.machinePrefix(b.hello.Machine), 0))...))
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
		c.log.Warn("no memory blade can take the copy of a blade that drains", "blade", name)
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

// returned makes a blade that an operator returns the second copy of its machine again.
func (c *controller) returned(name string) {
	b := c.blades[name]
	if b == nil || b.mirror == nil {
		return
	}
	if b.mirror.out == name {
		b.mirror.out = ""
		c.keepMirror(b.mirror)
	}
	c.pairUp(b.mirror)
}

// takenOut reports whether an operator has taken a blade out of its machine.
func (m *mirror) takenOut(b *blade) bool { return m.out == b.hello.Blade }
