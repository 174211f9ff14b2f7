package crash

import (
	"context"
	"encoding/binary"
	"errors"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
)

// world is where a script is carried out: a rack, or the model. Its errors end the
// script.
type world interface {
	Alloc(size int) (dsm.Pointer, error)
	// Write and Read are at a byte of the region that p begins. op is the
	// operation's number.
	Write(op int, p dsm.Pointer, at int, b []byte) error
	Read(op int, p dsm.Pointer, at int, b []byte) error
	Free(p dsm.Pointer) error
	Call(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error)
	Post(op *Op, noise uint64, given []dsm.Pointer) error
	// Try and Hurry return what is to go into the noise.
	Try(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error)
	Hurry(op *Op, noise uint64, lent []dsm.Pointer) (uint64, error)
	// Risk returns a refused outcome for a failure that may be.
	Risk(op *Op, noise uint64, lent []dsm.Pointer) (Outcome, error)
	// Go carries out f beside the rest, in a world of its own.
	Go(f func(world) error) branch
	// Any waits for one of the branches and tells which.
	Any([]branch) (int, error)
	// Add makes an entry in the service's state and returns how many there are.
	Add(op *Op, noise uint64) (int, error)
	Bump(op *Op) (uint64, error)
	Effect(op *Op) (uint64, error)
	Look() (uint64, error)
	Wait(time.Duration) error
	Checkpoint(*machine) error
}

// branch is a part that runs beside others.
type branch interface{ Wait() error }

// Mark is an entry that an operation has made in a service's state, and what the
// operation knew then.
type Mark struct {
	Op    int
	Value uint64
}

// Outcome is what came out of a script. Value depends on the program alone; Noise
// and the values of the Marks on all that was left to chance: time, dice, who was
// first. They travel in calls and their answers, so that a re-run that sees
// something else than the run before is noticed.
type Outcome struct {
	Value, Noise uint64
	Marks        []Mark
	Region       dsm.Pointer // nil for none
	Refused      bool        // it ended with a declared exception
}

// machine is a script that is carried out; as data, so that a durable main can
// keep it.
type machine struct {
	Next  int           `json:"next"` // operation
	Out   Outcome       `json:"out"`
	Slots []dsm.Pointer `json:"slots"`
}

func newMachine(s *Script, noise uint64, lent []dsm.Pointer) *machine {
	m := &machine{Out: Outcome{Noise: noise}, Slots: make([]dsm.Pointer, max(s.Slots, len(lent)))}
	copy(m.Slots, lent)
	return m
}

// errNoSuchSlot is a mistake in the program.
var errNoSuchSlot = errors.New("crash: the script names a slot that it does not have")

// run carries out the rest of a script.
func (m *machine) run(ctx context.Context, w world, s *Script) (Outcome, error) {
	for m.Next < len(s.Ops) {
		op := &s.Ops[m.Next]
		m.Next++
		if err := ctx.Err(); err != nil {
			return Outcome{}, err
		}
		if op.Kind == Fail {
			m.Out.Refused = true
			return m.Out, nil
		}
		if err := m.step(ctx, w, op); err != nil {
			return Outcome{}, err
		}
	}
	if s.Result >= 0 {
		m.Out.Region = m.Slots[s.Result]
	}
	return m.Out, nil
}

func (m *machine) step(ctx context.Context, w world, op *Op) error {
	if op.Slot >= len(m.Slots) && op.Slot > 0 {
		return errNoSuchSlot
	}
	switch op.Kind {
	case Alloc, Write, Read, Free:
		return m.memory(w, op)
	case Call:
		out, err := w.Call(op, m.Out.Noise, m.pick(op.Lend))
		if err != nil {
			return err
		}
		m.fold(out)
		if op.Slot >= 0 {
			m.Slots[op.Slot] = out.Region
		}
		return nil
	case Post:
		err := w.Post(op, m.Out.Noise, m.pick(op.Lend))
		m.drop(op.Lend)
		return err
	case Try:
		seen, err := w.Try(op, m.Out.Noise, m.pick(op.Lend))
		m.Out.Noise = mix(m.Out.Noise, seen)
		return err
	case Risk:
		out, err := w.Risk(op, m.Out.Noise, m.pick(op.Lend))
		m.Out.Noise = mix(m.Out.Noise, out.Noise)
		m.Out.Marks = append(m.Out.Marks, out.Marks...)
		return err
	case Hurry:
		seen, err := w.Hurry(op, m.Out.Noise, m.pick(op.Lend))
		m.Out.Noise = mix(m.Out.Noise, seen)
		return err
	case Fork, Race:
		return m.fork(ctx, w, op)
	case Checkpoint:
		return w.Checkpoint(m)
	}
	return m.other(w, op)
}

// memory carries out what is done to regions.
func (m *machine) memory(w world, op *Op) (err error) {
	b := make([]byte, op.Size)
	p := m.Slots[op.Slot]
	switch op.Kind {
	case Alloc:
		m.Slots[op.Slot], err = w.Alloc(op.Size)
	case Write:
		fill(b, mix(m.Out.Value, uint64(op.N)))
		err = w.Write(op.N, p, op.At, b)
	case Read:
		if err = w.Read(op.N, p, op.At, b); err == nil {
			m.Out.Value = mix(m.Out.Value, digest(b))
		}
	case Free:
		err = w.Free(m.Slots[op.Slot])
		m.drop([]int{op.Slot})
	}
	return err
}

// other carries out what concerns neither regions nor other services.
func (m *machine) other(w world, op *Op) error {
	var seen uint64
	var err error
	switch op.Kind {
	case Add:
		var n int
		if n, err = w.Add(op, m.Out.Noise); err == nil {
			seen = uint64(n)
			m.Out.Marks = append(m.Out.Marks, Mark{op.N, markOf(m.Out.Noise, n)})
		}
	case Bump:
		seen, err = w.Bump(op)
	case Effect:
		seen, err = w.Effect(op)
	case Look:
		seen, err = w.Look()
	case Wait:
		err = w.Wait(op.Within)
	default:
		return errors.New("crash: no operation " + string(op.Kind))
	}
	m.Out.Noise = mix(m.Out.Noise, seen)
	return err
}

// fork runs scripts beside each other.
func (m *machine) fork(ctx context.Context, w world, op *Op) error {
	outs := make([]Outcome, len(op.Body))
	branches := make([]branch, len(op.Body))
	for i := range op.Body {
		s := &op.Body[i]
		inner := newMachine(s, mix(m.Out.Noise, uint64(i)), m.pick(op.Lend))
		inner.Out.Value = m.Out.Value
		branches[i] = w.Go(func(w world) (err error) {
			outs[i], err = inner.run(ctx, w, s)
			return err
		})
	}
	if op.Kind == Race {
		first, err := w.Any(branches)
		if err != nil {
			return errors.Join(err, waitAll(branches))
		}
		m.Out.Noise = mix(m.Out.Noise, uint64(first))
	}
	if err := waitAll(branches); err != nil {
		return err
	}
	for _, out := range outs {
		m.fold(out)
	}
	return nil
}

func waitAll(branches []branch) error {
	var errs []error
	for _, b := range branches {
		errs = append(errs, b.Wait())
	}
	return errors.Join(errs...)
}

func (m *machine) fold(o Outcome) {
	m.Out.Value = mix(m.Out.Value, o.Value)
	if o.Refused {
		m.Out.Value = mix(m.Out.Value, 1)
	}
	m.Out.Noise = mix(m.Out.Noise, o.Noise)
	m.Out.Marks = append(m.Out.Marks, o.Marks...)
}

func (m *machine) pick(slots []int) (ptrs []dsm.Pointer) {
	for _, s := range slots {
		ptrs = append(ptrs, m.Slots[s])
	}
	return ptrs
}

func (m *machine) drop(slots []int) {
	for _, s := range slots {
		m.Slots[s] = dsm.Pointer{}
	}
}

// markOf is what an entry says that an operation makes as the n-th of its service.
func markOf(noise uint64, n int) uint64 { return mix(noise, uint64(n)) }

// mix folds b into a (the finaliser of MurmurHash3).
func mix(a, b uint64) uint64 {
	x := a ^ (b + 0x9e3779b97f4a7c15 + a<<6 + a>>2)
	x = (x ^ x>>33) * 0xff51afd7ed558ccd
	x = (x ^ x>>33) * 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// fill makes bytes of a value.
func fill(b []byte, v uint64) {
	var word [8]byte
	for i := range b {
		if i%8 == 0 {
			v = mix(v, uint64(i))
			binary.BigEndian.PutUint64(word[:], v)
		}
		b[i] = word[i%8]
	}
}

// digest folds bytes.
func digest(b []byte) uint64 {
	h := uint64(len(b))
	for _, c := range b {
		h = h*31 + uint64(c)
	}
	return mix(h, 0)
}
