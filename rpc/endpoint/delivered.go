package endpoint

import "slices"

// deliveries is which of its exactly-once calls a callee has finished with, by the
// numbers under which the Gatekeeper has delivered them (packet.DeliveryNumber). A
// call has one number in each run of the Gatekeeper, so whatever arrives under a
// number that is settled, or under one of a former run, is a late copy: a
// Gatekeeper that begins delivers anew what is unfinished, under its own numbers.
//
// The numbers of one run count up, and nearly all are settled in time, so they are
// kept as spans: there are hardly more of them than calls under way.
type deliveries struct {
	run     uint64 // of the Gatekeeper, the last one heard of
	settled []span // ascending, with gaps between them
}

// span is the numbers from first to last.
type span struct{ first, last uint64 }

// begin notes a run of the Gatekeeper. It reports whether that is a new one: what
// was settled before is forgotten then.
func (d *deliveries) begin(run uint64) bool {
	if run <= d.run {
		return false
	}
	d.run, d.settled = run, nil
	return true
}

// late reports whether nothing that bears this number is to be run any more.
func (d *deliveries) late(run, number uint64) bool {
	if run != d.run {
		return run < d.run
	}
	i := d.search(number)
	return i < len(d.settled) && d.settled[i].first <= number
}

// search finds the first span that does not end before a number.
func (d *deliveries) search(number uint64) int {
	i, _ := slices.BinarySearchFunc(d.settled, number, func(s span, n uint64) int {
		if s.last < n {
			return -1
		}
		return 1
	})
	return i
}

// settle notes that the call of a number, in the present run, is finished.
func (d *deliveries) settle(number uint64) {
	i := d.search(number)
	if i < len(d.settled) && d.settled[i].first <= number {
		return
	}
	before := i > 0 && d.settled[i-1].last+1 == number
	after := i < len(d.settled) && d.settled[i].first == number+1
	switch {
	case before && after:
		d.settled[i-1].last = d.settled[i].last
		d.settled = slices.Delete(d.settled, i, i+1)
	case before:
		d.settled[i-1].last = number
	case after:
		d.settled[i].first = number
	default:
		d.settled = slices.Insert(d.settled, i, span{number, number})
	}
}
