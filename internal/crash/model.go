package crash

import (
	"context"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// Expectation is what a program must come to.
type Expectation struct {
	Values  []uint64       // of the clients' scripts
	Refused []bool         // nobody refuses a client's script; kept for the oracle's sake
	Adds    []map[int]int  // by service: how often each operation has made an entry
	Bumps   []uint64       // by service
	Effects map[int]int    // how often each operation does something outside, at least
	Tries   map[int]Trial  // by operation
	unsure  map[int]uint64 // of Bumps, by service: that many more may be
	loose   map[int]int    // operations that have made so many entries at most, and need not have made any
}

// Trial is what a Try or a Hurry must come to, if it does not fail.
type Trial struct {
	Value   uint64
	Effects []int // the operations in it that do something outside
}

func (e *Expectation) spare(service int) uint64 { return e.unsure[service] }

// Model carries a program out without a rack: one thing after the other, nothing
// fails. It shares the interpreter with the rack, and nothing else.
func Model(p *Program) (*Expectation, error) {
	e := &Expectation{Effects: map[int]int{}, Tries: map[int]Trial{}}
	for range p.Services {
		e.Adds = append(e.Adds, map[int]int{})
		e.Bumps = append(e.Bumps, 0)
	}
	mem := &modelMemory{regions: map[dsm.Pointer][]byte{}}
	for i := range p.Clients {
		s := &p.Clients[i].Script
		out, err := newMachine(s, 0, nil).run(context.Background(), &modelWorld{e, mem, -1}, s)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.clientName(i), err)
		}
		e.Values = append(e.Values, out.Value)
		e.Refused = append(e.Refused, out.Refused)
	}
	return e, nil
}

type modelMemory struct {
	regions map[dsm.Pointer][]byte // by their first bytes' pointers
	last    uint32                 // how many there have been
}

// modelWorld is an execution in the model.
type modelWorld struct {
	*Expectation
	mem     *modelMemory
	service int
}

// find returns n bytes from p on.
func (m *modelMemory) find(p dsm.Pointer, n int) ([]byte, error) {
	at := int(p.Offset()) //nolint:gosec // 30 bits
	b, ok := m.regions[p.Base()]
	if !ok || at+n > len(b) {
		return nil, fmt.Errorf("crash: the program touches %d bytes at %s, which are nobody's", n, p)
	}
	return b[at : at+n], nil
}

func (w *modelWorld) Alloc(size int) (dsm.Pointer, error) {
	w.mem.last++
	p := dsmpacket.Make(1, 1, dsmpacket.IDOf(w.mem.last>>10, 1+w.mem.last&1023))
	w.mem.regions[p] = make([]byte, size)
	return p, nil
}

func (w *modelWorld) Write(_ int, p dsm.Pointer, at int, b []byte) error {
	to, err := w.mem.find(p.Add(int64(at)), len(b))
	copy(to, b)
	return err
}

func (w *modelWorld) Read(_ int, p dsm.Pointer, at int, b []byte) error {
	from, err := w.mem.find(p.Add(int64(at)), len(b))
	copy(b, from)
	return err
}

func (w *modelWorld) Free(p dsm.Pointer) error {
	_, err := w.mem.find(p, 0)
	delete(w.mem.regions, p)
	return err
}

func (w *modelWorld) Call(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error) {
	s := &op.Body[0]
	m := newMachine(s, noise, lent)
	m.Out.Value = uint64(op.N)
	return m.run(context.Background(), &modelWorld{w.Expectation, w.mem, op.Service}, s)
}

func (w *modelWorld) Post(op *Op, noise uint64, given []dsm.Pointer) error {
	_, err := w.Call(op, noise, given)
	return err
}

func (w *modelWorld) Try(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error) {
	out, err := w.Call(op, noise, lent)
	t := Trial{Value: out.Value}
	op.Body[0].each(op.Service, func(_ int, in *Op) {
		if in.Kind == Effect {
			t.Effects = append(t.Effects, in.N)
			w.Effects[in.N] = 0
		}
	})
	w.Tries[op.N] = t
	return 0, err
}

func (w *modelWorld) Hurry(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error) {
	out, err := w.Call(op, noise, lent)
	w.Tries[op.N] = Trial{Value: out.Value}
	return 0, err
}

func (w *modelWorld) Risk(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error) {
	return w.Call(op, noise, lent)
}

func (w *modelWorld) Go(f func(world) error) branch { return modelBranch{f(w)} }

type modelBranch struct{ err error }

func (b modelBranch) Wait() error { return b.err }

func (w *modelWorld) Any([]branch) (int, error) { return 0, nil }

func (w *modelWorld) Add(op *Op, _ uint64) (int, error) {
	w.Adds[w.service][op.N]++
	return 0, nil
}

func (w *modelWorld) Bump(*Op) (uint64, error) {
	w.Bumps[w.service]++
	return w.Bumps[w.service], nil
}

func (w *modelWorld) Effect(op *Op) (uint64, error) {
	w.Effects[op.N]++
	return 0, nil
}

func (w *modelWorld) Look() (uint64, error)     { return 0, nil }
func (w *modelWorld) Wait(time.Duration) error  { return nil }
func (w *modelWorld) Checkpoint(*machine) error { return nil }
