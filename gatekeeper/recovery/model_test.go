package recovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/gatekeeper/execution"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// mainProgram is what the durable main does: programs with checkpoints between.
func mainProgram(r *rack) (ops []op) {
	for k := range r.mains {
		ops = append(ops, program(r.seed+uint64(k), 2, true)...)
		ops = append(ops, op{kind: checkpoint})
	}
	return append(ops, op{kind: end})
}

// clientProgram is what the plain client does.
func clientProgram(r *rack) (ops []op) {
	rnd := rand.New(rand.NewPCG(r.seed, 3))
	for range r.clients {
		ops = append(ops, op{kind: call + opKind(rnd.IntN(2)), service: rnd.IntN(servers), lend: rnd.IntN(2) == 0, seed: rnd.Uint64()})
	}
	return ops
}

// workload starts the durable main and the plain client.
func (r *rack) workload() {
	if r.mains > 0 {
		r.start(wal.Node{Address: mainAddr, Incarnation: 1})
	}
	if r.clients > 0 {
		r.start(wal.Node{Address: clientAddr, Incarnation: 1})
		p := r.identity[clientAddr]
		p.main, p.begun = &run{ops: clientProgram(r), depth: 3, serial: true, session: true, past: map[uint32]byte{}, answers: map[rpcpacket.ID]bool{}}, true
	}
}

// runnable returns all that processes can do now.
func (r *rack) runnable() (steps []func()) {
	for _, p := range r.procs {
		if !p.alive {
			continue
		}
		if p.self.Address == mainAddr && !p.begun && !p.over && p.asked != r.life && r.identity[mainAddr] == p {
			steps = append(steps, func() { p.ask() })
		}
		for _, e := range p.sorted() {
			steps = append(steps, func() { p.step(e) })
		}
		if e := p.main; e != nil && p.begun && !p.over && e.pc < len(e.ops) {
			steps = append(steps, func() { p.step(e) })
		}
	}
	return steps
}

func (p *process) ask() {
	p.asked = p.r.life
	p.r.later("begin", func() {
		out, err := p.r.table.Begin(mainID, "m", p.self, 1, 0)
		if err != nil {
			p.r.note("begin: %v", err)
		}
		p.r.execution(out)
	})
}

// happen lets an event happen.
func (r *rack) happen(i int) {
	e := r.events[i]
	r.events = slices.Delete(r.events, i, i+1)
	r.note("%s", e.name)
	e.do()
}

// act does something at random.
func (r *rack) act(crashes *int) {
	steps := r.runnable()
	switch n := r.rnd.IntN(100); {
	case n < 3 && *crashes > 0:
		*crashes--
		r.crash()
	case n < 5 && *crashes > 0:
		*crashes--
		r.killGatekeeper()
	case n < 8:
		r.detect()
	case n < 12:
		r.fill()
	case n < 13:
		r.execution(r.table.Again())
	case n < 50 && len(r.queue) > 0:
		r.logNext()
	case n < 75 && len(r.events) > 0:
		r.happen(r.rnd.IntN(len(r.events)))
	case len(steps) > 0:
		steps[r.rnd.IntN(len(steps))]()
	}
}

// crash kills a process, or has it only suspected of having died.
func (r *rack) crash() {
	p := r.procs[r.rnd.IntN(len(r.procs))]
	p.suspect = true
	if r.rnd.IntN(2) == 0 {
		p.alive = false
	}
	r.note("crash of %v, alive %v", p.self, p.alive)
}

// fill starts what waits for a spare.
func (r *rack) fill() {
	if len(r.unplaced) > 0 {
		n := r.unplaced[0]
		r.unplaced = r.unplaced[1:]
		r.start(n)
	}
}

// settle lets everything come to its end, without further failures.
func (r *rack) settle() {
	r.trouble = 0
	for range 500 {
		r.detect()
		r.execution(r.table.Again())
		for len(r.queue) > 0 {
			r.logNext()
		}
		for len(r.events) > 0 {
			r.happen(r.rnd.IntN(len(r.events)))
			for len(r.queue) > 0 {
				r.logNext()
			}
		}
		r.fill()
		r.procs = slices.DeleteFunc(r.procs, func(p *process) bool { return r.identity[p.self.Address] != p && p.suspect })
		steps := r.runnable()
		if _, open := r.table.Calls(); len(steps) == 0 && open == 0 && len(r.queue)+len(r.events)+len(r.unplaced) == 0 {
			return
		}
		for _, s := range steps {
			s()
		}
	}
	calls, open := r.table.Calls()
	r.fatalf("it does not end: %d calls, %d open, recoveries %+v, unplaced %v", calls, open, r.machine.Recoveries(), r.unplaced)
}

// expect finds what an execution has to leave behind, and its calls.
func (r *rack) expect(id rpcpacket.ID, ops []op, index uint32, depth int, serial bool, session bool) {
	var want []string
	for pc, o := range ops {
		switch o.kind {
		case write:
			want = append(want, fmt.Sprint(pc))
			continue
		case call, oneway:
			index++
			child := endpoint.ChildID(nil, id, 0, index)
			if session {
				child = rpcpacket.SessionID(77, uint64(index))
			}
			below := serial && o.service != servers-1
			r.serials += b2i(o.service == servers-1)
			r.expect(child, program(o.seed, depth-1, below), 0, depth-1, below, false)
		default:
			index++
		}
	}
	if session {
		return
	}
	if got := r.memory.kept[id]; !slices.Equal(got, want) {
		r.fatalf("%s has written %v for good, want %v", id, got, want)
	}
	if id != mainID && !r.memory.ended[id] {
		r.fatalf("%s has not committed", id)
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// check compares the end with a run without failures.
func (r *rack) check(client bool) {
	if r.mains > 0 {
		r.expect(mainID, mainProgram(r), 0, 2, true, false)
	}
	if client {
		r.expect(rpcpacket.ID{}, clientProgram(r), 0, 3, true, true)
	}
	sections, _ := r.table.State(servers - 1)
	seen := map[rpcpacket.ID]int{}
	ss, _ := trailer.Parse(sections)
	for _, s := range ss {
		for b := s.Data; len(b) > 0; b = b[16:] {
			seen[rpcpacket.ID(b[:16])]++
		}
	}
	for id, n := range seen {
		if n != 1 {
			r.fatalf("the state has call %s %d times", id, n)
		}
	}
	if client && len(seen) != r.serials {
		r.fatalf("the state has %d calls, want %d", len(seen), r.serials)
	}
	r.checkEmpty()
}

// checkEmpty checks that nothing is left of calls and recoveries.
func (r *rack) checkEmpty() {
	if n := len(r.memory.open); n > 0 {
		r.fatalf("%d executions have written what is neither kept nor undone", n)
	}
	if calls, _ := r.table.Calls(); calls > 0 {
		r.fatalf("%d calls are left", calls)
	}
	if left := r.machine.Recoveries(); len(left) > 0 {
		r.fatalf("recoveries are left: %+v", left)
	}
	for k, rec := range r.disk {
		if k.Kind != wal.KindState && k.Kind != wal.KindCheckpoint && (k.Kind != wal.KindReply || rec.Order == 0) {
			r.fatalf("record %s is left: %+v", k, rec)
		}
	}
}

// TestExactlyOnce runs random programs, kills processes, has others suspected that
// go on, and kills Gatekeepers, at random times: in the end, each call was
// executed and committed exactly once, and nothing is left.
func TestExactlyOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		seed := rapid.Uint64().Draw(rt, "seed")
		runSeed(t, seed, rapid.IntRange(0, 12).Draw(rt, "crashes"))
	})
}

// TestKillEverywhere kills the Gatekeeper at each step of some runs in which a
// process fails, its spare, and the durable main.
func TestKillEverywhere(t *testing.T) {
	for seed := range uint64(4) {
		for at := 0; at < 900; at += 6 {
			r := newRack(t, seed)
			r.seed, r.mains, r.clients = seed, 2, 2
			r.workload()
			crashes := 0
			for step := range 900 {
				switch step {
				case at:
					r.killGatekeeper()
				case 150, 350:
					r.suspect(r.identity[serverAddr(int(seed)%servers)])
				case 250:
					r.suspect(r.identity[mainAddr])
				}
				r.act(&crashes)
			}
			r.settle()
			p := r.identity[clientAddr]
			p.suspect, p.alive = true, false // it leaves
			r.settle()
			r.check(true)
		}
	}
}

// suspect has the Gatekeeper believe that a process has died; it goes on.
func (r *rack) suspect(p *process) {
	if p != nil {
		p.suspect = true
		r.detect()
	}
}

// TestAllOrNothing is the same with nodes that nobody starts again, and calls that
// fail when they were cut off twice: what each call did is there as a whole, or not
// at all.
func TestAllOrNothing(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := newRack(t, rapid.Uint64().Draw(rt, "seed"))
		r.limit, r.table, r.aborts = 2, execution.New(2), true
		for i := range servers {
			r.homes[serverAddr(i)] = r.rnd.IntN(2) == 0
			r.execution(r.table.Up(wal.Node{Address: serverAddr(i), Incarnation: 1}, uint64(i)))
		}
		crashes := 12
		r.seed, r.mains, r.clients, r.trouble = r.rnd.Uint64(), 2, 3, 0.2*r.rnd.Float64()
		r.workload()
		for range 200 + r.rnd.IntN(1500) {
			r.act(&crashes)
		}
		r.settle()
		if p := r.identity[clientAddr]; p != nil {
			p.suspect, p.alive = true, false
			r.settle()
		}
		for id, ops := range r.ops {
			var want []string
			for pc, o := range ops {
				if o.kind == write && r.memory.ended[id] {
					want = append(want, fmt.Sprint(pc))
				}
			}
			if got := r.memory.kept[id]; !slices.Equal(got, want) {
				r.fatalf("%s has written %v for good, want %v", id, got, want)
			}
		}
		r.checkEmpty()
	})
}

func runSeed(t *testing.T, seed uint64, crashes int) {
	r := newRack(t, seed)
	r.note("seed %d, %d crashes", seed, crashes)
	r.seed, r.mains, r.clients, r.trouble = seed, r.rnd.IntN(3), r.rnd.IntN(4), 0.2*r.rnd.Float64()
	r.workload()
	client := r.identity[clientAddr]
	for range 200 + r.rnd.IntN(1500) {
		r.act(&crashes)
	}
	r.settle()
	whole := client != nil && !client.suspect
	if whole {
		client.suspect, client.alive = true, false // it leaves
		r.settle()
	}
	r.check(whole)
}

// TestSeeds runs the same programs every time.
func TestSeeds(t *testing.T) {
	for seed := range uint64(300) {
		runSeed(t, seed, int(seed%12))
	}
}
