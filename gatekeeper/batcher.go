package gatekeeper

import (
	"errors"
	"fmt"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"google.golang.org/grpc/codes"
)

// batcher decides what the writer writes next: it is the writer's core, without
// I/O. One batch is out at a time; what comes up meanwhile waits for the next.
//
//	submit ──▶ revokes ─┐                    ┌─▶ next phase: revokes or grants
//	           grants  ─┴▶ next ── answer ───┴─▶ done
type batcher struct {
	revokes, grants []*plan // whose present phase is to be written
	ordered         []*plan // ordered plans; the first one is also in revokes or grants
	out             []*plan // in the batch that is out
	grantNext       bool    // the two kinds take turns
	finished        []*plan
}

// submit takes a plan.
func (b *batcher) submit(p *plan) {
	p.skip()
	if !p.ordered {
		b.line(p)
		return
	}
	b.ordered = append(b.ordered, p)
	if len(b.ordered) == 1 {
		b.line(p)
	}
}

// line queues a plan's present phase, or ends the plan.
func (b *batcher) line(p *plan) {
	switch {
	case len(p.phases) == 0:
		b.finished = append(b.finished, p)
		if p.ordered {
			b.ordered = b.ordered[1:]
			if len(b.ordered) > 0 {
				b.line(b.ordered[0])
			}
		}
	case p.revokes():
		b.revokes = append(b.revokes, p)
	default:
		b.grants = append(b.grants, p)
	}
}

// idle reports whether there is nothing to write.
func (b *batcher) idle() bool { return len(b.revokes)+len(b.grants) == 0 }

// next returns the next batch; none may be out.
func (b *batcher) next() []p4rtclient.Update {
	from := &b.revokes
	if b.grantNext && len(b.grants) > 0 || len(b.revokes) == 0 {
		from = &b.grants
	}
	b.grantNext = from == &b.revokes
	var updates []p4rtclient.Update
	n := 0
	for _, p := range *from {
		if n > 0 && len(updates)+len(p.phases[0]) > maxBatch {
			break
		}
		updates = append(updates, p.phases[0]...)
		n++
	}
	b.out = slices.Clone((*from)[:n])
	*from = slices.Delete(*from, 0, n)
	return updates
}

// answer takes the outcome of the batch that is out. If the switch could not be
// asked, the batch goes back to be written again, and the error is returned.
func (b *batcher) answer(err error) error {
	var refused *p4rtclient.BatchError
	if err != nil && !errors.As(err, &refused) {
		b.retry()
		return err
	}
	failures := map[int]p4rtclient.UpdateError{}
	if refused != nil {
		for _, u := range refused.Updates {
			failures[u.Index] = u
		}
	}
	at := 0
	for _, p := range b.out {
		n := len(p.phases[0])
		p.settle(failures, at)
		b.line(p)
		at += n
	}
	b.out = nil
	return nil
}

// settle takes the answer to the plan's present phase, whose first update has
// the index at in the batch. An update that finds the table as it wants it has
// succeeded: it may have been written before the connection broke.
func (p *plan) settle(failures map[int]p4rtclient.UpdateError, at int) {
	var again phase
	for i, u := range p.phases[0] {
		f, failed := failures[at+i]
		switch {
		case !failed, u.Op == p4rtclient.Delete && f.Code == codes.NotFound:
		case u.Op == p4rtclient.Insert && f.Code == codes.AlreadyExists && p.fixes < maxFixes:
			again = append(again, p4rtclient.Update{Op: p4rtclient.Modify, Entry: u.Entry})
		case u.Op == p4rtclient.Modify && f.Code == codes.NotFound && p.fixes < maxFixes:
			again = append(again, p4rtclient.Update{Op: p4rtclient.Insert, Entry: u.Entry})
		case p.err == nil:
			p.err = fmt.Errorf("%s %s: %s: %s", u.Op, &u.Entry, f.Code, f.Message)
		}
	}
	switch {
	case p.err != nil:
		p.phases = nil
	case len(again) > 0:
		p.fixes++
		p.phases[0] = again
	default:
		p.phases = p.phases[1:]
	}
}

// retry puts the plans of the batch that is out back in front.
func (b *batcher) retry() {
	if len(b.out) == 0 {
		return
	}
	if b.out[0].revokes() {
		b.revokes = append(b.out, b.revokes...)
	} else {
		b.grants = append(b.out, b.grants...)
	}
	b.out = nil
}

// done returns the plans that have ended, and forgets them.
func (b *batcher) done() []*plan {
	done := b.finished
	b.finished = nil
	return done
}
