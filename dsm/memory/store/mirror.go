package store

import (
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A store is one of its machine's copies. The copies get the same changes, each in an
// order of its own, and stay equal because of what clients and Gatekeeper promise:
// changes that overlap follow each other, and commands reach every copy.

// Become makes the store a copy of its machine, in a new mirror epoch. A store that was
// another copy before forgets everything. One that is being filled cannot become the copy
// that it will be: that is Stale, and so is an epoch below the present one. A new epoch
// ends the filling of another copy.
func (s *Store) Become(m control.Mirror) error {
	if m.Members < 1 || m.Members > dsmpacket.MaxMembers || m.Copy >= m.Members {
		return fault.New(fault.BadRequest, "mirror", "copy %d of %d", m.Copy, m.Members)
	}
	if m.Epoch < s.mirror.Epoch {
		return fault.New(fault.Stale, "mirror", "epoch %d is older than this copy's epoch %d", m.Epoch, s.mirror.Epoch)
	}
	switch {
	case m.Incarnation != s.mirror.Incarnation:
		s.Forget()
	case s.filled != nil:
		return fault.New(fault.Stale, "mirror", "copy %d has not been filled", m.Incarnation)
	case m.Epoch != s.mirror.Epoch:
		s.diverged = 0
		s.EndFill()
		for _, c := range s.clients.byNode {
			c.unsettled = control.Unsettled{} // the machine has other copies, which are equal
		}
	}
	s.lost = m.Lost
	s.mirror = dsmpacket.Mirror{Epoch: m.Epoch, Incarnation: m.Incarnation, Copy: m.Copy, Members: m.Members}
	return nil
}

// Mirror says which copy of its machine the store is.
func (s *Store) Mirror() dsmpacket.Mirror { return s.mirror }

// Diverged is how often clients have said in this mirror epoch that the copies disagree
// about a request.
func (s *Store) Diverged() uint64 { return s.diverged }

// mirrored reports whether the machine has another copy.
func (s *Store) mirrored() bool { return s.mirror.Members > 1 }
