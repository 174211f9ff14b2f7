package daemon

import (
	"maps"
	"net/netip"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// TestForeignInstance: nobody but a program that the daemon has started joins as one, and
// another user's program joins only as itself.
func TestForeignInstance(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		c, _, stop := r.compute(ComputeConfig{Runner: runner})
		denied := func(what string, p join.Program) {
			t.Helper()
			if _, err := c.Host(r.ctx, p); fault.CodeOf(err) != fault.PermissionDenied {
				t.Errorf("%s: %v", what, err)
			}
		}
		denied("a program that does not run", join.Program{Name: "arrays", Instance: arrays.Name, UID: 4712})
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Fatal(err)
		}
		denied("another user", join.Program{Name: "arrays", Instance: arrays.Name, UID: 60001})
		if _, err := c.Host(r.ctx, join.Program{Name: "arrays", UID: 60001}); err != nil {
			t.Errorf("another user's program as itself: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// guardFake writes down who owns what.
type guardFake struct {
	mu     sync.Mutex
	owners map[netip.Addr]uint32
}

func (g *guardFake) Own(a netip.Addr, uid, _ uint32) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.owners[a] = uid
	return nil
}

func (g *guardFake) Disown(a netip.Addr) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.owners, a)
	return nil
}

func (g *guardFake) all() map[netip.Addr]uint32 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return maps.Clone(g.owners)
}

// TestGuard: the address of a node is its user's from before it is the blade's until the node ends.
func TestGuard(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		g := &guardFake{owners: map[netip.Addr]uint32{}}
		c, _, stop := r.compute(ComputeConfig{Guard: g})
		h, err := c.Host(r.ctx, join.Program{Name: "n", UID: 60001})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := g.all(), (map[netip.Addr]uint32{h.Node().Address: 60001}); !maps.Equal(got, want) {
			t.Errorf("owners %v, want %v", got, want)
		}
		if err := h.Close(r.ctx); err != nil {
			t.Fatal(err)
		}
		if got := g.all(); len(got) != 0 {
			t.Errorf("owners of an ended node: %v", got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
