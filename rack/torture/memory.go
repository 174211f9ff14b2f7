package torture

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/rack"
)

// The rack has one memory machine of two blades. Each may die at any moment, but what both
// have lost is lost: the executioner hits a blade only if the other one has everything.
//
//	hit m1 ─▶ m2 alone ─▶ m1 restored, filled ─▶ two copies ─▶ hit m1 or m2
//	               ▲               │
//	               └─ hit m1 again ┘

// memorySize is how many bytes of regions each memory blade has.
const memorySize = 64 << 20

// memoryBlades serve the rack's memory machine.
var memoryBlades = []string{"m1", "m2"}

// memoryHit is what became of the memory blade that was hit last.
type memoryHit struct {
	blade string
	// epoch is of the last set of copies that may have counted the blade before it was hit.
	epoch uint32
	// back is when the blade was restored; zero before.
	back time.Time
}

// unnoticed is for how many heartbeats after a blade is back nobody may have noticed that
// it was away; far more than it takes.
const unnoticed = 10

// whole reports whether a machine has two copies.
func whole(m *api.Machine) bool { return m.InService == 2 && m.Why == "" }

// mayHit reports whether nothing is lost if the blade dies now. The one that was hit last
// may die as long as the other one has a copy, which was not hit since. The other one may die
// when there are two copies, and the Gatekeeper does not say so for the sole reason that it has
// not noticed the last hit yet.
func (l memoryHit) mayHit(blade string, m *api.Machine, now time.Time, heartbeat time.Duration) bool {
	switch {
	case l.blade == "":
		return whole(m)
	case blade == l.blade:
		return slices.ContainsFunc(m.Copies, func(other string) bool { return other != blade })
	}
	noticed := m.Epoch >= l.epoch+2 || now.Sub(l.back) > unnoticed*heartbeat
	return whole(m) && noticed && !l.back.IsZero()
}

// failMemory makes one of the memory blades fail for some time, if the other one has
// everything. Mostly it is not the one that was hit last: that one need not be filled to be
// hit, so it would be hit again and again.
func (x *executioner) failMemory(ctx context.Context, how rack.How) (bool, error) {
	for _, m := range memoryBlades {
		if _, is := x.hurt[m]; is {
			return false, nil
		}
	}
	b := memoryBlades[0]
	if again := x.random.IntN(6) == 0; (b == x.memory.blade) != again {
		b = memoryBlades[1]
	}
	m, err := x.t.machine(ctx)
	if err != nil || !x.memory.mayHit(b, &m, time.Now(), x.t.cfg.Heartbeat) {
		return false, err
	}
	what := map[rack.How]string{rack.Kill: "kill memory blade", rack.Pause: "pause memory blade", rack.Daemon: "kill the daemon of memory blade"}[how]
	x.t.say("%s %s, %d of 2 copies in service", what, b, m.InService)
	x.memory = memoryHit{blade: b, epoch: m.Epoch}
	if !whole(&m) {
		x.memory.epoch++ // it may be whole by now
	}
	x.hurt[b] = x.due(0)
	return true, x.t.cfg.Host.Fail(ctx, x.t.cfg.Name, b, how)
}

// machine returns the rack's memory machine.
func (t *torture) machine(ctx context.Context) (m api.Machine, err error) {
	waiting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	err = t.until(waiting, func(ctx context.Context) error {
		all, err := t.admin.Machines(ctx)
		if err == nil && (len(all) != 1 || len(all[0].Blades) != 2) {
			err = fmt.Errorf("memory machines %+v, want one of two blades", all)
		}
		if err == nil {
			m = all[0]
		}
		return err
	})
	return m, err
}

// mirrored objects until the memory machine has two copies.
func (t *torture) mirrored(ctx context.Context) error {
	m, err := t.machine(ctx)
	if err == nil && !whole(&m) {
		err = fmt.Errorf("the memory machine has %d copies in service, not 2: %s", m.InService, m.Why)
	}
	return err
}
