//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"os"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/ringbuf"
)

// traceRing is the room for traces that have not been read yet, in bytes.
const traceRing = 1 << 22

// session is a trace that runs.
type session struct {
	x       *Executor
	traced  *tracing
	ring    *ebpf.Map
	control *mapped
	program *ebpf.Program
	reader  *ringbuf.Reader
	done    chan struct{} // closed when the ring is read no more
	out     *trace.Session
	last    trace.Counts // when it has been stopped
}

// Trace traces packets from now on, until the session is stopped: a program that notes what it does takes the place of the usual one. There is one session
// at a time. An error of the filter is a *trace.FilterError. A program that the kernel's verifier finds too large with its notes cannot be traced, which is
// datapath.ErrUnsupported.
func (x *Executor) Trace(spec trace.Spec) (*trace.Session, error) {
	filter, err := trace.ParseFilter(x.prog, spec.Filter)
	if err != nil {
		return nil, err
	}
	s := &session{x: x, done: make(chan struct{})}
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.closed:
		return nil, os.ErrClosed
	case x.tracing != nil:
		return nil, fmt.Errorf("%w: another trace runs", datapath.ErrExists)
	}
	if err := s.load(&spec, filter); err != nil {
		return nil, errors.Join(err, s.close())
	}
	s.out = trace.NewSession(s.counts, func() { s.stop() })
	if err := x.slot.Put(uint32(0), s.program); err != nil {
		return nil, errors.Join(err, s.close())
	}
	x.tracing = s
	go s.run()
	return s.out, nil
}

// load makes everything that the session has in the kernel.
func (s *session) load(spec *trace.Spec, filter v1model.Expr) error {
	x := s.x
	var err error
	if s.control, err = newMapped("trace_control", controlSize, 1); err != nil {
		return err
	}
	if s.ring, err = newMap(&ebpf.MapSpec{Name: "trace", Type: ebpf.RingBuf, MaxEntries: traceRing}); err != nil {
		return err
	}
	s.traced = &tracing{
		ring: s.ring, control: s.control.cells, filter: filter,
		sample: int32(min(max(spec.Sample, 1), 1<<30)), interval: int32(time.Second / time.Duration(spec.PacketRate())), //nolint:gosec // bounded
	}
	g := newGen(x.prog, x.cpu, x.cells)
	if g.st.trace+traceSteps+traceRoom > maxState {
		return fmt.Errorf("%w: headers and metadata leave no room for a trace", datapath.ErrUnsupported)
	}
	g.traced, g.objs = s.traced, x.objects()
	g.tableOf = func(t *v1model.Table) *table { return x.tables[t.Name] }
	g.program()
	if len(g.lacks) > 0 {
		return &UnsupportedError{g.lacks}
	}
	if s.program, err = loadProgram(g.finish()); err != nil {
		return err
	}
	s.reader, err = ringbuf.NewReader(s.ring)
	return err
}

func (s *session) counts() trace.Counts {
	s.control.mu.RLock()
	defer s.control.mu.RUnlock()
	if s.control.mem == nil {
		return s.last
	}
	word := func(at int) uint64 { return atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.control.mem[at]))) }
	return trace.Counts{Matched: word(controlMatched), Skipped: word(controlSkipped), Lost: word(controlLost)}
}

// stop gives packets to the usual program again, and returns when none is in the one that notes.
func (s *session) stop() {
	x := s.x
	x.mu.Lock()
	mine := x.tracing == s
	if mine {
		x.tracing = nil
		if err := x.slot.Put(uint32(0), x.main); err != nil {
			x.log.Error("the trace cannot be ended; packets go on being traced until the program is replaced", "error", err)
		}
	}
	x.mu.Unlock()
	if !mine {
		return
	}
	x.epochs.wait()
	s.drain()
	s.last = s.counts()
	if err := s.close(); err != nil {
		x.log.Error("trace", "error", err)
	}
}

// drain waits until what is in the ring has been read.
func (s *session) drain() {
	_ = s.reader.Flush() // the reader sees all that is there, and then that there is no more
	<-s.done
}

func (s *session) close() error {
	var errs []error
	if s.reader != nil {
		errs = append(errs, s.reader.Close())
	}
	if s.program != nil {
		errs = append(errs, s.program.Close())
	}
	if s.ring != nil {
		errs = append(errs, s.ring.Close())
	}
	return errors.Join(append(errs, s.control.close())...)
}

// run gives packets' traces to the session.
func (s *session) run() {
	defer close(s.done)
	var rec ringbuf.Record
	for {
		if err := s.reader.ReadInto(&rec); err != nil {
			return // flushed or closed
		}
		if p := s.traced.packet(rec.RawSample); p != nil {
			s.out.Put(p)
		}
	}
}

// packet makes a packet's trace of a record; nil if it is none.
func (t *tracing) packet(b []byte) *trace.Packet {
	ne := binary.NativeEndian
	p := &trace.Packet{}
	for first := true; len(b) >= 8; first = false {
		id := ne.Uint64(b)
		if id >= uint64(len(t.points)) {
			return nil
		}
		at := &t.points[id]
		if len(b) < 8*(1+at.words) {
			return nil
		}
		noted := make([]uint64, at.words)
		for i := range noted {
			noted[i] = ne.Uint64(b[8+8*i:])
		}
		b = b[8*(1+at.words):]
		if first {
			if at.step.Kind != "" || len(noted) != traceFirst {
				return nil // it did not begin: it was dropped before
			}
			p.TimeNs, p.Port, p.Bytes, p.Cut = noted[0], portOf(noted[1]), int(noted[2]), noted[3] != 0 //nolint:gosec // a packet's length
			continue
		}
		p.Steps = append(p.Steps, at.stepOf(noted))
	}
	if p.TimeNs == 0 {
		return nil
	}
	return p
}

func portOf(w uint64) datapath.Port { return datapath.Port(w & 0xffff) } //nolint:gosec // masked

// hexWords is a number of words, the low one first, in as many digits as a width needs.
func hexWords(w []uint64, width int) string {
	v, x := new(big.Int), new(big.Int)
	for i := len(w) - 1; i >= 0; i-- {
		v.Lsh(v, 64).Or(v, x.SetUint64(w[i]))
	}
	mask := new(big.Int).Sub(x.Lsh(big.NewInt(1), uint(width)), big.NewInt(1)) //nolint:gosec // a width
	return hex.EncodeToString(v.And(v, mask).FillBytes(make([]byte, (width+7)/8)))
}

// tableNote reads what was noted at a table.
type tableNote struct {
	t        *v1model.Table
	plan     *keyPlan
	scan     *scanPlan
	keyWords int
	table    func(*v1model.Table) *table
}

func (n *tableNote) put(st *trace.Step, noted []uint64) {
	key, found := noted[:n.keyWords], noted[n.keyWords:]
	hit := found[0] != 0
	st.Hit = &hit
	st.Key = n.key(key)
	for i, a := range n.t.Actions {
		if uint64(actionNumber(n.t, i)) != found[2] || n.t.Profile != nil {
			continue
		}
		st.Action = a.Name
		at, _ := argsAt(a)
		for k, p := range a.Params {
			first := 3 + (at[k]-entryArgs)/8
			st.Params = append(st.Params, trace.Field{Name: p.Name, Value: hexWords(found[first:first+words(p.Width)], p.Width)})
		}
	}
	if t := n.table(n.t); hit && t != nil {
		ms, priority := t.entryOf(uint32(found[1])) //nolint:gosec // a cell's number
		st.Match, st.Priority = "(an entry that is gone)", priority
		if ms != nil {
			st.Match = trace.Describe(ms)
		}
	}
}

// key are the packet's values of the fields, in the table's order.
func (n *tableNote) key(noted []uint64) []trace.Field {
	out := make([]trace.Field, len(n.t.Key))
	if n.plan == nil {
		for i, f := range n.scan.fields {
			out[i] = trace.Field{Name: f.Name, Value: hexWords(noted[f.at:f.at+words(f.width)], f.width)}
		}
		return out
	}
	var b []byte
	for _, w := range noted {
		b = binary.NativeEndian.AppendUint64(b, w)
	}
	for i := range n.plan.fields {
		f := &n.plan.fields[i]
		out[f.index] = trace.Field{Name: f.Name, Value: hex.EncodeToString(f.get(b[f.at : f.at+f.bytes]))}
	}
	return out
}

// get is a field's value from its bytes in the trie's key.
func (f *keyField) get(b []byte) []byte {
	if f.Kind != v1model.MatchLPM {
		return bytes.Clone(b)
	}
	v := new(big.Int).SetBytes(b)
	return v.Rsh(v, uint(f.bytes*8-f.width)).FillBytes(make([]byte, f.bytes)) //nolint:gosec // not negative
}

// entryOf is the match and the priority of the entry that has a cell; nil if there is none.
func (t *table) entryOf(cell uint32) ([]datapath.Match, int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, c := range t.entries {
		if c == cell {
			if t.scan != nil {
				return t.scan.matches(key, t.def.Kind)
			}
			return t.plan.matches(key), 0
		}
	}
	return nil, 0
}

// matches is key's other way round.
func (p *keyPlan) matches(key string) []datapath.Match {
	prefix := int(binary.NativeEndian.Uint32([]byte(key)))
	out := make([]datapath.Match, len(p.fields))
	for i := range p.fields {
		f := &p.fields[i]
		m := datapath.Match{Value: f.get([]byte(key)[4+f.at : 4+f.at+f.bytes])}
		if f.Kind == v1model.MatchLPM {
			m.PrefixLen = prefix - 8*f.at
			m.Wildcard = m.PrefixLen == 0
		}
		out[f.index] = m
	}
	return out
}

// matches is key's other way round.
func (p *scanPlan) matches(key string, kind v1model.MatchKind) ([]datapath.Match, int32) {
	priority := int32(^binary.BigEndian.Uint32([]byte(key))) //nolint:gosec // as it was given
	if kind == v1model.MatchLPM {
		priority = 0
	}
	var out []datapath.Match
	ne := binary.NativeEndian
	for _, f := range p.fields {
		var mask, low, high []uint64
		for i := f.at; i < f.at+words(f.width); i++ {
			at := []byte(key)[4+scanWord*i:]
			mask, low, high = append(mask, ne.Uint64(at)), append(low, ne.Uint64(at[8:])), append(high, ne.Uint64(at[16:]))
		}
		number := func(w []uint64) []byte { b, _ := hex.DecodeString(hexWords(w, f.width)); return b }
		m := datapath.Match{Value: number(low)}
		switch bits := new(big.Int).SetBytes(number(mask)); {
		case bits.Sign() == 0:
			m = datapath.Match{Wildcard: true}
		case f.Kind == v1model.MatchRange:
			m.High = number(high)
		case f.Kind == v1model.MatchLPM:
			m.PrefixLen = f.width - int(bits.TrailingZeroBits()) //nolint:gosec // within the width
		case f.Kind == v1model.MatchTernary && !full(bits, f.width):
			m.Mask = number(mask)
		}
		out = append(out, m)
	}
	return slices.Clip(out), priority
}

// full tells whether a mask has all bits of a width.
func full(mask *big.Int, width int) bool {
	return mask.BitLen() == width && int(mask.TrailingZeroBits()) == 0 && new(big.Int).Add(mask, big.NewInt(1)).BitLen() == width+1 //nolint:gosec // a count
}
