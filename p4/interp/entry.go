package interp

import (
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// entry is an entry of a table, or its default. What a packet only reads is
// written under the executor's lock.
type entry struct {
	want want
	plan *keyPlan
	// rank decides between entries that match the same key, the highest first;
	// among equals seq does, the lowest first.
	rank int64
	seq  uint64

	// Exactly one of these is what the entry does; in a default entry all may
	// be nil.
	do     *bound
	member *member
	group  *group

	next *node // after do; of members and groups the table decides

	tally tally
	meter *meterCell

	// source is the entry as the control plane gave it.
	source  datapath.Entry
	timeout time.Duration
	hit     atomic.Int64 // Unix nanoseconds of the last packet
	told    int64        // Unix nanoseconds of the last notification; owned by the sweeper
}

// before tells whether e wins over o.
func (e *entry) before(o *entry) bool {
	if e.rank != o.rank {
		return e.rank > o.rank
	}
	return e.seq < o.seq
}

// matches tells whether a key lies in the entry's ranges. Fields that share a
// word are compared one by one by the table's plan.
func (e *entry) matches(key []uint64) bool { return e.plan.within(key, &e.want) }
