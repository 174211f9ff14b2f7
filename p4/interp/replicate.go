package interp

import (
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// maxSession is the largest clone session, as in bmv2; an odd one is taken
// modulo one more.
const maxSession = 1<<15 - 1

// session is a clone session.
type session struct {
	replicas []datapath.Replica
	truncate int // the copies' largest length; 0 for none
}

// Multicast implements datapath.Datapath.
func (x *Executor) Multicast(id uint32, replicas []datapath.Replica) error {
	if id == 0 || id > 1<<16-1 {
		return fmt.Errorf("multicast group %d: %w", id, datapath.ErrUnsupported)
	}
	if !x.c.prog.Std.MulticastGroup.Valid() {
		return fmt.Errorf("multicast group %d: %w: the program has no mcast_grp", id, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	if len(replicas) == 0 {
		delete(x.groups, id)
		return nil
	}
	x.groups[id] = slices.Clone(replicas)
	return nil
}

// Clone implements datapath.Datapath.
func (x *Executor) Clone(id uint32, replicas []datapath.Replica, truncate int) error {
	if id > maxSession {
		return fmt.Errorf("clone session %d: %w", id, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	if len(replicas) == 0 {
		delete(x.sessions, id)
		return nil
	}
	x.sessions[id] = &session{slices.Clone(replicas), max(truncate, 0)}
	return nil
}
