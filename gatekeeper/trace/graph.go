package trace

import (
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Edge is who calls whom.
type Edge struct {
	Caller, Callee netip.Addr
	// From is the service of the call on whose behalf the caller makes its calls; "" if that call is not kept, or there is none.
	From string
	// To is the service that is called.
	To string
}

// Tally is what has become of calls.
type Tally struct {
	// Calls is how many there are, Open how many of them are not over.
	Calls, Open uint64
	// Declared is how many ended with an exception that the IDL declares, Failed how many with another one.
	Declared, Failed uint64
	// Rerun is how many were run again.
	Rerun uint64
}

// Add adds those of another tally.
func (t *Tally) Add(o Tally) {
	t.Calls += o.Calls
	t.Open += o.Open
	t.Declared += o.Declared
	t.Failed += o.Failed
	t.Rerun += o.Rerun
}

// tally is that of one call.
func (c *Call) tally() Tally {
	t := Tally{Calls: 1}
	switch {
	case !c.Over:
		t.Open = 1
	case c.Code.Failure():
		t.Failed = 1
	case c.Code != fault.OK:
		t.Declared = 1
	}
	if c.Attempts > 0 {
		t.Rerun = 1
	}
	return t
}

// Count adds to each edge the calls that are kept and were sent at since or later. It looks at scan of them at most, from those before the
// sequence number before on (0: from the latest on), and returns the before of the next part, 0 after the last one.
func (r *Recorder) Count(into map[Edge]Tally, since time.Time, before uint64, scan int) (next uint64) {
	seq := r.next - 1
	if before != 0 {
		seq = min(seq, before-1)
	}
	for ; seq > 0 && seq+uint64(r.size) >= r.next; seq-- {
		if scan == 0 {
			return seq + 1
		}
		scan--
		k := r.at(seq)
		if k.Sequence != seq || k.A1.Before(since) {
			continue
		}
		e := Edge{Caller: k.Caller.Address, Callee: k.Callee.Address, To: k.Service}
		if up, known := r.index[k.Parent]; known {
			e.From = r.at(up).Service
		}
		t := into[e]
		t.Add(k.tally())
		into[e] = t
	}
	return 0
}
