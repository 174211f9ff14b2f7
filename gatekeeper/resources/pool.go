package resources

// pool hands out small numbers from 1 on. A number that was given back is used
// again as late as possible, so that whoever still remembers its last holder is
// unlikely to meet the next one under it.
type pool struct {
	max, last uint16
	used      map[uint16]bool
}

func newPool(limit, last uint16) pool {
	return pool{max: limit, last: last, used: map[uint16]bool{}}
}

// take returns a number that is not in use, and false if there is none.
func (p *pool) take() (uint16, bool) {
	if len(p.used) >= int(p.max) {
		return 0, false
	}
	for {
		p.last = p.last%p.max + 1
		if !p.used[p.last] {
			p.used[p.last] = true
			return p.last, true
		}
	}
}

// claim takes a given number, and reports whether it was free.
func (p *pool) claim(n uint16) bool {
	if n == 0 || n > p.max || p.used[n] {
		return false
	}
	p.used[n] = true
	return true
}

func (p *pool) giveBack(n uint16) { delete(p.used, n) }
