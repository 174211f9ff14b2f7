package daemon

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

// refusals are the figures of Refused.
func refusals(c *Compute) map[string]uint64 {
	all := map[string]uint64{}
	c.Refused(func(user, what string, n uint64) { all[user+" "+what] += n })
	return all
}

// One user's programs do not take all nodes of a blade: others', and programs that the daemon has started, find some.
func TestUsers_Nodes(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		const nodes = 16
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		c, _, stop := r.compute(ComputeConfig{Nodes: nodes, Runner: runner})
		var greedy []join.Hosted
		for {
			n, err := c.Host(r.ctx, join.Program{Name: fmt.Sprint("greedy", len(greedy)), UID: 1000})
			if err != nil {
				if fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "user 1000 runs") {
					t.Error(err)
				}
				break
			}
			greedy = append(greedy, n)
		}
		if n := len(greedy); n < nodes/2 || n > nodes-nodes/8 {
			t.Errorf("one user has %d of %d nodes", n, nodes)
		}
		if _, err := c.Host(r.ctx, join.Program{Name: "other", UID: 1001}); err != nil {
			t.Errorf("another user: %v", err)
		}
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Host(r.ctx, join.Program{Name: "arrays", Instance: arrays.Name, UID: 4712}); err != nil {
			t.Errorf("a program of a deployment: %v", err)
		}
		if got := refusals(c); len(got) != 1 || got["1000 nodes"] != 1 {
			t.Errorf("refused: %v", got)
		}
		r.gk.set(func() { r.gk.refuse = fault.New(fault.Stale, "join", "not to run here") })
		for range nodes { // what is refused there takes nothing
			if _, err := c.Host(r.ctx, join.Program{Name: "refused", UID: 1002}); fault.CodeOf(err) == fault.Overloaded {
				t.Fatal(err)
			}
		}
		r.gk.set(func() { r.gk.refuse = nil })
		for _, n := range greedy {
			if err := n.Close(r.ctx); err != nil {
				t.Error(err)
			}
		}
		for range nodes / 2 {
			if _, err := c.Host(r.ctx, join.Program{Name: "again", UID: 1000}); err != nil {
				t.Fatalf("after its nodes have left: %v", err)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// Questions of one user that wait for the Gatekeeper leave room for those of others.
func TestUsers_Questions(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{})
		n, err := c.Host(r.ctx, join.Program{Name: "curious", UID: 1000})
		if err != nil {
			t.Fatal(err)
		}
		r.gk.set(func() { r.gk.silent = true })
		ctx, cancel := context.WithCancel(r.ctx)
		asked := make(chan error, control.Window)
		for range control.Window {
			go func() {
				_, err := n.Service(ctx, "Arrays")
				asked <- err
			}()
		}
		pass(time.Second)
		refused := len(asked) // the others wait
		for range refused {
			if err := <-asked; fault.CodeOf(err) != fault.Overloaded || !strings.Contains(err.Error(), "user 1000") {
				t.Errorf("a question too many: %v", err)
			}
		}
		joining, end := context.WithTimeout(r.ctx, time.Minute) // virtual
		if _, err := c.Host(joining, join.Program{Name: "other", UID: 1001}); err != nil {
			t.Errorf("another user joins: %v", err)
		}
		end()
		cancel()
		for range control.Window - refused {
			<-asked
		}
		if got := refusals(c); refused < control.Window/4 || got["1000 questions"] != uint64(refused) {
			t.Errorf("%d refused: %v", refused, got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a program was started with is told to root, the daemon's user and its own.
func TestUsers_Arguments(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		c, _, stop := r.compute(ComputeConfig{Runner: &fakeRunner{started: make(chan *fakeProcess, 10)}})
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Fatal(err)
		}
		for uid, told := range map[uint32]bool{0: true, uint32(os.Geteuid()): true, 4712: true, 60002: false} {
			p := c.Status(uid).Programs
			if len(p) != 1 || p[0].Name != arrays.Name || told && !slices.Equal(p[0].Args, arrays.Args) || !told && p[0].Args != nil {
				t.Errorf("user %d is told %+v", uid, p)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
