package gatekeeper

import (
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A machine with one copy gets a second one while it serves. The blade with the first copy,
// the source, sends its content to the other one, the target (dsm/memory). Clients and we
// know one copy until the last step.
//
//	pairUp ─▶ written down ─▶ KindFill: target, source ─▶ content … heartbeats tell how far
//	  ─▶ ready ─▶ the switch sends to both; barrier ─▶ epoch written down, the target gets commands, too
//	  ─▶ KindComplete: source ─▶ both are copies in the new epoch ─▶ written down
//
// The target drops what the switch sends it until it is complete. The source has
// everything that was acknowledged before the new epoch, and in that epoch nothing is
// settled without its answer. So whatever fails before the end, the source alone goes on,
// in a later epoch, and the target begins anew, as another incarnation.

// A filling that is cut off begins anew, and nothing of it is used again:
//
//   - When the target is gone, so is what it had: a memory blade keeps nothing on disk.
//   - When the source is gone, what the target has is no state of any moment: units were copied
//     at different times, and requests that changed two of them may be there by half.
//   - Only when the target was silent for three heartbeats, or the Gatekeeper restarted, is
//     something there to go on from. To use it, the source would have to note what changes for
//     as long as nobody fills, and both would have to agree on what had arrived. That saves the
//     seconds that the content takes at the rate (16 for 1 GiB) in a case that is rare.

// fillJob is the filling of a machine's second copy.
type fillJob struct {
	blade       string
	incarnation uint32
	token       uint64
	began       time.Time
	progress    control.FillProgress
	joining     bool         // the switch sends to the target, too, or is about to
	closing     bool         // the epoch is raised, and the target gets commands
	later       []laterFence // that were answered meanwhile
}

// laterFence is a copy's answer to a fence, which is not compared before there are two copies.
type laterFence struct {
	blade *blade
	fence control.Fence
	reply control.Message
	then  func()
}

const (
	// fillPauseFirst and fillPauseMost are how long to wait before a blade is filled again
	// that could not be.
	fillPauseFirst = 500 * time.Millisecond
	fillPauseMost  = 30 * time.Second
)

// second returns the blade that a machine with one copy is to be mirrored onto: nil for none.
func (c *controller) second(m *mirror) *blade {
	for _, name := range m.blades {
		if b := c.blades[name]; b != nil && !m.has(b) {
			return b
		}
	}
	return nil
}

// source returns the blade with the first copy of a machine, nil if it is not known.
func (c *controller) source(m *mirror) *blade {
	if len(m.copies) == 0 {
		return nil
	}
	return c.blades[m.copies[0].Blade]
}

// pairUp begins to fill a machine's second copy if it has one copy, both of its blades are
// in service, and nothing speaks against it.
func (c *controller) pairUp(m *mirror) {
	if m == nil || len(m.copies) != 1 || m.filling != nil || c.now.Before(m.again) {
		return
	}
	first, second := c.source(m), c.second(m)
	if first == nil || second == nil || !first.alive() || !second.alive() || c.mark(second) || m.takenOut(second) || second.anew {
		return
	}
	if second.hello.Capacity < first.used {
		c.cannotFill(m, fmt.Sprintf("blade %s has room for %d bytes, the machine holds %d", second.hello.Blade, second.hello.Capacity, first.used))
		return
	}
	m.last++
	job := &fillJob{blade: second.hello.Blade, incarnation: m.last, token: uint64(m.epoch)<<32 | uint64(m.last), began: c.now}
	m.filling = job
	m.why = fmt.Sprintf("blade %s is being filled", job.blade)
	c.keepMirror(m)
	c.event(Event{Kind: MachineFilling, Blade: job.blade, Message: fmt.Sprintf("machine %d: %s is filled from %s", m.machine, job.blade, first.hello.Blade)})
	c.log.Info("memory machine gets a second copy", "machine", m.machine, "from", first.hello.Blade, "to", job.blade, "bytes", first.used)
	q := control.Fill{Token: job.token, Epoch: m.epoch, Incarnation: job.incarnation, From: first.address, To: second.address, Rate: c.cfg.FillRate}
	c.fillCommand(m, second, control.KindFill, q, func() {
		q.Source = true
		c.fillCommand(m, first, control.KindFill, q, nil)
	})
}

// fillCommand has a blade do its part of the present filling, and then goes on. If it does
// not, the filling is over.
func (c *controller) fillCommand(m *mirror, b *blade, kind control.Kind, body any, then func()) {
	job := m.filling
	c.command(b, kind, body, func(reply control.Message) {
		if m.filling != job {
			return
		}
		if o := outcome(reply); o.Code != fault.OK {
			c.stopFilling(m, fmt.Sprintf("blade %s cannot be filled: %s", job.blade, o.Message))
			return
		}
		if then != nil {
			then()
		}
	})
}

// cannotFill says why a machine does not get its second copy. It is tried again later.
func (c *controller) cannotFill(m *mirror, why string) {
	m.pause = min(max(2*m.pause, fillPauseFirst), fillPauseMost)
	m.again = c.now.Add(m.pause)
	if m.why == why {
		return
	}
	m.why = why
	c.keepMirror(m)
	c.event(Event{Kind: MachineUnmirrored, Blade: m.copies[0].Blade, Message: fmt.Sprintf("machine %d has one copy: %s", m.machine, why)})
	c.log.Warn("memory machine has one copy", "machine", m.machine, "copy", m.copies[0].Blade, "reason", why)
}

// filled takes in what a source says of the copy that is filled from it.
func (c *controller) filled(b *blade, p *control.FillProgress) {
	m := b.mirror
	if p == nil || m == nil || m.filling == nil || m.filling.token != p.Token || c.source(m) != b {
		return
	}
	job := m.filling
	job.progress = *p
	switch {
	case p.Failed != fault.OK:
		c.stopFilling(m, fmt.Sprintf("blade %s cannot be filled: %s", job.blade, p.Message))
	case p.Ready && !job.joining:
		c.joinGroup(m)
	}
}

// joinGroup has the switch send what changes something to the target, too, and then
// completes the copy.
func (c *controller) joinGroup(m *mirror) {
	job, second := m.filling, c.blades[m.filling.blade]
	job.joining = true
	c.change(nil, c.groupRules(m)) // before dsm_home names the group
	c.change(func(error) {
		if m.filling == job {
			c.completeCopy(m)
		}
	}, c.memoryRules(second), c.homeRules(m))
}

// completeCopy raises the epoch and has the source complete the copy. The target gets every
// command from now on, and those that the source may not have carried out yet. One that
// is carried out twice changes nothing.
func (c *controller) completeCopy(m *mirror) {
	job, first, second := m.filling, c.source(m), c.blades[m.filling.blade]
	job.closing = true
	m.epoch++
	c.keepMirror(m)
	c.serveMemory(second)
	second.reclaims = slices.Clone(first.reclaims)
	for _, q := range []struct{ from, to *undoQueue }{{&first.commits, &second.commits}, {&first.rollbacks, &second.rollbacks}} {
		for _, e := range q.from.queue {
			e.waiting++
			q.to.queue = append(q.to.queue, e)
		}
		c.askUndo(second, q.to)
	}
	told := control.Mirror{Epoch: m.epoch, Incarnation: m.copies[0].Incarnation, Members: 2}
	c.fillCommand(m, first, control.KindComplete, control.Complete{Token: job.token, Mirror: told}, func() {
		m.filling, m.why, m.pause = nil, "", 0
		m.copies = append(m.copies, copyOf{job.blade, job.incarnation})
		c.keepMirror(m)
		c.announce(m)
		c.compareLater(job)
		c.reclaimMore(second)
		c.event(Event{Kind: MachineMirrored, Blade: job.blade, Message: fmt.Sprintf("machine %d has two copies: %s and %s", m.machine, first.hello.Blade, job.blade)})
		c.log.Info("memory machine is mirrored", "machine", m.machine, "first", first.hello.Blade, "second", job.blade, "epoch", m.epoch,
			"bytes", job.progress.Done, "after", c.now.Sub(job.began))
		if c.mark(first) {
			c.loseCopy(first, "blade "+first.hello.Blade+" is drained")
		}
	})
}

// stopFilling gives the filling of a second copy up: the first copy goes on alone, in a new
// epoch.
func (c *controller) stopFilling(m *mirror, why string) {
	job := m.filling
	m.filling = nil
	c.alone(m, c.blades[job.blade], c.source(m), why)
	c.compareLater(job)
	m.pause = min(max(2*m.pause, fillPauseFirst), fillPauseMost)
	m.again = c.now.Add(m.pause)
}

// compareLater goes on with the fences that were answered while a copy was completed, those
// of the first copy before those of the second: that tells which ones both have answered.
func (c *controller) compareLater(job *fillJob) {
	for _, first := range []bool{true, false} {
		for _, l := range job.later {
			if l.blade.first() == first {
				c.compare(l.blade, l.fence, l.reply, l.then)
			}
		}
	}
}

// fills reports whether a blade is the source or the target of a filling.
func (m *mirror) fills(b *blade) bool {
	return m != nil && m.filling != nil && (m.filling.blade == b.hello.Blade || m.has(b))
}

// state is how far the filling has got.
func (job *fillJob) state(now time.Time) *FillState {
	if job == nil {
		return nil
	}
	s := &FillState{Blade: job.blade, Done: job.progress.Done, Total: job.progress.Done + job.progress.Left}
	if took := now.Sub(job.began); took > 0 {
		s.Rate = uint64(float64(s.Done) / took.Seconds())
	}
	if s.Rate > 0 {
		s.Left = time.Duration(float64(job.progress.Left) / float64(s.Rate) * float64(time.Second))
	}
	return s
}
