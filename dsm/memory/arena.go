package memory

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// arena is a machine's memory: one anonymous mapping of its whole capacity, of
// which the kernel backs only the pages that have been written to.
type arena struct{ bytes []byte }

func newArena(capacity uint64) (*arena, error) {
	if capacity == 0 || capacity > 1<<46 {
		return nil, fmt.Errorf("capacity of %d bytes: want 1 to 2^46", capacity)
	}
	b, err := unix.Mmap(-1, 0, int(capacity), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", capacity, err)
	}
	return &arena{bytes: b}, nil
}

// discard gives whole pages back to the kernel, which gives zeroed ones on the
// next touch.
func (a *arena) discard(b []byte) {
	if unix.Madvise(b, unix.MADV_DONTNEED) != nil {
		clear(b)
	}
}

// close unmaps the arena; nothing may refer to it any more.
func (a *arena) close() { _ = unix.Munmap(a.bytes) }
