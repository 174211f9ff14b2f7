package simrack_test

import (
	"context"
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// versioned is a register whose state has a version.
type versioned struct {
	register
	version string
	reads   []string
}

func (v *versioned) Version() string { return v.version }
func (v *versioned) Reads() []string { return v.reads }
func (v *versioned) RestoreVersion(version string, b []byte) error {
	if !slices.Contains(v.reads, version) {
		return rpc.Errorf(rpc.Internal, "asked to read version %q", version)
	}
	return v.Restore(b)
}

// registering is a program that serves a register.
func registering(state func() (rpc.State, arrays.Arrays)) simrack.Program {
	return func(ctx context.Context, j join.Joiner, _ control.Start) error {
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("keeper"))
		if err != nil {
			return err
		}
		s, handler := state()
		if err := n.Export(ctx, "Count", arrays.NewArraysProcessor(handler), rpc.WithState(s)); err != nil {
			return err
		}
		<-ctx.Done()
		return n.Close(context.WithoutCancel(ctx))
	}
}

// TestVersions_Rollback: a program that does not read what is kept does not get it. A rollback to one is refused while
// everything runs; a new one that turns out to be one is started once, and what ran before serves again.
func TestVersions_Rollback(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Hour)
		defer cancel()
		plain := func() (rpc.State, arrays.Arrays) { r := &register{}; return r, r }
		reading := func(version string, reads ...string) func() (rpc.State, arrays.Arrays) {
			return func() (rpc.State, arrays.Arrays) { v := &versioned{version: version, reads: reads}; return v, v }
		}
		rack, err := simrack.Start(ctx, simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk),
			Programs: map[string]simrack.Program{"one": registering(plain), "two": registering(reading("2", "", "2")), "three": registering(reading("3", "3"))},
		})
		if err != nil {
			t.Fatal(err)
		}
		f := &fleet{t: t, ctx: ctx, Rack: rack, events: rack.Gatekeeper().Subscribe(ctx)}
		deploy := func(program string) error {
			return f.Gatekeeper().Deploy(ctx, resources.Spec{Name: "a", Programs: []resources.Program{
				{Name: "keeper", Args: []string{program}, Nodes: 1, Services: []resources.ServiceSpec{{Name: "Count", Stateful: true}}},
			}})
		}
		done := func(what, back string) {
			t.Helper()
			f.until(what, func(d *resources.Deployment) bool { return d.Rollout.Done })
			f.until(what, func(d *resources.Deployment) bool {
				return strings.Contains(d.Rollout.Back, back) && d.Instances[0].Settled
			})
		}
		n, err := f.Join(ctx, "c1", "caller")
		if err != nil {
			t.Fatal(err)
		}
		client := arrays.NewArraysClient(n.Client("Count"))
		count := func(want uint64) {
			t.Helper()
			if b, err := client.Echo(ctx, nil); err != nil || binary.BigEndian.Uint64(b) != want {
				t.Fatalf("%x, %v; want %d", b, err, want)
			}
		}
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(deploy("one"))
		done("the first program", "")
		count(1)
		must(deploy("two"))
		done("the second program", "")
		must(f.Gatekeeper().Rollback(ctx, "a")) // the state is still the first one's
		done("the first program again", "by an operator")
		must(f.Gatekeeper().Rollback(ctx, "a"))
		done("the second program again", "by an operator")
		count(2) // this is kept in version 2
		f.until("the version", func(*resources.Deployment) bool {
			err = f.Gatekeeper().Rollback(ctx, "a")
			return err != nil
		})
		if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), `kept in version "2", and its program reads a form without a version: deploy a program that reads it`) {
			t.Errorf("a rollback to what cannot read the state: %v", err)
		}
		done("nothing has stopped", "by an operator")
		count(3)
		before := f.incarnation("keeper")
		must(deploy("three"))
		f.until("the second program once more", func(d *resources.Deployment) bool {
			return strings.Contains(d.Rollout.Back, `kept in version "2", and its program reads version "3"`) && d.Instances[0].Settled
		})
		count(4)
		// The caller and other nodes have no incarnations meanwhile: one program that cannot go on, and one that can.
		if after := f.incarnation("keeper"); after != before+2 {
			t.Errorf("incarnation %d, then %d: a program that cannot read the state was tried more than once", before, after)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
}

// incarnation is that of a program's node.
func (r *fleet) incarnation(name string) uint32 {
	r.t.Helper()
	s, err := r.Gatekeeper().Snapshot(r.ctx)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, n := range s.Nodes {
		if n.Name == name {
			return n.Incarnation
		}
	}
	r.t.Fatalf("%s has no node", name)
	return 0
}
