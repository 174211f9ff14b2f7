//go:build linux

package ebpf

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/big"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/ringbuf"
	"golang.org/x/sys/unix"
)

// restTime is how long the reader of digests rests when it has read them all. The
// packet whose digest finds the ring read up has to wake the reader, which costs its
// sender several microseconds; the digests behind it wake nobody until the reader has
// read on. Controllers have digests gathered for about as long anyway.
const restTime = 500 * time.Microsecond

// digestReader brings digests from the kernel to the sink.
type digestReader struct {
	x     *Executor
	r     *ringbuf.Reader
	f     *os.File        // the ring, for Go's poller: r would wait on a thread of its own
	raw   syscall.RawConn // f's
	timer *time.Timer
	hurry chan struct{} // capacity 1: somebody waits for a digest
	quit  chan struct{} // closed to end
	done  chan struct{}

	mu   sync.Mutex
	more sync.Cond // read has grown, or the reader has ended
	read uint64    // digests delivered
	end  bool
}

func newDigestReader(x *Executor) (*digestReader, error) {
	d := &digestReader{
		x: x, timer: time.NewTimer(restTime),
		hurry: make(chan struct{}, 1), quit: make(chan struct{}), done: make(chan struct{}),
	}
	d.more.L = &d.mu
	if err := d.open(x.maps.digests.FD()); err != nil {
		return nil, errors.Join(fmt.Errorf("ebpf: digests: %w", err), d.shut())
	}
	go d.run()
	return d, nil
}

func (d *digestReader) open(fd int) error {
	fd, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(fd, true); err != nil { // so that Go polls it
		return errors.Join(err, unix.Close(fd))
	}
	d.f = os.NewFile(uintptr(fd), "digests")
	if d.raw, err = d.f.SyscallConn(); err != nil {
		return err
	}
	if d.r, err = ringbuf.NewReader(d.x.maps.digests); err != nil {
		return err
	}
	d.r.SetDeadline(time.Unix(0, 1)) // it never waits
	return nil
}

func (d *digestReader) close() error {
	close(d.quit)
	err := d.f.Close()
	<-d.done
	d.f = nil
	return errors.Join(err, d.shut())
}

// shut closes what is open.
func (d *digestReader) shut() (err error) {
	d.timer.Stop()
	if d.f != nil {
		err = d.f.Close()
	}
	if d.r != nil {
		err = errors.Join(err, d.r.Close())
	}
	return err
}

func (d *digestReader) run() {
	defer close(d.done)
	err := d.serve()
	select {
	case <-d.quit:
	default:
		d.x.log.Error("reading digests fails", "error", err)
	}
	d.mu.Lock()
	d.end = true
	d.more.Broadcast()
	d.mu.Unlock()
}

// serve delivers digests until the ring is closed.
func (d *digestReader) serve() error {
	some := func(uintptr) bool { return d.r.AvailableBytes() > 0 }
	for {
		if err := d.raw.Read(some); err != nil { // waits for them
			return err
		}
		if err := d.drain(); err != nil {
			return err
		}
		d.rest()
	}
}

// drain delivers what there is.
func (d *digestReader) drain() error {
	var rec ringbuf.Record
	for {
		switch err := d.r.ReadInto(&rec); {
		case errors.Is(err, os.ErrDeadlineExceeded):
			return nil
		case err != nil:
			return err
		}
		if sample, ok := d.decode(rec.RawSample); ok {
			d.x.sink.Digest(sample)
		} else {
			d.x.tell(rec.RawSample)
		}
		d.mu.Lock()
		d.read++
		d.more.Broadcast()
		d.mu.Unlock()
		if rec.Remaining == 0 {
			return nil
		}
	}
}

// rest lets digests gather for a moment, unless somebody waits for one.
func (d *digestReader) rest() {
	d.timer.Reset(restTime)
	select {
	case <-d.timer.C:
	case <-d.hurry:
	case <-d.quit:
	}
}

// await returns when n digests have been delivered.
func (d *digestReader) await(n uint64) {
	select {
	case d.hurry <- struct{}{}:
	default:
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for d.read < n && !d.end {
		d.more.Wait()
	}
}

// decode reads a sample as gen.digests writes it.
func (d *digestReader) decode(b []byte) (datapath.Digest, bool) {
	defs := d.x.prog.Digests
	if len(b) < 4 || int(binary.NativeEndian.Uint32(b)) >= len(defs) {
		return datapath.Digest{}, false
	}
	def := defs[binary.NativeEndian.Uint32(b)]
	if len(b) < digestBytes(def) {
		return datapath.Digest{}, false
	}
	out := datapath.Digest{Name: def.Name, Fields: make([][]byte, len(def.Elements))}
	values := bytes.Clone(b[4:])
	for i, e := range def.Elements {
		n := elementBytes(e)
		out.Fields[i], values = values[:n:n], values[n:]
	}
	return out, true
}

// A log message, or that an assertion has failed, goes to this process in the ring
// of digests: an index behind theirs in a word of 32 bits, and from byte 8 on the
// arguments' words, each argument's low word first. Those for which the ring has no
// room are lost.
type message struct {
	log    v1model.Log
	failed string // the assertion that has failed, or ""
}

// statements are all of a program's.
func statements(p *v1model.Program) iter.Seq[v1model.Stmt] {
	return func(yield func(v1model.Stmt) bool) {
		var bodies [][]v1model.Stmt
		for _, a := range p.Actions {
			bodies = append(bodies, a.Body)
		}
		for _, s := range p.Parser.States {
			bodies = append(bodies, s.Body)
		}
		for s := range slices.Values(slices.Concat(append(bodies, p.Deparser.Body)...)) {
			if !yield(s) {
				return
			}
		}
	}
}

// argWords is how many words an argument of a message has.
func argWords(e v1model.Expr) int {
	if s := v1model.SpanOf(e); s.Bits <= 64*maxSpill {
		return words(s.Bits)
	}
	return 1
}

// messageBytes is the size of a program's longest message.
func messageBytes(p *v1model.Program) (n int) {
	for s := range statements(p) {
		switch s := s.(type) {
		case v1model.Log:
			size := 8
			for _, a := range s.Args {
				size += 8 * argWords(a)
			}
			n = max(n, size)
		case v1model.Assert:
			n = max(n, 8)
		}
	}
	return n
}

// say sends a message of which the arguments are in place.
func (g *gen) say(m message, size int) {
	g.storeImm(g.st.digest, int32(len(g.prog.Digests)+len(g.messages)), asm.DWord)
	g.messages = append(g.messages, m)
	full := g.label("ring_full")
	g.emit(
		asm.LoadMapPtr(asm.R1, g.objs.digests.FD()),
		asm.Mov.Reg(asm.R2, rState), asm.Add.Imm(asm.R2, int32(g.st.digest)),
		asm.Mov.Imm(asm.R3, int32(size)),
		asm.Mov.Imm(asm.R4, 0),
		asm.FnRingbufOutput.Call(),
		asm.JSLT.Imm(asm.R0, 0, full))
	g.digestSent()
	g.mark(full)
}

func (g *gen) logMessage(s v1model.Log) {
	at := g.st.digest + 8
	for _, a := range s.Args {
		if sp := v1model.SpanOf(a); sp.Bits > 64 && (sp.Signed || sp.Bits > 64*maxSpill) {
			g.lack("log message with a number that has no bounds")
			return
		}
		for i := range argWords(a) {
			g.word(a, i, 0)
			g.store(at, asm.R0)
			at += 8
		}
	}
	g.say(message{log: s}, at-g.st.digest)
}

// assert drops a packet for which an assertion fails; bmv2 ends.
func (g *gen) assert(s v1model.Assert) {
	holds, fails := g.label("holds"), g.label("fails")
	g.cond(s.Cond, holds, fails)
	g.mark(fails)
	g.say(message{failed: s.Text}, 8)
	g.jump(g.done)
	g.mark(holds)
}

// tell logs a message that has come from the kernel, and tells whether it is one.
func (x *Executor) tell(b []byte) bool {
	if len(b) < 8 {
		return false
	}
	i := int(binary.NativeEndian.Uint32(b)) - len(x.prog.Digests)
	if i < 0 || i >= len(x.messages) {
		return false
	}
	m := x.messages[i]
	if m.failed != "" {
		x.log.Error("assertion failed, packet dropped", "assertion", m.failed)
		return true
	}
	b = b[8:]
	var values []*big.Int
	for _, a := range m.log.Args {
		n, v := argWords(a), new(big.Int)
		if len(b) < 8*n {
			return false
		}
		for w := n - 1; w >= 0; w-- {
			v.Lsh(v, 64).Or(v, new(big.Int).SetUint64(binary.NativeEndian.Uint64(b[8*w:])))
		}
		if v1model.SpanOf(a).Signed {
			v.SetInt64(int64(v.Uint64()))
		}
		values, b = append(values, v), b[8*n:]
	}
	x.log.Info(m.log.Text(values))
	return true
}
