package interp

import (
	"bytes"
	"fmt"
	"time"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// maxCopies bounds how many copies one packet may become, those that a pipeline
// sends through again included; so a program that recirculates for ever loses
// the packet instead.
const maxCopies = 1 << 12

// worker runs one packet at a time, with all that becomes of it.
type worker struct {
	x     *Executor
	shard *shard
	first *state
	// queue holds the packet's copies; those before head are done.
	queue []job
	head  int
	emit  Emit
	out   []byte // a packet being emitted
}

// job is a copy on its way into a pipeline.
type job struct {
	s      *state
	port   datapath.Port // of egress
	egress bool
}

func (x *Executor) newState() *state {
	s := newState(x.c.lay, len(x.c.prog.Headers))
	if x.config.Random != nil {
		s.rand = x.config.Random
	}
	return s
}

func (x *Executor) newWorker() *worker {
	return &worker{x: x, shard: x.lock.pick(), first: x.newState()}
}

// Process runs a packet that came in by a port to its end, and emits what it
// becomes; emit may be nil to use the configured output. The frame may be
// overwritten; it is the caller's again afterwards.
func (x *Executor) Process(in datapath.Port, frame []byte, emit Emit) {
	if emit == nil {
		emit = x.config.Output
	}
	w := x.workers.Get().(*worker)
	w.emit = emit
	w.shard.RLock()
	if !x.closed.Load() {
		w.run(in, frame)
	}
	w.shard.RUnlock()
	w.emit = nil
	x.workers.Put(w)
}

// PacketOut implements datapath.Datapath. As for Process, the frame may be
// overwritten.
func (x *Executor) PacketOut(frame []byte) error {
	if x.config.CPUPort == 0 {
		return fmt.Errorf("packet out: %w: the switch has no CPU port", datapath.ErrUnsupported)
	}
	x.Process(x.config.CPUPort, frame, nil)
	return nil
}

func (w *worker) run(in datapath.Port, frame []byte) {
	x, s := w.x, w.first
	s.begin(x.c.lay, frame)
	s.shard, s.tr = w.shard, x.tracing.begin(in, frame)
	w.shard.stats.in.Add(1)
	x.std.ingressPort.set(s, uint64(in))
	x.std.packetLength.set(s, uint64(len(frame)))
	if x.std.ingressTime.exists() {
		x.std.ingressTime.set(s, x.micros())
	}
	w.ingress(s)
	for w.head < len(w.queue) {
		j := w.queue[w.head]
		w.head++
		w.work(j)
	}
	w.queue, w.head = w.queue[:0], 0
	s.frame = nil
}

// work lets a copy go on, and gives its state back unless it waits again.
func (w *worker) work(j job) {
	j.s.queued = false
	if j.egress {
		w.egress(j.s, j.port)
	} else {
		w.ingress(j.s)
	}
	if !j.s.queued && j.s != w.first {
		j.s.frame = nil
		w.x.states.Put(j.s)
	}
}

// idle tells whether no copies wait.
func (w *worker) idle() bool { return w.head == len(w.queue) }

// enqueue lets a copy wait for its turn.
func (w *worker) enqueue(j job) {
	if len(w.queue) >= maxCopies {
		w.shard.stats.looped.Add(1)
		w.drop(j.s, "too many copies")
		return
	}
	j.s.queued = true
	w.queue = append(w.queue, j)
}

// micros is the time since the executor was made, in bmv2's unit of timestamps.
func (x *Executor) micros() uint64 {
	return uint64(x.c.now().Sub(x.start) / time.Microsecond)
}

// output emits a packet.
func (w *worker) output(s *state, port datapath.Port, packet []byte) {
	w.shard.stats.out.Add(1)
	if s.tr != nil {
		s.tr.event(Event{Kind: TraceOut, Port: port, Frame: packet})
	}
	if port == w.x.config.CPUPort && port != 0 {
		w.shard.stats.toCPU.Add(1)
		w.x.sink.PacketIn(bytes.Clone(packet))
		return
	}
	w.emit(port, packet)
}

func (w *worker) drop(s *state, why string) {
	if s.tr != nil {
		s.tr.event(Event{Kind: TraceDrop, Name: why})
	}
}
