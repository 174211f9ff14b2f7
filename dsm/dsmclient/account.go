package dsmclient

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// account is which regions the node owns, and how often each region is lent by it, as far as the node knows (docs/rights.md, section 4). Its
// mutex is taken after all others.
type account struct {
	mu sync.Mutex
	// owned is by slot, of which the rack has so many, and each has one region at most: an account does not grow beyond that.
	owned   map[uint32]Pointer
	handing map[Pointer]bool   // those of them that an answer hands over, by base, until it is kept
	lent    map[Pointer]int    // by base: in how many calls that are not over
	noted   map[uint32]Pointer // the last region in each slot that the node has owned since Watch; nil unless that is noted
}

// slotOf is the slot of a pointer's region.
func slotOf(p Pointer) uint32 { return p.ID().Slot() }

// add notes that the node owns regions. It reports whether the last one is new.
func (a *account) add(ptrs ...Pointer) (news bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ptrs {
		if a.owned == nil {
			a.owned = map[uint32]Pointer{}
		}
		if a.noted != nil && a.noted[slotOf(p)].ID().Generation() < p.ID().Generation() {
			a.noted[slotOf(p)] = p.Base()
		}
		was := a.owned[slotOf(p)]
		if news = was != p.Base() && was.ID().Generation() <= p.ID().Generation(); news {
			a.owned[slotOf(p)] = p.Base()
		}
	}
	return news
}

// drop notes that the node does not own regions any more.
func (a *account) drop(ptrs ...Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ptrs {
		delete(a.handing, p.Base())
		if a.owned[slotOf(p)] == p.Base() {
			delete(a.owned, slotOf(p))
		}
	}
}

// hand notes that an answer is to hand regions over, if the node owns all of them and no other answer does. Else nothing changes, and hand returns a pointer
// to one of which that is not so.
func (a *account) hand(ptrs []Pointer) (foreign Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if i := slices.IndexFunc(ptrs, func(p Pointer) bool { return !a.has(p) }); i >= 0 {
		return ptrs[i]
	}
	for _, p := range ptrs {
		if a.handing == nil {
			a.handing = map[Pointer]bool{}
		}
		a.handing[p.Base()] = true
	}
	return Pointer{}
}

// keep takes that back.
func (a *account) keep(ptrs []Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ptrs {
		delete(a.handing, p.Base())
	}
}

// has reports whether the node owns a region, and does not hand it over. The caller holds the mutex.
func (a *account) has(p Pointer) bool { return a.owned[slotOf(p)] == p.Base() && !a.handing[p.Base()] }

// owns reports whether the node owns a pointer's region, and does not hand it over.
func (a *account) owns(p Pointer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.has(p)
}

// all lists what the node owns.
func (a *account) all() []Pointer {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]Pointer, 0, len(a.owned))
	for _, p := range a.owned {
		all = append(all, p)
	}
	slices.SortFunc(all, func(p, q Pointer) int { return cmp.Compare(p.ID(), q.ID()) })
	return all
}

// lend notes that a call lends regions.
func (a *account) lend(ptrs ...Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ptrs {
		if a.lent == nil {
			a.lent = map[Pointer]int{}
		}
		a.lent[p.Base()]++
	}
}

// back notes that a call is over which lent regions.
func (a *account) back(ptrs ...Pointer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range ptrs {
		if a.lent[p.Base()]--; a.lent[p.Base()] <= 0 {
			delete(a.lent, p.Base())
		}
	}
}

// lends reports whether the node lends a pointer's region by a call that is not over.
func (a *account) lends(p Pointer) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.lent[p.Base()] > 0
}

// Account lists the regions that the node owns, by the pointers to their first bytes: what it has allocated, and what it has received (Gained,
// Received), without what it has freed or given away (Gave). Allocations and frees under way count as owned, and what answers are to hand over (HandOver).
func (c *Client) Account() []Pointer { return c.link.account.all() }

// Watch begins to note what the node owns. What is returned ends that, and returns those of some regions, by the pointers to their first bytes, that the node has not
// owned since, by its account, and that have no successor which it has. There is one such note at a time.
func (c *Client) Watch() (end func(all []Pointer) (never []Pointer)) {
	a := &c.link.account
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.noted = maps.Clone(a.owned); a.noted == nil {
		a.noted = map[uint32]Pointer{}
	}
	return func(all []Pointer) []Pointer {
		a.mu.Lock()
		defer a.mu.Unlock()
		noted := a.noted
		a.noted = nil
		return slices.DeleteFunc(slices.Clone(all), func(p Pointer) bool { return noted[slotOf(p)].ID().Generation() >= p.ID().Generation() })
	}
}

// Owns reports whether the node owns a region, by its account, and does not hand it over.
func (c *Client) Owns(p Pointer) bool { return c.link.account.owns(p) }

// Received tells the client that the node owns regions which somebody has handed over to it, or which its former incarnation had.
func (c *Client) Received(ptrs ...Pointer) { c.link.account.add(ptrs...) }

// Gave tells the client that the node has handed regions over: it does not own them any more.
func (c *Client) Gave(ptrs ...Pointer) {
	c.link.account.drop(ptrs...)
	c.link.cache.note(ptrs, (*regionCache).gone)
}

// PassOn makes regions ready for what an execution passes on, like Lend, and for one-ways. They stay the node's: a call lends them, and a one-way gives
// them away when it leaves (Gave).
func (c *Client) PassOn(ctx context.Context, ptrs ...Pointer) error {
	if err := c.ready(ctx, ptrs); err != nil {
		return err
	}
	c.link.cache.note(ptrs, (*regionCache).gone)
	return nil
}

// Lends tells the client that a call lends regions which nothing has made ready: an execution's, or one of a former incarnation that is not over. Returned
// ends that.
func (c *Client) Lends(ptrs ...Pointer) { c.link.account.lend(ptrs...) }

// A request about a region that is lent is turned around by the switch (docs/rights.md, section 2). If the program itself lends the region, by a call
// that is not over, it would wait for itself: the operation fails. Else it is tried again, as long as its context lasts.

// lentPauses are those between two tries.
var lentPauses = pace.Pauses{First: time.Millisecond, Most: 100 * time.Millisecond}

func errLent(op dsmpacket.Op, p Pointer) error {
	return fault.New(fault.PermissionDenied, op.String(), "%s is lent by a call of this program that is not over", p)
}

// rest waits until an operation is to be tried again, and returns how long that took.
func (l *link) rest(ctx context.Context, op dsmpacket.Op, last time.Duration, pauses pace.Pauses) (time.Duration, error) {
	pause := pauses.Next(last)
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return pause, nil
	case <-ctx.Done():
		return 0, fault.FromContext(op.String(), ctx.Err())
	case <-l.over:
		return 0, l.closed(op)
	}
}

// leaving is the free of a region. What became of it is noted whether somebody waits for that or not.
type leaving struct {
	operation
	link  *link
	cache *regionCache // has it tried again if the region is lent; nil if that is for whoever waits
}

// leaving returns the free of a region, to be begun.
func (l *link) leaving(p Pointer) *leaving {
	f, ok := l.frees.Get().(*leaving)
	if !ok {
		f = &leaving{operation: operation{done: make(chan struct{}, 1)}, link: l}
	}
	f.Op, f.Pointer, f.Tag = dsmpacket.OpFree, p, f
	return f
}

// over takes a free back whose outcome has been read.
func (f *leaving) over() {
	f.Transfer = transport.Transfer{}
	f.link.frees.Put(f)
}

// gone reports whether the region is there no more.
func (f *leaving) gone() bool { return f.Status == fault.OK || f.Status == fault.NotFound || f.Lost }

// ended implements waiter; the link's mutex is held.
func (f *leaving) ended() {
	if f.gone() {
		f.link.account.drop(f.Pointer)
	}
	if f.cache == nil {
		f.operation.ended()
	} else if f.Lent || f.Status == fault.Unavailable && !f.Lost { // its machine is away, and may come back with it
		f.cache.later(f.Pointer)
	}
}

// wait waits for the outcome. If the context ends, the free goes on without its caller.
func (f *leaving) wait(ctx context.Context) error {
	if f.link.await(ctx, f.done, nil) {
		f.sending.Wait()
		return nil
	}
	f.link.standIn()
	if ctx.Err() != nil {
		return failure(ctx, dsmpacket.OpFree, f.Pointer, fault.FromContext("", ctx.Err()).Code, true)
	}
	return f.link.closed(dsmpacket.OpFree)
}

// closed is why nothing is done any more.
func (l *link) closed(op dsmpacket.Op) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fault.New(cmp.Or(l.ended, fault.Canceled), op.String(), "the client is closed")
}

// freeNow frees a region by its machine's word.
func (c *Client) freeNow(ctx context.Context, p Pointer) error {
	l := c.link
	for pause := time.Duration(0); ; {
		f := l.leaving(p)
		if !l.background(&f.Transfer) {
			return l.closed(dsmpacket.OpFree)
		}
		if err := f.wait(ctx); err != nil {
			return err
		}
		status, local, lent := f.Status, f.Local, f.Lent
		f.over()
		switch {
		case status == fault.OK:
			return nil
		case !lent:
			return failure(ctx, dsmpacket.OpFree, p, status, local)
		case l.account.lends(p):
			return errLent(dsmpacket.OpFree, p)
		}
		var err error
		if pause, err = l.rest(ctx, dsmpacket.OpFree, pause, lentPauses); err != nil {
			return err
		}
	}
}

// owedPauses are those between two tries to free what is owed.
var owedPauses = pace.Pauses{First: time.Millisecond, Most: time.Second}

// FreeOwed frees regions that the node has said it would free, by the pointers to their first bytes, whatever this client or one before it has done with
// them. It returns when none of them is the node's any more: it has been freed, or lost with its machine, or is somebody else's. It waits for what is lent, and for
// machines that are away, as long as ctx lasts. All of it may be repeated. An error says that some may be the node's still.
func (c *Client) FreeOwed(ctx context.Context, ptrs ...Pointer) error {
	l := c.link
	l.cache.disown(ptrs)
	left := slices.Clone(ptrs)
	var failed error
	for pause := time.Duration(0); ; {
		frees := make([]*leaving, 0, len(left))
		transfers := make([]*transport.Transfer, 0, len(left))
		for _, p := range left {
			if err := l.check(ctx, dsmpacket.OpFree, p); err != nil {
				return err
			}
			f := l.leaving(p)
			frees, transfers = append(frees, f), append(transfers, &f.Transfer)
		}
		if !l.background(transfers...) {
			return l.closed(dsmpacket.OpFree)
		}
		left = left[:0]
		for _, f := range frees {
			if err := f.wait(ctx); err != nil {
				return err
			}
			switch p := f.Pointer; {
			case f.gone():
			case f.Status == fault.PermissionDenied:
				l.account.drop(p)
			case f.Status == fault.Overloaded, f.Status == fault.Unavailable:
				left = append(left, p)
			default:
				failed = failure(ctx, dsmpacket.OpFree, p, f.Status, f.Local)
			}
		}
		if len(left) == 0 {
			return failed
		}
		var err error
		if pause, err = l.rest(ctx, dsmpacket.OpFree, pause, owedPauses); err != nil {
			return err
		}
	}
}

// disown has the cache forget regions that are about to be freed.
func (rc *regionCache) disown(ptrs []Pointer) {
	if rc == nil {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for _, p := range ptrs {
		rc.pool.Disown(p)
		rc.deferred = slices.DeleteFunc(rc.deferred, func(o Pointer) bool { return o == p.Bare() })
	}
}
