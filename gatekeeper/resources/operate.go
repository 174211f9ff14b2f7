package resources

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// MarkFailed takes a blade out of service until Return, whatever it reports.
func (r *Registry) MarkFailed(blade, cause string, now time.Time) ([]Action, error) {
	b, err := r.known("fail", blade)
	if err != nil {
		return nil, err
	}
	if b.up() {
		r.takeDown(b, cause, now)
	}
	b.Mark, b.Cause = Failed, cause
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// Drain lets a blade run empty: it takes no new node or region, and deployed
// programs move elsewhere, stateless ones after their successors are ready.
// Drained follows when nobody uses it any more; of a memory blade Used tells.
func (r *Registry) Drain(blade, cause string, now time.Time) ([]Action, error) {
	b, err := r.known("drain", blade)
	if err != nil {
		return nil, err
	}
	if !b.up() {
		return nil, fault.New(fault.Unavailable, "drain", "blade %s has failed: %s", blade, b.Cause)
	}
	if b.Mark == Draining {
		return nil, nil
	}
	b.Mark, b.Cause = Draining, cause
	r.version++
	r.converge(now)
	r.checkVacated(b)
	return r.flush(), nil
}

// Return puts a blade back into service, after Drain or MarkFailed. One that has
// not reported since stays failed until its next hello.
func (r *Registry) Return(blade string, now time.Time) ([]Action, error) {
	b, err := r.known("return", blade)
	if err != nil {
		return nil, err
	}
	if b.Mark == "" {
		return nil, nil
	}
	if b.Mark == Failed { // Down: its daemon may have started anew
		b.Cause = "returned to service; no hello yet"
	} else if !b.Down {
		b.Cause = ""
	}
	b.Mark = ""
	b.Drained = false
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// takeDown is how a blade fails.
func (r *Registry) takeDown(b *Blade, cause string, now time.Time) {
	b.Down, b.Cause = true, cause
	r.emit(BladeDown{*b})
	r.clear(b, "blade "+b.Name+": "+cause, now)
}

// clear ends every node on a blade, and every start.
func (r *Registry) clear(b *Blade, cause string, now time.Time) {
	for _, n := range r.nodesOn(b.Name) {
		r.endNode(n, cause, true, now)
	}
	r.eachInstance(func(_ *running, i *Instance) {
		if i.Status == Starting && i.Blade == b.Name {
			i.set(Waiting, now)
		}
		if i.Next == b.Name {
			i.Next = ""
		}
	})
}

// checkVacated is checkDrained for a compute blade, and does nothing for others.
func (r *Registry) checkVacated(b *Blade) {
	if b.Kind == Compute {
		r.checkDrained(b, r.hostedBy(b.Name) == 0)
	}
}

// checkDrained reports once when a draining blade has run empty.
func (r *Registry) checkDrained(b *Blade, empty bool) {
	if b.Mark != Draining || !b.up() {
		return
	}
	if empty && !b.Drained {
		r.emit(Drained{b.Name})
	}
	b.Drained = empty
}
