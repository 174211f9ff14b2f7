package trace

import (
	"cmp"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Bounds are the upper limits of the buckets of Method.Buckets, in seconds; a further bucket
// has what took longer.
var Bounds = [...]float64{
	25e-6, 50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 10, 30, 60, 300,
}

// MaxMethods is of how many methods a Meter keeps figures; those of further ones are under
// the names OtherMethods.
const MaxMethods = 1024

// OtherMethods is the service and the method of what exceeds MaxMethods.
const OtherMethods = "(others)"

// UnknownMethods is the service and the method of what nobody has at the time.
const UnknownMethods = "(unknown)"

// Method is what has become of a method's calls. Times are from a1 to a2, by the Gatekeeper's
// clock; of calls that are known from samples they are those of the samples.
type Method struct {
	Service, Method string
	// Open is how many calls are under way.
	Open uint64
	// Ended is how many calls have ended, by code.
	Ended map[fault.Code]uint64
	// Rerun is how many of them had to be run again after a failure.
	Rerun uint64
	// Buckets counts those that have ended by how long they took; Seconds is the sum. One-ways
	// are not among them.
	Buckets [len(Bounds) + 1]uint64
	Seconds float64
	// Examples has for each bucket the last call that fell into it.
	Examples [len(Bounds) + 1]Example
}

// Example is a call that took so long; zero for none.
type Example struct {
	Call    rpcpacket.ID
	Seconds float64
	At      time.Time
}

// Quantile estimates how long the q-th part of the calls took at most, in seconds, by linear
// interpolation within a bucket; false without a call. The last bucket has no end: its
// beginning is returned.
func (m *Method) Quantile(q float64) (seconds float64, ok bool) {
	total := uint64(0)
	for _, n := range m.Buckets {
		total += n
	}
	if total == 0 {
		return 0, false
	}
	rank, below, from := q*float64(total), uint64(0), 0.0
	for i, n := range m.Buckets {
		if i == len(Bounds) {
			break
		}
		if float64(below+n) >= rank && n > 0 {
			return from + (Bounds[i]-from)*max(0, rank-float64(below))/float64(n), true
		}
		below, from = below+n, Bounds[i]
	}
	return from, true
}

// meter keeps the figures of methods. It is not safe for concurrent use.
type meter struct {
	methods map[[2]string]*Method
	has     func(service, method string) bool // whether somebody has a method; nil: all are had
}

// of returns the figures of a method. A method that nobody has gets none of its own.
func (m *meter) of(service, method string) *Method {
	key := [2]string{service, method}
	if v := m.methods[key]; v != nil {
		return v
	}
	if m.methods == nil {
		m.methods = map[[2]string]*Method{}
	}
	switch {
	case m.has != nil && !m.has(service, method):
		key = [2]string{UnknownMethods, UnknownMethods}
	case len(m.methods) >= MaxMethods:
		key = [2]string{OtherMethods, OtherMethods}
	}
	if v := m.methods[key]; v != nil {
		return v
	}
	v := &Method{Service: key[0], Method: key[1], Ended: map[fault.Code]uint64{}}
	m.methods[key] = v
	return v
}

// all returns copies of all figures, in the order of their names.
func (m *meter) all() []Method {
	out := make([]Method, 0, len(m.methods))
	for _, v := range m.methods {
		c := *v
		c.Ended = make(map[fault.Code]uint64, len(v.Ended))
		for code, n := range v.Ended {
			c.Ended[code] = n
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Method) int {
		return cmp.Or(cmp.Compare(a.Service, b.Service), cmp.Compare(a.Method, b.Method))
	})
	return out
}

// began counts a call that has become known.
func (m *meter) began(k *entry) {
	k.figures = m.of(k.Service, k.Method)
	k.figures.Open++
}

// lost takes back a call whose end was not heard of.
func (k *entry) lost() {
	k.figures.Open--
}

// ended counts a call that is over.
func (k *entry) ended(at time.Time) {
	v := k.figures
	v.Open--
	v.Ended[k.Code]++
	if k.Attempts > 0 {
		v.Rerun++
	}
	if k.Oneway {
		return
	}
	took := max(at.Sub(k.A1), 0).Seconds()
	i, _ := slices.BinarySearch(Bounds[:], took)
	v.Buckets[i]++
	v.Seconds += took
	v.Examples[i] = Example{Call: k.ID, Seconds: took, At: at}
}
