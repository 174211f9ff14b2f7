package dsmclient

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/pool"
	"github.com/bifrost-rack/bifrost/dsm/internal/transport"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// regionCache is the shell around a pool.Pool. What it has to send, frees and allocations
// that nobody waits for, goes out by the link; what comes back is read by whoever reads
// next. A nil regionCache keeps nothing. Its mutex is taken after the link's.
type regionCache struct {
	link *link

	mu       sync.Mutex
	pool     *pool.Pool
	deferred []Pointer     // to be freed
	flush    time.Duration // when, if they are fewer than deferAt
	timer    *time.Timer
	alarm    time.Duration // when timer fires; transport.Never when it does not
	unheard  bool          // something was sent since the timer last fired
	over     bool
}

const (
	// deferAt is how many deferred frees are sent at once: the Gatekeeper is woken
	// once for all of them. Those that are fewer go after deferTime, or at once if the
	// client may keep less than scarce bytes idle: somebody else may be charged for them.
	deferAt   = 16
	deferTime = 20 * time.Millisecond
	scarce    = 64 << 10
	// hearTime is after how long answers are read that nobody waits for: before they
	// count as lost.
	hearTime = 5 * time.Millisecond
	// keepPart is which part of the rack's free memory, one in so many bytes, one
	// client may keep idle.
	keepPart = 16
)

func newRegionCache(l *link) *regionCache {
	k := &regionCache{link: l, pool: pool.New(), alarm: transport.Never}
	k.timer = time.AfterFunc(time.Hour, k.tick)
	k.timer.Stop()
	return k
}

// take returns a region of the class that has been freed before, if there is one.
func (rc *regionCache) take(class uint8, rack *control.Rack) (Pointer, bool) {
	if rc == nil {
		return Pointer{}, false
	}
	rc.mu.Lock()
	p, ok := rc.pool.Take(rc.link.now(), class, func(machine uint8) bool { return offers(rack, machine) })
	n := 0
	if !rc.over {
		n = rc.pool.Ahead(class, keepable(rack))
	}
	rc.mu.Unlock()
	if n > 0 {
		rc.ahead(class, n, rack)
	}
	return p, ok
}

// offers reports whether a memory blade is in service.
func offers(rack *control.Rack, machine uint8) bool {
	for i := range rack.Memories {
		if rack.Memories[i].Machine == machine {
			return true
		}
	}
	return false
}

// keepable is how many bytes the client may keep idle.
func keepable(rack *control.Rack) (n uint64) {
	for i := range rack.Memories {
		n += rack.Memories[i].Free / keepPart
	}
	return n
}

// coming is an allocation that nobody waits for.
type coming struct {
	transport.Transfer
	cache *regionCache
	class uint8
}

// ended implements waiter; the link's mutex is held.
func (c *coming) ended() {
	k := c.cache
	k.link.slots.done(c.Pointer.Machine(), c.Pointer.ID(), c.Slot)
	k.mu.Lock()
	defer k.mu.Unlock()
	if c.Status == fault.OK {
		k.pool.Came(k.link.now(), dsmpacket.Region{Base: c.Pointer, Class: c.class})
		k.arm()
		return
	}
	k.pool.Failed(c.class)
	k.link.account.drop(c.Pointer)
}

// ahead begins n allocations, all on one machine, so that one is woken.
func (rc *regionCache) ahead(class uint8, n int, rack *control.Rack) {
	l := rc.link
	transfers := make([]*transport.Transfer, 0, n)
	machine := l.candidates(rack.Memories)[0]
	ids := l.slots.takeNow(machine, n)
	for _, id := range ids {
		c := &coming{cache: rc, class: class}
		c.Op, c.Pointer, c.Size, c.Tag = dsmpacket.OpAlloc, dsmpacket.Make(rack.DSMPrefix, machine, id), 1<<class, c
		transfers = append(transfers, &c.Transfer)
		l.account.add(c.Pointer)
	}
	failed := n - len(ids)
	if len(ids) > 0 && !l.background(transfers...) {
		failed = n
	}
	if failed < n {
		rc.keepReading()
	}
	if failed == 0 {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	for range failed {
		rc.pool.Failed(class)
	}
}

// keepReading sees to it that answers are read if nobody else does.
func (rc *regionCache) keepReading() {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.unheard = true
	rc.arm()
}

// fresh takes note of a new region.
func (rc *regionCache) fresh(r dsmpacket.Region) {
	if rc == nil {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.pool.Fresh(r)
}

// free judges a free; see pool.Verdict. What an execution frees is for its commit to
// free, and so never kept.
func (rc *regionCache) free(p Pointer, scoped bool) pool.Verdict {
	if rc == nil {
		return pool.Unknown
	}
	rack := rc.link.rack()
	room := keepable(&rack)
	rc.mu.Lock()
	if rc.over {
		rc.mu.Unlock()
		return pool.Unknown
	}
	v := pool.Twice
	if !rc.gaveBack(p) {
		if scoped {
			rc.pool.Forget(p)
		}
		v = rc.pool.Free(rc.link.now(), p, room)
	}
	var doomed []Pointer
	if v == pool.Deferred {
		if rc.put(p.Bare()); len(rc.deferred) >= deferAt || room < scarce {
			doomed, rc.deferred, rc.unheard = rc.deferred, nil, true
		}
	}
	rc.arm()
	rc.mu.Unlock()
	rc.give(doomed)
	return v
}

// gaveBack reports whether a pointer's region has been freed, and waits to be used again
// or to be freed indeed. The caller holds the lock.
func (rc *regionCache) gaveBack(p Pointer) bool {
	r := rc.pool.Find(p)
	return r != nil && r.Idle() || slices.Contains(rc.deferred, p.Bare())
}

// suspect takes in how an operation on a region of the node's own has failed on a
// machine. If it says that the region is not there, the machine may have lost others,
// too, and none is to be used again. The caller holds the lock.
func (rc *regionCache) suspect(machine uint8, code fault.Code) {
	switch code {
	case fault.NotFound, fault.Unavailable, fault.PermissionDenied:
		rc.put(rc.pool.Recall(machine)...)
		rc.arm()
	default:
	}
}

// put defers frees. The caller holds the lock.
func (rc *regionCache) put(doomed ...Pointer) {
	if len(rc.deferred) == 0 {
		rc.flush = rc.link.now() + deferTime
	}
	rc.deferred = append(rc.deferred, doomed...)
}

// arm sets the timer. The caller holds the lock.
func (rc *regionCache) arm() {
	now := rc.link.now()
	due, ok := rc.pool.Due()
	if !ok {
		due = transport.Never
	}
	if len(rc.deferred) > 0 {
		due = min(due, rc.flush)
	}
	if rc.unheard {
		due = min(due, now+hearTime)
	}
	if due < rc.alarm && !rc.over {
		rc.alarm = due
		rc.timer.Reset(max(0, due-now))
	}
}

// tick is the timer's.
func (rc *regionCache) tick() {
	rc.mu.Lock()
	rc.alarm = transport.Never
	now := rc.link.now()
	doomed := rc.pool.Trim(now, false)
	if len(rc.deferred) > 0 && rc.flush <= now {
		doomed, rc.deferred = append(rc.deferred, doomed...), nil
	}
	rc.unheard = false
	if rc.over {
		doomed = nil
	}
	rc.arm()
	rc.mu.Unlock()
	rc.give(doomed)
	rc.link.standIn()
}

// give frees regions, for which nobody waits.
func (rc *regionCache) give(doomed []Pointer) {
	if len(doomed) == 0 {
		return
	}
	transfers := make([]*transport.Transfer, len(doomed))
	for i, p := range doomed {
		f := &leaving{link: rc.link, cache: rc}
		f.Op, f.Pointer, f.Tag = dsmpacket.OpFree, p, f
		transfers[i] = &f.Transfer
	}
	rc.link.background(transfers...)
}

// later has a region freed again that is lent now.
func (rc *regionCache) later(p Pointer) {
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.put(p)
	rc.arm()
}

// drain takes out everything that is idle: it is to be freed.
func (rc *regionCache) drain() []Pointer {
	if rc == nil {
		return nil
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	doomed := slices.Concat(rc.deferred, rc.pool.Trim(0, true))
	rc.deferred = nil
	return doomed
}

// close ends the cache: the node's end frees what it has.
func (rc *regionCache) close() {
	if rc == nil {
		return
	}
	rc.mu.Lock()
	defer rc.mu.Unlock()
	rc.over = true
	rc.timer.Stop()
}

// use is an operation under way on a region that the cache knows. The zero use is one
// on any other.
type use struct {
	cache  *regionCache
	region *pool.Region
	write  pool.Span
	turn   bool // it has the region's turn: it writes over what is stale
}

// begin begins a read or write of n bytes at p. What an earlier user of the region has
// left there is zeroed first, unless it is written over. A region that has been freed
// is refused, as the switch refuses one that is gone.
func (rc *regionCache) begin(ctx context.Context, op dsmpacket.Op, p Pointer, n int) (use, error) {
	if rc == nil {
		return use{}, nil
	}
	rc.mu.Lock()
	r := rc.pool.Find(p)
	if r == nil {
		rc.mu.Unlock()
		return use{}, nil
	}
	if r.Idle() {
		rc.mu.Unlock()
		return use{}, fault.New(fault.PermissionDenied, op.String(), "%s has been freed", p)
	}
	u, at := use{cache: rc, region: r}, r.Span(p, n)
	if op == dsmpacket.OpWrite {
		u.write = at
	}
	r.Enter(u.write)
	stale := r.Stale.Overlaps(at)
	rc.mu.Unlock()
	if !stale {
		return u, nil
	}
	return u, u.clean(ctx, at)
}

// clean makes what is stale zero before bytes at are used, or sees to it that it is
// written over. If that fails, the use has ended.
func (u *use) clean(ctx context.Context, at pool.Span) error {
	if err := u.takeTurn(ctx); err != nil {
		u.end(err)
		return err
	}
	stale := u.stale()
	if !stale.Overlaps(at) {
		u.giveTurn()
		return nil
	}
	if _, ok := stale.Without(u.write); ok && u.write.Overlaps(stale) {
		return nil // the turn is given when it is written
	}
	err := u.cache.link.zero(ctx, u.region.Base.Add(int64(stale.From)), stale.To-stale.From)
	if err == nil {
		u.cache.mu.Lock()
		u.region.Stale = pool.Span{}
		u.cache.mu.Unlock()
	}
	u.giveTurn()
	if err != nil {
		u.end(err)
	}
	return err
}

func (u *use) stale() pool.Span {
	u.cache.mu.Lock()
	defer u.cache.mu.Unlock()
	return u.region.Stale
}

// takeTurn waits until nobody else changes what is stale.
func (u *use) takeTurn(ctx context.Context) error {
	u.cache.mu.Lock()
	if u.region.Turn == nil {
		u.region.Turn = make(chan struct{}, 1)
		u.region.Turn <- struct{}{}
	}
	turn := u.region.Turn
	u.cache.mu.Unlock()
	select {
	case <-turn:
		u.turn = true
		return nil
	case <-ctx.Done():
		return fault.FromContext("zero a region", ctx.Err())
	}
}

func (u *use) giveTurn() {
	u.turn = false
	u.region.Turn <- struct{}{}
}

// end ends the use, with the error of the operation.
func (u *use) end(err error) {
	k := u.cache
	if k == nil {
		return
	}
	k.mu.Lock()
	u.region.Leave()
	if u.turn && err == nil {
		u.region.Stale, _ = u.region.Stale.Without(u.write)
	}
	if err != nil && !u.region.Lent() {
		k.suspect(u.region.Base.Machine(), fault.CodeOf(err))
	}
	k.mu.Unlock()
	if u.turn {
		u.giveTurn()
	}
}

// zeroPart is how many bytes are zeroed by one write.
const zeroPart = 1 << 20

// zero writes n zeros at p.
func (l *link) zero(ctx context.Context, p Pointer, n uint64) error {
	c := Client{link: l}
	zeros := make([]byte, min(n, zeroPart))
	for done := uint64(0); done < n; {
		part := zeros[:min(n-done, zeroPart)]
		if _, err := c.carryOut(ctx, dsmpacket.OpWrite, p.Add(int64(done)), part, transport.Scope{}); err != nil {
			return err
		}
		done += uint64(len(part))
	}
	return nil
}
