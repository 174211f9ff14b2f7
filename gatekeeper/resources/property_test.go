package resources

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// TestProperties runs random operations on a registry, plays the rack that
// carries its actions out, and checks after each what must always hold.
func TestProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		t.Repeat(map[string]func(*rapid.T){
			"":         w.check,
			"tick":     w.tick,
			"hello":    w.hello,
			"operate":  w.operate,
			"join":     w.join,
			"crash":    w.crash,
			"end":      w.end,
			"come up":  w.comeUp,
			"stop":     w.stopOne,
			"emptied":  w.emptied,
			"deploy":   w.deploy,
			"undeploy": w.undeploy,
			"rollback": w.rollback,
			"restart":  w.restart,
		})
		w.recover(t)
	})
}

const (
	worldBlades   = 5
	worldCapacity = 3
)

// world is the rack around a registry.
type world struct {
	r       *Registry
	exports exports
	now     time.Time
	nodes   uint64
	ending  map[netip.Addr]uint32
	stops   map[string]bool // instances told to stop
	empty   map[netip.Addr]uint32
	seen    map[string]bool   // identities handed out
	runs    map[string]string // what instances were started with last
	owed    map[string]string // what instances run that have begun to serve and not finished
	tries   map[string]int    // starts of such instances since their programs changed
}

func newWorld(t *rapid.T) *world {
	w := &world{
		now: time.Unix(0, 0).UTC(), ending: map[netip.Addr]uint32{}, stops: map[string]bool{}, empty: map[netip.Addr]uint32{},
		exports: exports{}, seen: map[string]bool{}, runs: map[string]string{}, owed: map[string]string{}, tries: map[string]int{},
	}
	var err error
	if w.r, err = New(DefaultConfig(), w.exports); err != nil {
		t.Fatal(err)
	}
	for i := range worldBlades {
		w.sayHello(t, i, false)
	}
	return w
}

func (w *world) sayHello(t *rapid.T, i int, restarted bool) {
	kind, capacity := Compute, uint64(worldCapacity)
	if i == worldBlades-1 {
		kind, capacity = Memory, 1<<20
	}
	actions, err := w.r.Hello(Hello{Blade: fmt.Sprintf("b%d", i), Kind: kind, Capacity: capacity, Restarted: restarted}, w.now)
	if b, ok := w.r.Blade(fmt.Sprintf("b%d", i)); err != nil && (!ok || b.Mark != Failed) {
		t.Fatal(err)
	}
	w.do(t, actions)
}

// do carries actions out.
func (w *world) do(t *rapid.T, actions []Action) {
	for _, a := range actions {
		switch a := a.(type) {
		case StartNode:
			w.checkProgram(t, a)
		case EndNode:
			w.ending[a.Node.Address] = a.Node.Incarnation
		case EmptyNode:
			w.empty[a.Node.Address] = a.Node.Incarnation
		case StopNode:
			w.stops[a.Instance] = true
		}
	}
}

// joins has a program join, and takes note of the node that it is.
func (w *world) joins(t *rapid.T, blade, name string) (Node, []Action, error) {
	w.nodes++
	n, actions, err := w.r.Join(blade, name, Node{Address: rackaddr.Node(w.nodes), Incarnation: uint32(w.nodes)}, w.now)
	if err != nil {
		return n, actions, err
	}
	id := fmt.Sprint(n.Address, n.Incarnation)
	if w.seen[id] {
		t.Fatalf("%s is handed out twice", id)
	}
	w.seen[id] = true
	return n, actions, nil
}

// checkProgram checks that a node that goes on with what another one has begun runs the same,
// unless that has been tried often enough.
func (w *world) checkProgram(t *rapid.T, a StartNode) {
	p, i := w.r.instance(a.Instance)
	if p == nil || a.Heir != p.app.Removed || a.Heir && (!a.Address.IsValid() || i.Tries >= attempts) {
		t.Fatalf("%+v is started", a)
	}
	if a.Heir {
		return
	}
	w.runs[a.Instance] = a.Args[0]
	was := w.owed[a.Instance]
	if was == "" {
		return
	}
	if was != a.Args[0] {
		if w.tries[a.Instance] < attempts-1 {
			t.Fatalf("%s was %s, has not finished, and is started as %s", a.Instance, was, a.Args[0])
		}
		delete(w.owed, a.Instance)
		return
	}
	w.tries[a.Instance]++
}

func (w *world) tick(t *rapid.T) {
	w.now = w.now.Add(time.Duration(rapid.SampledFrom([]int{50, 100, 200, 5000, 40000}).Draw(t, "ms")) * time.Millisecond)
	w.do(t, w.r.Tick(w.now))
}

func (w *world) hello(t *rapid.T) {
	w.sayHello(t, rapid.IntRange(0, worldBlades-1).Draw(t, "blade"), rapid.Bool().Draw(t, "restarted"))
}

func (w *world) operate(t *rapid.T) {
	blade := fmt.Sprintf("b%d", rapid.IntRange(0, worldBlades-1).Draw(t, "blade"))
	var actions []Action
	switch rapid.IntRange(0, 4).Draw(t, "operation") {
	case 0:
		actions, _ = w.r.Drain(blade, "", w.now)
	case 1:
		actions, _ = w.r.MarkFailed(blade, "", w.now)
	case 2, 3:
		actions, _ = w.r.Return(blade, w.now)
	case 4:
		actions = w.r.Lost(blade, "silent", w.now)
	}
	w.do(t, actions)
}

func (w *world) join(t *rapid.T) {
	n, actions, err := w.joins(t, fmt.Sprintf("b%d", rapid.IntRange(0, worldBlades-1).Draw(t, "blade")), "free")
	w.do(t, actions)
	if err == nil {
		_ = w.export(t, n, rapid.SampledFrom([]string{"S0", "S1", "T"}).Draw(t, "service"))
	}
}

// export has a node export a service, if it may.
func (w *world) export(t *rapid.T, n Node, service string) error {
	if err := w.r.MayExport(n.Address, n.Incarnation, service); err != nil {
		return err
	}
	w.exports[export{n.Address, n.Incarnation, service}] = true
	w.r.Began(n.Address)
	if n.Instance != "" {
		w.owed[n.Instance] = w.runs[n.Instance]
	}
	w.do(t, w.r.Exported(w.now))
	return nil
}

// crash ends any node, or lets it say goodbye.
func (w *world) crash(t *rapid.T) {
	if all := w.r.Nodes(""); len(all) > 0 {
		n := rapid.SampledFrom(all).Draw(t, "node")
		w.do(t, w.r.Leave(n.Address, n.Incarnation, rapid.Bool().Draw(t, "crashed"), "", w.now))
	}
}

// end answers one EndNode.
func (w *world) end(t *rapid.T) {
	if len(w.ending) == 0 {
		return
	}
	a := rapid.SampledFrom(slices.SortedFunc(maps.Keys(w.ending), netip.Addr.Compare)).Draw(t, "node")
	incarnation := w.ending[a]
	delete(w.ending, a)
	w.do(t, w.r.Ended(a, incarnation, rapid.Bool().Draw(t, "keep"), w.now))
}

// comeUp lets one started program join, or fail to.
func (w *world) comeUp(t *rapid.T) {
	for _, d := range w.r.Deployments() {
		for _, i := range d.Instances {
			if i.Status != Starting || !rapid.Bool().Draw(t, "this one") {
				continue
			}
			if rapid.IntRange(0, 4).Draw(t, "fails") == 0 {
				w.do(t, w.r.StartFailed(i.Name, i.Blade, "broken", w.now))
			} else {
				w.joinInstance(t, i)
			}
			return
		}
	}
}

func (w *world) joinInstance(t *rapid.T, i Instance) {
	n, actions, err := w.joins(t, i.Blade, i.Name)
	if err != nil {
		t.Fatalf("%s cannot join where it was started: %v", i.Name, err)
	}
	delete(w.stops, i.Name)
	w.do(t, actions)
	p, _ := w.r.instance(i.Name)
	for _, s := range p.spec.Services {
		if i.Heir {
			break
		}
		if err := w.export(t, n, s.Name); err != nil && !w.exportedByFree(s.Name) {
			t.Fatalf("%s cannot export %s: %v", i.Name, s.Name, err)
		}
	}
}

// exportedByFree reports whether a program that nobody deployed has a service,
// which keeps others of its blade from exporting it.
func (w *world) exportedByFree(service string) bool {
	return slices.ContainsFunc(w.r.Nodes(""), func(n Node) bool { return n.Instance == "" && slices.Contains(w.exports.of(n), service) })
}

// stopOne lets a program that was told to stop leave, or else an heir.
func (w *world) stopOne(t *rapid.T) {
	for _, d := range w.r.Deployments() {
		for _, i := range d.Instances {
			if i.Heir && i.Status == Running && len(w.stops) == 0 {
				w.stops[i.Name] = true
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(w.stops)) {
		delete(w.stops, name)
		for _, n := range w.r.Nodes("") {
			if n.Instance == name {
				w.do(t, w.r.Leave(n.Address, n.Incarnation, false, "stopped", w.now))
				return
			}
		}
	}
}

// emptied answers one EmptyNode.
func (w *world) emptied(t *rapid.T) {
	all := slices.SortedFunc(maps.Keys(w.empty), netip.Addr.Compare)
	if len(all) == 0 {
		return
	}
	a, incarnation := all[0], w.empty[all[0]]
	delete(w.empty, a)
	if n := w.r.nodes[a]; n != nil && n.Incarnation == incarnation && !n.Ending {
		delete(w.owed, n.Instance)
	}
	w.do(t, w.r.Emptied(a, incarnation, w.now))
}

func (w *world) deploy(t *rapid.T) {
	k := rapid.IntRange(0, 1).Draw(t, "app")
	s := Spec{Name: fmt.Sprintf("app%d", k), Programs: []Program{
		{
			Name: "p", Args: []string{rapid.SampledFrom([]string{"p1", "p2", "p3"}).Draw(t, "program")}, Services: []ServiceSpec{{Name: fmt.Sprintf("S%d", k)}},
			Nodes: rapid.IntRange(0, 3).Draw(t, "nodes"), Spares: rapid.IntRange(0, 2).Draw(t, "spares"),
		},
		{Name: "q", Args: []string{rapid.SampledFrom([]string{"q1", "q2"}).Draw(t, "other program")}, Services: []ServiceSpec{{Name: fmt.Sprintf("Q%d", k), Stateful: true}}, Nodes: rapid.IntRange(0, 1).Draw(t, "stateful")},
	}}
	clear(w.tries)
	if w.r.apps[s.Name] == nil {
		maps.DeleteFunc(w.owed, func(instance, _ string) bool { return strings.HasPrefix(instance, s.Name+"/") })
	}
	actions, err := w.r.Deploy(s, w.now)
	if err != nil && len(actions) > 0 {
		t.Fatalf("refused, but acts: %v", actions)
	}
	w.do(t, actions)
}

func (w *world) rollback(t *rapid.T) {
	clear(w.tries)
	actions, _ := w.r.Rollback(fmt.Sprintf("app%d", rapid.IntRange(0, 1).Draw(t, "app")), w.now)
	w.do(t, actions)
}

func (w *world) undeploy(t *rapid.T) {
	actions, _ := w.r.Undeploy(fmt.Sprintf("app%d", rapid.IntRange(0, 1).Draw(t, "app")), w.now)
	w.do(t, actions)
}

func (w *world) restart(t *rapid.T) {
	data, err := w.r.Save()
	if err != nil {
		t.Fatal(err)
	}
	r, err := Load(w.r.cfg, w.exports, data, w.now)
	if err != nil {
		t.Fatal(err)
	}
	again, err := r.Save()
	if err != nil || !bytes.Equal(normalise(data), normalise(again)) {
		t.Fatalf("%s\nbecame\n%s, %v", data, again, err)
	}
	w.r = r
	w.do(t, r.Resume(w.now))
}

// recover makes everything well again: then every deployment must be complete,
// unless free programs are in its way.
func (w *world) recover(t *rapid.T) {
	for i := range worldBlades {
		blade := fmt.Sprintf("b%d", i)
		actions, _ := w.r.Return(blade, w.now)
		w.do(t, actions)
		w.sayHello(t, i, false)
	}
	for _, n := range w.r.Nodes("") {
		if n.Instance == "" {
			w.do(t, w.r.Leave(n.Address, n.Incarnation, false, "", w.now))
		}
	}
	for range 60 { // longer than any pause after a failure
		for a, incarnation := range maps.Clone(w.ending) {
			delete(w.ending, a)
			w.do(t, w.r.Ended(a, incarnation, true, w.now))
		}
		w.emptied(t)
		w.stopOne(t)
		for _, d := range w.r.Deployments() {
			for _, i := range d.Instances {
				if _, now := w.r.instance(i.Name); now != nil && now.Status == Starting {
					w.joinInstance(t, *now)
				}
			}
		}
		w.check(t)
		w.now = w.now.Add(250 * time.Millisecond)
		w.do(t, w.r.Tick(w.now))
	}
	for _, d := range w.r.Deployments() {
		if d.Removed {
			t.Fatalf("%s was undeployed, but is there", d.Spec.Name)
		}
		for _, i := range d.Instances {
			if i.Status != Running {
				t.Fatalf("%s is %s although all blades are back", i.Name, i.Status)
			}
			if p := find(&d.Spec, i.Program); w.runs[i.Name] != p.Args[0] || i.Revision != d.Rollout.Revision {
				t.Fatalf("%s runs %s, revision %d, is to run %s, revision %d", i.Name, w.runs[i.Name], i.Revision, p.Args[0], d.Rollout.Revision)
			}
		}
	}
}

var times = regexp.MustCompile(`"since":"[^"]*"`)

// normalise removes the times that Load changes.
func normalise(data []byte) []byte {
	return times.ReplaceAll(data, nil)
}
