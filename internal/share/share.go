// Package share divides what many owners use, so that none takes it all. It does no I/O, starts no
// goroutine and takes no lock.
//
// Two rules bound what one owner may hold; the one that allows more counts:
//
//   - Eight times what is free beyond the reserve. The reserve is an eighth of the total. So one owner
//     alone may hold seven ninths of the total, two may hold seven seventeenths each, and so on: each
//     newcomer leaves some.
//   - An eighth of what is free, the reserve included. So whoever has nothing yet always gets
//     something, as long as anything is free.
//
// Both are rounded up. A total of less than eight has no reserve.
//
// An Owner is a blade's port and a Unix user there. A blade with many users is bounded as one owner
// among the blades (Owners), and its users share what the blade may have: root of a blade may be as
// many users as it likes.
package share

import "fmt"

// part is which part of a total is the reserve, which part of what is free a newcomer may have, and how
// many times what is free an owner may hold.
const part = 8

// most bounds totals, so that part times one of them does not overflow.
const most = 1 << 60

// Room is how many units an owner that holds so many may take more, if all owners together use so many of
// a total.
func Room(held, used, total uint64) uint64 {
	total = min(total, most)
	free := total - min(total, used)
	spare := free - min(free, total/part)
	var room uint64
	if times := part * spare; times > held {
		room = up(times-held, part+1)
	}
	if first := up(free, part); first > held {
		room = max(room, first-held)
	}
	return room
}

// up divides and rounds up.
func up(n, by uint64) uint64 { return n/by + min(1, n%by) }

// Pool is a total and who holds what of it. Its methods must not be called concurrently.
type Pool[O comparable] struct {
	total, used uint64
	held        map[O]uint64
	refusals    Refusals[O]
}

// New returns a pool of so many units, below 1<<60, of which nobody holds any.
func New[O comparable](total uint64) *Pool[O] { return &Pool[O]{total: total, held: map[O]uint64{}} }

// Used is how many units all owners hold.
func (p *Pool[O]) Used() uint64 { return p.used }

// Total is how many units there are.
func (p *Pool[O]) Total() uint64 { return p.total }

// Held is how many units an owner holds.
func (p *Pool[O]) Held(o O) uint64 { return p.held[o] }

// Room is how many units an owner may take now.
func (p *Pool[O]) Room(o O) uint64 { return Room(p.held[o], p.used, p.total) }

// Take takes units for an owner, all or none, and reports whether it has. What is refused is counted.
func (p *Pool[O]) Take(o O, n uint64) bool {
	if n > p.Room(o) {
		p.refusals.Add(o)
		return false
	}
	p.Force(o, n)
	return true
}

// Force takes units for an owner whether there is room or not: of what exists already.
func (p *Pool[O]) Force(o O, n uint64) {
	if n > 0 {
		p.held[o] += n
		p.used += n
	}
}

// Release gives units of an owner back. It panics if the owner does not hold them.
func (p *Pool[O]) Release(o O, n uint64) {
	held := p.held[o]
	if n > held {
		panic(fmt.Sprintf("share: %d units released of an owner that holds %d", n, held))
	}
	p.used -= n
	if p.held[o] = held - n; held == n {
		delete(p.held, o)
	}
}

// Refusals counts what was refused to each of the owners.
func (p *Pool[O]) Refusals() *Refusals[O] { return &p.refusals }

// MaxOwners is of how many owners Refusals keeps figures; those of further ones are counted together.
const MaxOwners = 256

// Refusals counts refusals by owner, in bounded space. The zero value is ready. Its methods must not be
// called concurrently.
type Refusals[O comparable] struct {
	of     map[O]uint64
	others uint64
}

// Add counts a refusal.
func (r *Refusals[O]) Add(o O) {
	if r.of == nil {
		r.of = map[O]uint64{}
	}
	if _, known := r.of[o]; known || len(r.of) < MaxOwners {
		r.of[o]++
	} else {
		r.others++
	}
}

// Each tells each owner's figure, in any order, and returns that of the owners beyond MaxOwners.
func (r *Refusals[O]) Each(f func(o O, n uint64)) (others uint64) {
	for o, n := range r.of {
		f(o, n)
	}
	return r.others
}
