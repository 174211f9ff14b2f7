package store

import "github.com/bifrost-rack/bifrost/dsm/packet"

// space hands out region addresses. Each is aligned to its region's size and
// handed out once, for ever. Addresses are cut from superblocks by halving, so
// small and large regions side by side waste none: fresh holds, by size class,
// the halves that nobody has had yet.
type space struct {
	next  uint64 // start of the next superblock
	fresh [packet.MaxClass + 1][]uint64
}

// newSpace returns a space whose addresses all lie at or above epoch.
func newSpace(epoch uint64) space {
	return space{next: alignUp(epoch, superblock)}
}

// take returns an address for a region of the class; false when the 64 bits
// are used up.
func (s *space) take(class uint8) (uint64, bool) {
	c := class
	for c <= packet.MaxClass && len(s.fresh[c]) == 0 {
		c++
	}
	var addr uint64
	if c <= packet.MaxClass {
		last := len(s.fresh[c]) - 1
		addr, s.fresh[c] = s.fresh[c][last], s.fresh[c][:last]
	} else {
		c = max(class, superblock)
		addr = alignUp(s.next, c)
		if addr < s.next || addr+1<<c < addr {
			return 0, false
		}
		s.next = addr + 1<<c
	}
	for ; c > class; c-- {
		s.fresh[c-1] = append(s.fresh[c-1], addr+1<<(c-1))
	}
	return addr, true
}

// alignUp rounds addr up to a multiple of 2^class; it wraps past the last one.
func alignUp(addr uint64, class uint8) uint64 {
	mask := uint64(1)<<class - 1
	return (addr + mask) &^ mask
}
