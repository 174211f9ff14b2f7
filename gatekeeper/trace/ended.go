package trace

import "github.com/bifrost-rack/bifrost/internal/fault"

// MaxEnded bounds the calls that a Recorder remembers as ended until TakeEnded asks for
// them: so many of those that have Failed, and so many of the others.
const MaxEnded = 256

// ended are the sequence numbers of the latest calls that have ended since somebody asked.
type ended struct {
	latest [MaxEnded]uint64
	calls  uint64 // how many have ended
}

func (e *ended) note(seq uint64) {
	e.latest[e.calls%MaxEnded] = seq
	e.calls++
}

// TakeEnded returns the calls that have ended since it was last asked, the latest MaxEnded of
// those that have Failed and of the others, and how many there were besides.
func (r *Recorder) TakeEnded() (calls []Call, missed uint64) {
	for _, e := range []*ended{&r.well, &r.failed} {
		kept := min(e.calls, MaxEnded)
		for n := e.calls - kept; n < e.calls; n++ {
			seq := e.latest[n%MaxEnded]
			if k := r.at(seq); k.Sequence == seq {
				calls = append(calls, k.copy())
			} else {
				missed++ // others have taken its place
			}
		}
		missed += e.calls - kept
		e.calls = 0
	}
	return calls, missed
}

// Restore makes calls of a former run known, which are over, in the order given. They count
// in no figures. The Recorder must be new.
func (r *Recorder) Restore(calls []Call) {
	for i := range calls {
		c := &calls[i]
		if _, known := r.index[c.ID]; known || !c.Over {
			continue
		}
		k := r.at(r.add(&Event{Call: c.ID, Step: Step{Time: c.A1, Kind: Sent}, About: c.About}))
		seq := k.Sequence
		k.Call = *c
		k.Sequence = seq
		k.Steps = append([]Step(nil), c.Steps[:min(len(c.Steps), MaxSteps)]...)
	}
}

// Totals is what has become of all calls that Methods counts.
type Totals struct {
	// Calls is how many have ended, Declared how many of them with an exception that the IDL declares, Failed with another one.
	Calls, Declared, Failed uint64
	// Buckets counts them by how long they took, as Method.Buckets does.
	Buckets [len(Bounds) + 1]uint64
}

// Totals adds up the figures of all methods.
func (r *Recorder) Totals() (t Totals) {
	for _, m := range r.meter.methods {
		for code, n := range m.Ended {
			t.Calls += n
			switch {
			case code.Failure():
				t.Failed += n
			case code != fault.OK:
				t.Declared += n
			}
		}
		for i, n := range m.Buckets {
			t.Buckets[i] += n
		}
	}
	return t
}

// Since is what t counts and former does not.
func (t Totals) Since(former *Totals) Totals {
	t.Calls -= former.Calls
	t.Declared -= former.Declared
	t.Failed -= former.Failed
	for i := range t.Buckets {
		t.Buckets[i] -= former.Buckets[i]
	}
	return t
}

// Quantile is that of Method.Quantile.
func (t *Totals) Quantile(q float64) (seconds float64, ok bool) {
	return (&Method{Buckets: t.Buckets}).Quantile(q)
}
