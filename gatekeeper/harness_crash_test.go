package gatekeeper

import (
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// inLogged is inSmall with a log that outlives the Gatekeeper.
func inLogged(t *testing.T, f func(s *small)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle = synctest.Wait
		r.disk = new(wal.Disk)
		r.start(Config{})
		f(newSmall(r))
	})
}

// crash ends the Gatekeeper at once: nothing more is logged, and nothing sent.
func (r *rack) crash() {
	r.t.Helper()
	r.disk.Crash()
	_ = r.stop() // whether the log failed before the context ended is chance
	r.stop = nil
	r.settle()
}

// restart crashes the Gatekeeper and starts one with the same log.
func (r *rack) restart() {
	r.t.Helper()
	r.crash()
	r.start(Config{})
	r.settle()
}
