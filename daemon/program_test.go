package daemon

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/daemon/output"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
)

var arrays = control.Start{Name: "arrays-1", Args: []string{"arrays", "server"}}

func TestStartAndStop(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		c, _, stop := r.compute(ComputeConfig{Runner: runner})
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Fatal(err)
		}
		first := <-runner.started
		if p := c.Status(0).Programs; len(p) != 1 || p[0].Name != "arrays-1" || p[0].PID != 4711 {
			t.Errorf("programs %+v", p)
		}
		for name, tc := range map[string]struct {
			start control.Start
			want  fault.Code
		}{
			"no name": {control.Start{Args: []string{"x"}}, fault.BadRequest},
			"no args": {control.Start{Name: "x"}, fault.BadRequest},
			"missing": {control.Start{Name: "x", Args: []string{"missing"}}, fault.Unavailable},
		} {
			if err := r.gk.command(control.KindStart, tc.start, nil); fault.CodeOf(err) != tc.want {
				t.Errorf("%s: %v, want %v", name, err, tc.want)
			}
		}
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil || len(runner.started) > 0 {
			t.Errorf("started twice: %v", err)
		}
		for range 2 {
			if err := r.gk.command(control.KindStop, control.Stop{Name: "arrays-1", GraceMS: 1000}, nil); err != nil {
				t.Error(err)
			}
		}
		<-first.done
		if first.killed {
			t.Error("killed though it heard SIGTERM")
		}
		// One that does not hear SIGTERM is killed after its grace.
		runner.deaf = true
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Error(err)
		}
		deaf, begin := <-runner.started, time.Now()
		if err := r.gk.command(control.KindStop, control.Stop{Name: "arrays-1", GraceMS: 700}, nil); err != nil {
			t.Error(err)
		}
		if took := time.Since(begin); !deaf.killed || took < 700*time.Millisecond || took > time.Second {
			t.Errorf("killed %v after %v", deaf.killed, took)
		}
		// The daemon's own end is the programs'.
		if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
			t.Error(err)
		}
		last := <-runner.started
		if err := stop(); err != nil {
			t.Error(err)
		}
		if <-last.done; !last.killed {
			t.Error("the deaf program outlived the daemon")
		}
	})
}

// TestMovedNode: a program goes on as a node that was before. Its next incarnation
// on the same blade meets nothing of it: process, node and addresses are gone, and
// what is said of the old one does not touch the new one.
func TestMovedNode(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10), deaf: true}
		c, _, stop := r.compute(ComputeConfig{Runner: runner})
		start := func(incarnation uint32) (*fakeProcess, join.Hosted) {
			t.Helper()
			moved := arrays
			moved.Address, moved.After = rackaddr.Node(42), incarnation-1
			r.gk.set(func() {
				r.gk.moved[moved.Name] = control.Joined{Address: moved.Address, Incarnation: incarnation, Rack: r.gk.welcome.Rack}
			})
			if err := r.gk.command(control.KindStart, moved, nil); err != nil {
				t.Fatal(err)
			}
			h, err := c.Host(r.ctx, join.Program{Name: "arrays", Instance: moved.Name, UID: 4712})
			if err != nil {
				t.Fatal(err)
			}
			if id := h.Node(); id.Address != moved.Address || id.Incarnation != incarnation || !r.blade.Accepts(id.Address) {
				t.Errorf("joined as %+v", id)
			}
			return <-runner.started, h
		}
		first, old := start(7)
		second, next := start(8)
		<-old.Done()
		if <-first.done; !first.killed {
			t.Error("the old process was not killed")
		}
		old.Crash("late news")
		if !r.blade.Accepts(rackaddr.Node(42)) {
			t.Error("the new incarnation's address went with the old one")
		}
		// An answer to a heartbeat from before.
		c.updated(
			control.Heartbeat{Nodes: []netip.Addr{rackaddr.Node(42)}, Incarnations: []uint32{7}},
			control.HeartbeatReply{Known: true, Gone: []netip.Addr{rackaddr.Node(42)}},
		)
		select {
		case <-next.Done():
			t.Error("the new incarnation ended with the old one")
		default:
		}
		// Fenced: the node ends, and its program with it.
		r.gk.set(func() { r.gk.reply.Gone = []netip.Addr{rackaddr.Node(42)} })
		<-next.Done()
		<-second.done
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestProgramCrashes: when a program ends, its node has crashed, and the Gatekeeper
// hears of it at once; the next start finds the place empty.
func TestProgramCrashes(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		c, _, stop := r.compute(ComputeConfig{Runner: runner})
		for n := range 3 {
			if err := r.gk.command(control.KindStart, arrays, nil); err != nil {
				t.Fatal(err)
			}
			h, err := c.Host(r.ctx, join.Program{Name: "arrays", Instance: arrays.Name, UID: 4712})
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			(<-runner.started).end()
			<-h.Done()
			for len(r.gk.left()) <= n {
				pass(time.Millisecond)
			}
			if took := time.Since(began); took > 10*time.Millisecond {
				t.Errorf("it took %v", took)
			}
			if l := r.gk.left()[n]; !l.Crashed || !strings.Contains(l.Reason, arrays.Name) {
				t.Errorf("leave %+v", l)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

func TestNoRunner(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		_, _, stop := r.compute(ComputeConfig{})
		if err := r.gk.command(control.KindStart, arrays, nil); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("start: %v", err)
		}
		if err := r.gk.command(control.KindFence, control.Fence{}, nil); fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("a memory blade's command: %v", err)
		}
		if err := r.gk.command(control.KindStart, 5, nil); fault.CodeOf(err) != fault.BadRequest {
			t.Errorf("malformed: %v", err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// What a program prints is kept, and the Gatekeeper may ask for it after the program's end.
func TestOutput(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		store, err := output.Open(output.Config{Dir: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		runner := &fakeRunner{started: make(chan *fakeProcess, 10)}
		_, _, stop := r.compute(ComputeConfig{Runner: runner, Output: store})
		if err := r.gk.command(control.KindStart, control.Start{Name: "shop/arrays/1", Args: []string{"arrays"}}, nil); err != nil {
			t.Fatal(err)
		}
		p := <-runner.started
		fmt.Fprint(p.out, "one\ntwo\nlast words")
		p.err = errors.New("exit status 7")
		p.end()
		pass(time.Second)
		var part control.OutputPart
		if err := r.gk.command(control.KindOutput, control.Output{Program: "shop", Max: 1 << 20}, &part); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range part.Lines {
			got = append(got, l.Program+": "+l.Text)
		}
		want := []string{"shop/arrays/1: one", "shop/arrays/1: two", "shop/arrays/1: last words", "shop/arrays/1: bifrost: shop/arrays/1 has ended: exit status 7"}
		if !slices.Equal(got, want) || part.More {
			t.Errorf("%q, more %v", got, part.More)
		}
		after := control.Output{Program: "shop/arrays/1", After: part.Lines[1].Time, Max: 100}
		if err := r.gk.command(control.KindOutput, after, &part); err != nil || len(part.Lines) != 2 || part.Lines[0].Text != "last words" {
			t.Errorf("after the second line: %v, %v", part.Lines, err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// A program that hangs is killed, one that is not ready in time, too; the Gatekeeper hears why.
func TestHung(t *testing.T) {
	inRack(t, wire.Impairment{}, func(r *rack) {
		runner := &fakeRunner{started: make(chan *fakeProcess, 10), deaf: true}
		c, _, stop := r.compute(ComputeConfig{Runner: runner})
		start := func(s control.Start) *fakeProcess {
			t.Helper()
			if err := r.gk.command(control.KindStart, s, nil); err != nil {
				t.Fatal(err)
			}
			return <-runner.started
		}
		watched := control.Start{Name: "a/b/1", Args: []string{"b"}, AnswerMS: 5000, ProgressMS: 60_000}
		p := start(watched)
		n, err := c.Host(r.ctx, join.Program{Name: "b", Instance: "a/b/1", UID: 4712})
		if err != nil {
			t.Fatal(err)
		}
		if got := n.Thresholds(); got != (join.Thresholds{Answer: 5 * time.Second, Progress: time.Minute}) {
			t.Errorf("thresholds %+v", got)
		}
		n.Hung("it does not answer")
		<-n.Done()
		if !p.killed {
			t.Error("the program that hung was not killed")
		}
		pass(time.Second)
		if got := r.gk.left(); len(got) != 1 || !got[0].Crashed || got[0].Reason != "program a/b/1 was killed: it does not answer" {
			t.Errorf("the Gatekeeper hears %+v", got)
		}

		began := time.Now()
		p = start(control.Start{Name: "a/c/1", Args: []string{"c"}, ReadyMS: 3000, Services: []string{"S"}})
		<-p.done
		if d := time.Since(began); !p.killed || d < 3*time.Second || d > 4*time.Second {
			t.Errorf("a program that did not join was killed: %v, after %v", p.killed, d)
		}
		pass(time.Second)
		p = start(control.Start{Name: "a/c/1", Args: []string{"c"}, ReadyMS: 3000, Services: []string{"S"}})
		if n, err = c.Host(r.ctx, join.Program{Name: "c", Instance: "a/c/1", UID: 4712}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Export(r.ctx, control.Export{Service: "S"}); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		select {
		case <-p.done:
			t.Error("a program that was ready in time was killed")
		default:
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}
