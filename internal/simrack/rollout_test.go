package simrack_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestExactly_Rollout changes programs while calls run: none of them fails or happens twice,
// and in the end all nodes run what they should. A program that does not work is rolled back.
func TestExactly_Rollout(t *testing.T) {
	for name, f := range map[string]func(f *office){
		"fronts":  func(f *office) { f.rolledOut("fronts", "v2", "") },
		"counter": func(f *office) { f.rolledOut("counter", "v2", "") },
		"a broken front": func(f *office) {
			f.rolledOut("fronts", "broken", "")
		},
		"a broken counter": func(f *office) { f.rolledOut("counter", "broken", "") },
		"rolled back by an operator": func(f *office) {
			if err := f.Gatekeeper().Rollback(f.ctx, "counter"); fault.CodeOf(err) != fault.NotFound {
				f.t.Errorf("nothing to go back to: %v", err)
			}
			f.rolledOut("counter", "v2", "")
			f.must(f.Gatekeeper().Rollback(f.ctx, "counter"))
			f.runs("counter", "", "by an operator")
		},
		"the counter crashes": func(f *office) {
			// It is in the middle of an Add when it is told to finish; its successor runs what it ran.
			f.hold(&f.entered, time.Second)
			f.roll("counter", "v2")
			<-time.After(100 * time.Millisecond) // virtual
			f.mu.Lock()
			before := f.began["counter/p/1"]
			f.mu.Unlock()
			f.crash("counter/p/1")
			f.runs("counter", "v2", "")
			if n := f.began["counter/p/1"] - before; n != 2 {
				f.t.Errorf("%d programs began since the crash: want the former one and the new one", n)
			}
		},
		"the Gatekeeper crashes": func(f *office) {
			for _, after := range []time.Duration{time.Millisecond, 45 * time.Millisecond} {
				v := after.String()
				f.roll("counter", v)
				f.roll("fronts", v)
				<-time.After(after) // virtual: this is when, not whether
				f.CrashGatekeeper()
				<-time.After(20 * time.Millisecond)
				f.must(f.RestartGatekeeper(f.ctx))
				f.runs("counter", v, "")
				f.runs("fronts", v, "")
			}
		},
	} {
		if testing.Short() && (name == "counter" || strings.HasPrefix(name, "a broken")) { // with the race detector, which has the others
			continue
		}
		t.Run(name, func(t *testing.T) { withOffice(t, tally.FrontName, rpc.PolicyRecover, f) })
	}
}

// roll changes the version of an app's program.
func (f *office) roll(app, version string) {
	f.t.Helper()
	spec := f.app(app).Spec
	spec.Programs[0].Args = slices.Concat(spec.Programs[0].Args[:1], []string{version})
	f.must(f.Gatekeeper().Deploy(f.ctx, spec))
}

// rolledOut changes a version, and waits until that is rolled out, or the version back is there
// again.
func (f *office) rolledOut(app, version, back string) {
	f.t.Helper()
	if version == "broken" { // for which seconds go by
		f.pause.Store(int64(time.Second))
		defer f.pause.Store(int64(10 * time.Millisecond))
	}
	began := time.Now()
	f.roll(app, version)
	if version == "broken" {
		f.runs(app, back, "nodes with these programs have failed 3 times, last "+f.app(app).Instances[0].Name+": it ended before it had joined the rack")
		return
	}
	f.runs(app, version, "")
	if took := time.Since(began); took > 7500*time.Millisecond { // virtual: the first node is watched for 3 s; who does not finish is killed after 5 s
		f.t.Errorf("%s took %v to roll out: a node did not finish", app, took)
	}
}

// runs waits until an app is rolled out, and checks what its nodes run, and why it went back.
func (f *office) runs(app, version, back string) {
	f.t.Helper()
	d := f.app(app)
	for ; !d.Rollout.Done; d = f.app(app) {
		<-time.After(10 * time.Millisecond)
	}
	if d.Rollout.Back != back {
		f.t.Errorf("%s went back: %q; want %q", app, d.Rollout.Back, back)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, i := range d.Instances {
		if i.Status != resources.Running || f.ran[i.Name] != version {
			f.t.Errorf("%s is %s and runs %q, want %q", i.Name, i.Status, f.ran[i.Name], version)
		}
	}
}

// app is a deployment as it is now.
func (f *office) app(name string) resources.Deployment {
	f.t.Helper()
	all, err := f.Gatekeeper().Deployments(f.ctx)
	f.must(err)
	for _, d := range all {
		if d.Spec.Name == name {
			return d
		}
	}
	f.t.Fatalf("no deployment %s", name)
	return resources.Deployment{}
}
