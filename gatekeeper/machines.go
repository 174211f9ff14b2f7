package gatekeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
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
// empty and serves nothing until ReturnToService or Mirror. The cause is for people.
func (g *Gatekeeper) Unmirror(ctx context.Context, blade, cause string) error {
	return g.operate(ctx, Event{}, func(c *controller) ([]resources.Action, error) {
		return nil, c.unmirror(blade, cause)
	})
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
	case !b.alive() || c.mark(b):
		return refuseMirror(fault.Unavailable, op, ErrAway, "blade %s must be in service: bifrost return %s", second, second)
	case a.mirror != nil && a.mirror.has(b):
		return refuseMirror(fault.BadRequest, op, ErrSameBlade, "machine %d has two copies, %s and %s, already", a.hello.Machine, first, second)
	case a.two():
		return refuseMirror(fault.BadRequest, op, ErrThirdBlade, "machine %d has two copies: bifrost unmirror %s or %s first", a.hello.Machine, first, c.other(a).hello.Blade)
	case b.holds() && (b.used > 0 || b.mirror != nil):
		return refuseMirror(fault.BadRequest, op, ErrBladeServes, "blade %s serves machine %d: bifrost drain %s first", second, b.hello.Machine, second)
	case b.hello.Capacity < a.used:
		return refuseMirror(fault.NoSpace, op, ErrNoRoom, "machine %d holds %d bytes, blade %s has room for %d", a.hello.Machine, a.used, second, b.hello.Capacity)
	case a.mirror == nil || b.mirror != a.mirror:
		return refuseMirror(fault.Unsupported, op, ErrBladeServes, "blade %s is configured for machine %d", second, b.hello.Machine)
	}
	m := a.mirror
	m.out = ""
	c.keepMirror(m)
	c.pairUp(m)
	return nil
}

// unmirror does what Unmirror says.
func (c *controller) unmirror(name, cause string) error {
	const op = "unmirror"
	b, err := c.memoryBlade(op, name)
	switch {
	case err != nil:
		return err
	case b.mirror == nil || !b.two() && b.mirror.has(b):
		return refuseMirror(fault.BadRequest, op, ErrNotMirrored, "blade %s has the only copy of machine %d: bifrost drain %s moves it elsewhere", name, b.hello.Machine, name)
	}
	b.mirror.out = name
	c.keepMirror(b.mirror)
	if b.two() {
		c.loseCopy(b, cause)
	}
	return nil
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
