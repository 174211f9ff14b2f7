package gatekeeper

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// recorder is a session's stream, and the switch's Write, that note what they are given.
type recorder struct {
	ctx context.Context //nolint:containedctx // the session's
	did []string
}

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Tell(updates []p4rtclient.Update) error {
	r.note("told", updates)
	return nil
}

func (r *recorder) Barrier(context.Context) error {
	r.did = append(r.did, "barrier")
	return nil
}

func (r *recorder) note(how string, updates []p4rtclient.Update) {
	for _, u := range updates {
		r.did = append(r.did, how+" to "+u.Op.String())
	}
}

// The stream carries what ends, of all plans, before what begins. What is asked comes
// after a barrier behind what was told.
func TestWriter_Order(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		changes := func(n int) (all []*plan) {
			for range n {
				all = append(all, &plan{phases: []phase{{{Op: p4rtclient.Delete}}, {{Op: p4rtclient.Insert}}}})
			}
			return all
		}
		ctx, cancel := context.WithCancel(t.Context())
		w, r := newWriter(), &recorder{ctx: ctx}
		ended := make(chan error, 1)
		go func() {
			ended <- w.run(r, func(_ context.Context, batch []p4rtclient.Update) error {
				r.note("asked", batch)
				return nil
			}, func([]*plan) {})
		}()
		synctest.Wait()
		if !w.tell(r, changes(2)) {
			t.Error("nothing is under way, and the writer does not tell")
		}
		w.submit(changes(1))
		synctest.Wait()
		cancel()
		<-ended
		want := []string{"told to delete", "told to delete", "told to insert", "told to insert", "barrier", "asked to delete", "asked to insert"}
		if !slices.Equal(r.did, want) {
			t.Errorf("done %q, want %q", r.did, want)
		}
	})
}
