package crash

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/crash/gen-go/actor"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// A run with a chorus (Setting.Calls) is a long one: beside the program's clients, several
// voices call a service of their own, one call after the other, up to hundreds of thousands.
// The service counts the calls of each voice in its state, and again in a region that it keeps, and each
// call says which one it is. So a call that is lost, or has happened twice, shows at the next
// one, and so does a write that was not taken back, or was taken back in vain:
//
//	voice v: call n, lent a region ─▶ state and memory say n−1 for v? the region holds what v has written?
//	         n ◀───────────────────── state and memory say n for v
//
// The service crashes like the program's; the voices do not.

const (
	voices     = 8
	chorusName = "Z"  // the service, and its program
	voiceBlade = "v1" // the voices'
	lendEach   = 16   // one call in so many lends a region
	chorusSize = 4096 // of that region, bytes
	longEach   = 8    // one answer in so many is long
	longMarks  = 1500 // entries, some 28 kB: more than a jumbo frame
	hoard      = 128  // regions that the first voice leaves to the rack, more than a packet names
)

// chorus is the service: an actor.Actor and an rpc.State.
type chorus struct {
	run    *Run
	memory func(context.Context) *dsm.Client // nil for a test without a rack
	Counts [voices]uint64                    `json:"counts"`
	Kept   dsm.Pointer                       `json:"kept"` // the region with the same counts; nil before there is one
}

// Snapshot implements rpc.State.
func (c *chorus) Snapshot() ([]byte, error) { return json.Marshal(c) }

// Restore implements rpc.State.
func (c *chorus) Restore(s []byte) error {
	c.Counts, c.Kept = [voices]uint64{}, dsm.Pointer{}
	return json.Unmarshal(s, c)
}

// Act implements actor.Actor: the script is a voice, and the noise its call's number.
func (c *chorus) Act(ctx context.Context, script []byte, noise int64, lent []*bifrost.GlobalPointer) (*actor.Outcome, error) {
	v, n := int(script[0]), uint64(noise) //nolint:gosec // counted from 1
	if had := c.Counts[v]; had != n-1 {
		c.complain("voice %d: call %d comes after %d calls", v, n, had)
	}
	if err := c.count(ctx, v, n); err != nil {
		return nil, err
	}
	for _, g := range lent {
		p, err := rpc.PointerOf(g)
		if err != nil {
			return nil, err
		}
		b := make([]byte, chorusSize)
		if _, err := rpc.Memory(ctx).Read(ctx, p, b); err != nil {
			return nil, err
		}
		if got := binary.BigEndian.Uint64(b[chorusSize-8:]); got != n {
			c.complain("voice %d: the region that call %d lends is of call %d", v, n, got)
		}
	}
	c.Counts[v] = n
	answer := &actor.Outcome{Value: noise, Marks: []*actor.Mark{}}
	if n%longEach == 0 {
		answer.Marks = slices.Repeat([]*actor.Mark{{Value: noise}}, longMarks)
	}
	return answer, nil
}

// complain tells of a broken promise, unless the log has lost what was promised.
func (c *chorus) complain(format string, args ...any) {
	select {
	case <-c.run.void:
	default:
		c.run.ledger.complain(format, args...)
	}
}

// count counts a call in memory. A service that has no memory, or has lost its region, does
// without until the next call.
func (c *chorus) count(ctx context.Context, v int, n uint64) error {
	if c.memory == nil {
		return nil
	}
	m := c.memory(ctx)
	if c.Kept.IsNil() {
		p, err := m.Alloc(ctx, 8*voices)
		if err != nil {
			return nil //nolint:nilerr // said above
		}
		var b []byte
		for _, had := range c.Counts {
			b = binary.BigEndian.AppendUint64(b, had)
		}
		if _, err := m.Write(ctx, p, b); err != nil {
			return err
		}
		c.Kept = p
	}
	at, b := c.Kept.Add(int64(8*v)), make([]byte, 8)
	_, err := m.Read(ctx, at, b)
	if err == nil {
		if had := binary.BigEndian.Uint64(b); had != n-1 {
			c.complain("voice %d: call %d finds %d calls in memory", v, n, had)
		}
		_, err = m.Write(ctx, at, binary.BigEndian.AppendUint64(nil, n))
	}
	if err != nil && c.run.forLoss(err) {
		c.Kept, err = dsm.Pointer{}, nil
	}
	return err
}

// Post implements actor.Actor.
func (c *chorus) Post(context.Context, []byte, int64, []*bifrost.GlobalPointer) error {
	return errNoState
}

// Audit implements actor.Actor: the entries are the voices and what they have counted.
func (c *chorus) Audit(context.Context) (*actor.Books, error) {
	books := &actor.Books{Marks: []*actor.Mark{}}
	for v, n := range c.Counts {
		books.Marks = append(books.Marks, &actor.Mark{Op: int32(v), Value: int64(n)}) //nolint:gosec // both are small
	}
	return books, nil
}

// chant is the program of the service.
func (r *Run) chant(ctx context.Context, j join.Joiner, s control.Start) error {
	n, _, err := r.join(ctx, chorusName, j, s)
	if err != nil {
		return err
	}
	defer r.crash.wentDirect(n)
	c := &chorus{run: r, memory: rpc.Memory}
	if err := n.Export(ctx, chorusName, actor.NewActorProcessor(c), rpc.WithState(c)); err != nil {
		return err
	}
	r.once(r.up[chorusName])
	<-ctx.Done()
	return leave(ctx, n)
}

// sing starts the voices. The channel is closed when all have ended.
func (r *Run) sing(ctx context.Context) (over chan struct{}, err error) {
	over = make(chan struct{})
	if r.opt.Setting.Calls == 0 {
		close(over)
		return over, nil
	}
	left := make(chan struct{}, voices)
	for v := range voices {
		_, err := r.rack.Run(voiceBlade, fmt.Sprint("voice", v), func(ctx context.Context, j join.Joiner, s control.Start) error {
			defer func() { left <- struct{}{} }()
			if err := r.voice(ctx, v, j); err != nil && !errors.Is(context.Cause(ctx), simrack.ErrKilled) && !r.forLoss(err) {
				r.ledger.complain("voice %d: %v", v, err)
			}
			return nil
		})
		if err != nil {
			return over, err
		}
	}
	go func() {
		for range voices {
			select {
			case <-left:
			case <-ctx.Done():
				return
			}
		}
		close(over)
	}()
	return over, nil
}

// voice makes its calls. One that fails for the loss of memory has not happened, and is made
// again; unless the service's state was lost, too.
func (r *Run) voice(ctx context.Context, v int, j join.Joiner) error {
	<-time.After(time.Duration(v)) // an instant of its own, as branches have
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName(fmt.Sprint("voice", v)), rpc.WithLogger(r.opt.Log), rpc.WithLimits(r.opt.Setting.nodeLimits(len(r.p.Clients))))
	if err != nil {
		return err
	}
	to := actor.NewActorClient(n.Client(chorusName, rpc.WithPolicy(rpc.PolicyRecover)))
	for k := uint64(1); k <= r.verses(); {
		err := r.verse(ctx, n, to, v, k)
		select {
		case <-r.void:
			return leave(ctx, n)
		default:
		}
		switch {
		case err == nil:
			r.mu.Lock()
			r.sung[v] = k
			r.mu.Unlock()
			k++
		case r.stateLost(chorusName, err):
			return leave(ctx, n)
		case !r.forLoss(err):
			return fmt.Errorf("call %d: %w", k, err)
		default:
			<-time.After(100 * time.Millisecond)
		}
	}
	for i := 0; v == 0 && i < hoard; i++ {
		if _, err := n.Memory().Alloc(ctx, 64); err != nil && !r.forLoss(err) {
			return fmt.Errorf("region %d: %w", i, err)
		}
	}
	return leave(ctx, n)
}

// verses is how many calls each voice makes.
func (r *Run) verses() uint64 { return uint64(r.opt.Setting.Calls / voices) } //nolint:gosec // not negative

// verse is one call of a voice.
func (r *Run) verse(ctx context.Context, n *rpc.Node, to *actor.ActorClient, v int, k uint64) error {
	var lent []dsm.Pointer
	if k%lendEach == 0 {
		m := n.Memory()
		p, err := m.Alloc(ctx, chorusSize)
		if err != nil {
			return err
		}
		defer func() { _ = m.Free(ctx, p) }() // which may be lost
		if _, err := m.Write(ctx, p.Add(chorusSize-8), binary.BigEndian.AppendUint64(nil, k)); err != nil {
			return err
		}
		lent = append(lent, p)
	}
	out, err := to.Act(ctx, []byte{byte(v)}, int64(k), references(lent)) //nolint:gosec // counted from 1
	if err == nil && out.Value != int64(k) {                             //nolint:gosec // counted from 1
		return fmt.Errorf("it has brought %d", out.Value)
	}
	return err
}

// auditChorus asks the service how many calls it has counted.
func (r *Run) auditChorus(ctx context.Context, n *rpc.Node) error {
	if r.opt.Setting.Calls == 0 {
		return nil
	}
	books, err := actor.NewActorClient(n.Client(chorusName, rpc.WithPolicy(rpc.PolicyRecover))).Audit(ctx)
	if r.stateLost(chorusName, err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("audit of %s: %w", chorusName, err)
	}
	for _, m := range marksOf(books.Marks) {
		if m.Value != r.sung[m.Op] {
			r.ledger.complain("voice %d has made %d calls, the service counts %d", m.Op, r.sung[m.Op], m.Value)
		}
	}
	return nil
}
