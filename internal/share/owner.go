package share

import "fmt"

// Owner is who is charged for what nodes use: a user of a blade. Its zero value stands for nobody known.
type Owner struct {
	// Port is the switch's port at which the blade is.
	Port uint32 `json:"port,omitempty"`
	// User is the Unix user that the program runs as, as the blade's daemon says.
	User uint32 `json:"user,omitempty"`
}

// String names the owner for people and as the label of metrics.
func (o Owner) String() string { return fmt.Sprintf("port %d user %d", o.Port, o.User) }

// Label is String as the label of a metric, in which the zero Owner stands for all owners that are not told apart.
func (o Owner) Label() string {
	if o == (Owner{}) {
		return "other"
	}
	return o.String()
}

// ByOwner collects what Refusals.Each tells. Owners beyond MaxOwners are counted together, under the zero Owner.
func ByOwner(each func(func(o Owner, n uint64)) (others uint64)) map[Owner]uint64 {
	all := map[Owner]uint64{}
	if others := each(func(o Owner, n uint64) { all[o] = n }); others > 0 {
		all[Owner{}] += others
	}
	return all
}

// RoomOf is how many units a user may take more who holds so many, of those that its blade holds, of those that are used of a
// total.
func RoomOf(user, blade, used, total uint64) uint64 {
	return Room(user, blade, blade+Room(blade, used, total))
}

// Owners is a total that blades share, and the users of a blade among themselves. Its methods must not be
// called concurrently.
type Owners struct {
	ports    *Pool[uint32]
	users    map[Owner]uint64
	refusals Refusals[Owner]
}

// NewOwners returns a total of so many units, below 1<<60, of which nobody holds any.
func NewOwners(total uint64) *Owners {
	return &Owners{ports: New[uint32](total), users: map[Owner]uint64{}}
}

// Used is how many units all owners hold.
func (s *Owners) Used() uint64 { return s.ports.used }

// Total is how many units there are.
func (s *Owners) Total() uint64 { return s.ports.total }

// Held is how many units an owner holds.
func (s *Owners) Held(o Owner) uint64 { return s.users[o] }

// Room is how many units an owner may take now.
func (s *Owners) Room(o Owner) uint64 {
	return RoomOf(s.users[o], s.ports.Held(o.Port), s.ports.used, s.ports.total)
}

// Take takes units for an owner, or counts a refusal and reports false.
func (s *Owners) Take(o Owner, n uint64) bool {
	if n > s.Room(o) {
		s.refusals.Add(o)
		return false
	}
	s.Force(o, n)
	return true
}

// Force takes units for an owner whether there is room or not: of what exists already.
func (s *Owners) Force(o Owner, n uint64) {
	s.ports.Force(o.Port, n)
	if n > 0 {
		s.users[o] += n
	}
}

// Release gives units of an owner back. It panics if the owner does not hold them.
func (s *Owners) Release(o Owner, n uint64) {
	held := s.users[o]
	if n > held {
		panic(fmt.Sprintf("share: %d units released of %s, which holds %d", n, o, held))
	}
	s.ports.Release(o.Port, n)
	if s.users[o] = held - n; held == n {
		delete(s.users, o)
	}
}

// Refuse counts a refusal that is the caller's own decision.
func (s *Owners) Refuse(o Owner) { s.refusals.Add(o) }

// Refusals counts what was refused to each of the owners.
func (s *Owners) Refusals() *Refusals[Owner] { return &s.refusals }
