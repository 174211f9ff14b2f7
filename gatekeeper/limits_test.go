package gatekeeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

func TestLimits(t *testing.T) {
	l, err := Limits{Held: 7}.withDefaults()
	if want := DefaultLimits; err != nil || l.Held != 7 {
		t.Errorf("%+v, %v", l, err)
	} else if want.Held = 7; l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	if _, err := (Limits{Scan: -1}).withDefaults(); err == nil || !strings.Contains(err.Error(), "Limits.Scan of -1") {
		t.Errorf("a negative limit: %v", err)
	}
}

// A plain client that fills the log with calls that it never settles is refused, and counted at
// its port; another one's calls are logged. The next Gatekeeper knows what it has.
func TestQuota_Log(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRack(t)
		r.settle, r.disk, r.logLimit = synctest.Wait, new(wal.Disk), 1<<20
		r.start(Config{})
		s := newSmall(r)
		flood := func(n *testNode, calls int) (logged int) {
			for range calls {
				m := n.exact("Arrays", "add")
				m.Floor, m.Payload = 1, make([]byte, 4<<10)
				n.call("Arrays", m)
				logged += len(s.b.messages())
			}
			return logged
		}
		a := flood(s.a, 150) // of 512 KiB, it may have eight ninths
		if a < 80 || a > 115 {
			t.Errorf("%d calls of 4 KiB are logged", a)
		}
		if c := flood(s.c, 1); c != 1 {
			t.Error("a call of another client is dropped")
		}
		drops, err := s.gk.Drops(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i := slices.IndexFunc(drops, func(d PortDrops) bool { return d.Port == s.a.port }); i < 0 || drops[i].Refused["overload"] != uint64(150-a) {
			t.Errorf("the flood is counted as %+v", drops)
		}
		r.crash()
		r.start(Config{})
		s.b.messages() // the calls again
		if n := flood(s.a, 1); n != 0 {
			t.Error("the next Gatekeeper takes more of the flood")
		}
	})
}

// A node has a bounded number of methods routed to it.
func TestQuota_Routes(t *testing.T) {
	inRack(t, func(r *rack) {
		s := newSmall(r)
		var methods []string
		for i := range maxMethods {
			methods = append(methods, fmt.Sprint("m", i))
		}
		exported := 0
		var err error
		for ; exported < 10 && err == nil; exported++ {
			err = s.c.export(fmt.Sprint("Squat", exported), methods...)
		}
		if exported-1 != maxRoutes/maxMethods || fault.CodeOf(err) != fault.Overloaded {
			t.Errorf("%d services of %d methods, then %v", exported-1, maxMethods, err)
		}
		if err := s.c.export("Squat0", methods...); err != nil {
			t.Errorf("what it exports already: %v", err)
		}
		if err := s.a.export("Small", "do"); err != nil {
			t.Errorf("another node: %v", err)
		}
	})
}
