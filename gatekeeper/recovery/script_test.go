package recovery

import (
	"fmt"
	"io"
	"iter"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/script"
)

// TestScripts runs testdata/*.txt: what happens, and what the Machine makes of it.
//
//	up A                         A's next incarnation joins
//	fail A… [gone]               nodes fail together
//	unidentified A; fenced m1 A  the switch, or a memory server, has done it
//	server m1; noserver m1       memory servers come and go
//	restart m1… A…               the Gatekeeper is killed, and begins with its log; these are there
//	recoveries; log
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func() script.Command { return newScript().command })
}

// scripted is the state of one script.
type scripted struct {
	machine *Machine
	disk    map[wal.Key]wal.Record
	inc     map[string]uint32
	out     io.Writer
}

func newScript() *scripted {
	return &scripted{machine: New(), disk: map[wal.Key]wal.Record{}, inc: map[string]uint32{}}
}

func (s *scripted) node(name string) wal.Node {
	return wal.Node{Address: rackaddr.Node(uint64(name[0] - 'A' + 1)), Incarnation: s.inc[name]}
}

func nameOf(n wal.Node) string {
	return fmt.Sprintf("%c%d", 'A'+rune(n.Address.As16()[15])-1, n.Incarnation)
}

func (s *scripted) command(out io.Writer, f []string) error {
	s.out = out
	switch f[0] {
	case "up":
		s.inc[f[1]]++
		s.act(s.machine.Joined(s.node(f[1])))
	case "fail":
		gone := f[len(f)-1] == "gone"
		var failures []Failure
		for _, name := range f[1:] {
			if name != "gone" {
				failures = append(failures, Failure{s.node(name), gone, "it has failed"})
			}
		}
		s.act(s.machine.Fail(time.Unix(1, 0), failures...))
	case "unidentified":
		s.act(s.machine.Unidentified(s.node(f[1])))
	case "fenced":
		s.act(s.machine.Fenced(Server(f[1]), s.node(f[2])))
	case "server":
		s.act(s.machine.AddServer(Server(f[1])))
	case "noserver":
		s.act(s.machine.RemoveServer(Server(f[1])))
	case "restart":
		return s.restart(f[1:])
	case "recoveries":
		for _, v := range s.machine.Recoveries() {
			fmt.Fprintf(s.out, "%s %s, waits for %+v\n", nameOf(v.Node), v.Phase, v.Waits)
		}
	case "log":
		for _, r := range s.records() {
			fmt.Fprintf(s.out, "%s %s\n", r.Kind, nameOf(r.Callee))
		}
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

// act logs what the Machine has changed, and prints what it wants.
func (s *scripted) act(o Output) {
	s.log(o)
	for _, a := range o.Actions {
		switch a := a.(type) {
		case Unidentify:
			fmt.Fprintf(s.out, "unidentify %s\n", nameOf(a.Node))
		case Fence:
			gone := ""
			if a.Gone {
				gone = ", for good"
			}
			fmt.Fprintf(s.out, "fence %s at %s%s\n", nameOf(a.Node), a.Server, gone)
		case Fenced:
			fmt.Fprintf(s.out, "%c is cut off\n", 'A'+rune(a.Node.As16()[15])-1)
		case Place:
			fmt.Fprintf(s.out, "place %s, keep %v\n", nameOf(a.Node), a.Keep)
		case Recovered:
			fmt.Fprintf(s.out, "%s recovered\n", nameOf(a.Node))
		}
	}
}

func (s *scripted) log(o Output) {
	for _, r := range o.Put {
		s.disk[r.Key()] = r
	}
	for _, k := range o.Delete {
		delete(s.disk, k)
	}
}

func (s *scripted) records() []wal.Record {
	return slices.SortedFunc(maps.Values(s.disk), func(a, b wal.Record) int { return a.Callee.Address.Compare(b.Callee.Address) })
}

func (s *scripted) all() iter.Seq2[wal.Record, error] {
	return func(yield func(wal.Record, error) bool) {
		for _, r := range s.records() {
			if !yield(r, nil) {
				return
			}
		}
	}
}

func (s *scripted) restart(there []string) (err error) {
	if s.machine, err = Load(s.all()); err != nil {
		return err
	}
	var nodes []wal.Node
	for _, name := range there {
		if name[0] >= 'a' {
			s.machine.AddServer(Server(name))
		} else {
			nodes = append(nodes, s.node(name))
		}
	}
	s.act(s.machine.Resume())
	for _, n := range nodes {
		s.act(s.machine.Joined(n))
	}
	return nil
}

// TestKillEverywhere has nodes fail and come back while memory servers come and go and answer late, and kills the Gatekeeper at any
// step. No node is placed before the switch and each memory server in service have cut it off, and at last all are back.
func TestKillEverywhere(t *testing.T) {
	for seed := range uint64(300) {
		newWorld(t, seed).run()
	}
}

// world is a rack of three nodes and two memory servers, with a Gatekeeper that is killed.
type world struct {
	t   *testing.T
	rnd *rand.Rand
	*scripted
	servers map[Server]bool
	fenced  map[Server]map[netip.Addr]uint32
	cut     map[netip.Addr]uint32
	present map[netip.Addr]uint32 // incarnations that run
	waits   map[netip.Addr]wal.Node
	asked   []Action // that have not been answered
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), scripted: newScript(), servers: map[Server]bool{}, fenced: map[Server]map[netip.Addr]uint32{},
		cut: map[netip.Addr]uint32{}, present: map[netip.Addr]uint32{}, waits: map[netip.Addr]wal.Node{},
	}
	for _, s := range []Server{"m1", "m2"} {
		w.fenced[s] = map[netip.Addr]uint32{}
		w.serve(s)
	}
	for i := range uint64(3) {
		w.join(wal.Node{Address: rackaddr.Node(i + 1), Incarnation: 1})
	}
	return w
}

func (w *world) serve(s Server) {
	w.servers[s] = true
	w.do(w.machine.AddServer(s))
}

func (w *world) join(n wal.Node) {
	w.present[n.Address] = n.Incarnation
	delete(w.waits, n.Address)
	w.do(w.machine.Joined(n))
}

// do logs an Output, and carries it out, unless the Gatekeeper is killed before.
func (w *world) do(o Output) {
	w.log(o)
	if w.rnd.IntN(8) == 0 {
		w.kill()
		return
	}
	for _, a := range o.Actions {
		switch a := a.(type) {
		case Place:
			w.placed(a)
		case Unidentify, Fence:
			w.asked = append(w.asked, a)
		default:
		}
	}
}

// placed checks that a node is cut off that is to run elsewhere.
func (w *world) placed(a Place) {
	n := a.Node
	if n.Incarnation < w.present[n.Address] {
		return // it was before the Gatekeeper was killed, and is told again
	}
	if w.cut[n.Address] < n.Incarnation {
		w.t.Fatalf("%s is placed, and has its identity", nameOf(n))
	}
	for s := range w.servers {
		if w.fenced[s][n.Address] < n.Incarnation {
			w.t.Fatalf("%s is placed, and %s obeys it", nameOf(n), s)
		}
	}
	w.waits[n.Address] = n
}

// kill begins anew with the log.
func (w *world) kill() {
	var err error
	if w.machine, err = Load(w.all()); err != nil {
		w.t.Fatal(err)
	}
	w.asked = nil
	for s := range w.servers {
		w.log(w.machine.AddServer(s))
	}
	w.do(w.machine.Resume())
	for a, i := range w.present {
		w.do(w.machine.Joined(wal.Node{Address: a, Incarnation: i}))
	}
}

// answer answers something that was asked, in any order.
func (w *world) answer() {
	i := w.rnd.IntN(len(w.asked))
	a := w.asked[i]
	w.asked = slices.Delete(w.asked, i, i+1)
	switch a := a.(type) {
	case Unidentify:
		w.cut[a.Node.Address] = max(w.cut[a.Node.Address], a.Node.Incarnation)
		w.do(w.machine.Unidentified(a.Node))
	case Fence:
		if w.servers[a.Server] {
			w.fenced[a.Server][a.Node.Address] = max(w.fenced[a.Server][a.Node.Address], a.Node.Incarnation)
			w.do(w.machine.Fenced(a.Server, a.Node))
		}
	}
}

func (w *world) run() {
	for range 60 {
		switch node := rackaddr.Node(w.rnd.Uint64N(3) + 1); w.rnd.IntN(8) {
		case 0:
			if _, waits := w.waits[node]; !waits {
				w.do(w.machine.Fail(time.Unix(1, 0), Failure{Node: wal.Node{Address: node, Incarnation: w.present[node]}}))
			}
		case 1:
			if s := []Server{"m1", "m2"}[w.rnd.IntN(2)]; w.servers[s] {
				delete(w.servers, s)
				w.do(w.machine.RemoveServer(s))
			} else {
				for a := range w.cut { // it is told what it has missed before it serves
					w.fenced[s][a] = max(w.fenced[s][a], w.cut[a])
				}
				w.serve(s)
			}
		case 2:
			if n, waits := w.waits[node]; waits {
				w.join(wal.Node{Address: node, Incarnation: n.Incarnation + 1})
			}
		default:
			if len(w.asked) > 0 {
				w.answer()
			}
		}
	}
	w.end()
}

// end lets all end, and checks that nothing is left.
func (w *world) end() {
	for range 1000 {
		switch {
		case len(w.asked) > 0:
			w.answer()
		case len(w.waits) > 0:
			for a, n := range w.waits {
				w.join(wal.Node{Address: a, Incarnation: n.Incarnation + 1})
				break
			}
		case len(w.disk) == 0:
			return
		default:
			w.kill()
		}
	}
	w.t.Fatalf("left: %+v", w.machine.Recoveries())
}
