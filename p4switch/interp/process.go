package interp

import (
	"bytes"
	"fmt"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
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
	if s.tr != nil && s.tr.of != nil {
		s.tr.of.end(s)
	}
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

// numPorts is how many ports may have queues: v1model's port numbers have 9 bits.
const numPorts = 512

// SetQueueDepth says how many packets wait in a port's queue, until it is called again: packets that come to the port's egress
// have the number as enq_qdepth and deq_qdepth, saturated. At first it is 0. It may be called concurrently with packets, also after
// Close. It does nothing if the program does not use these fields.
func (x *Executor) SetQueueDepth(port datapath.Port, packets uint32) {
	if int(port) < len(x.depths) {
		x.depths[port].Store(packets)
	}
}

// queueDepth is what SetQueueDepth was told last.
func (x *Executor) queueDepth(port datapath.Port) uint64 {
	if int(port) >= len(x.depths) {
		return 0
	}
	return uint64(x.depths[port].Load())
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

// ingress runs a packet from the parser to the end of ingress, and on. What
// becomes of it is decided in the order of simple_switch: clone, digest, then
// resubmit or multicast or drop or egress.
func (w *worker) ingress(s *state) {
	x := w.x
	w.parse(s)
	if s.tr != nil {
		s.tr.event(Event{Kind: TracePipeline, Name: "ingress"})
	}
	if s.lost == kept {
		x.ingress.runAll(s)
	}
	if s.lost != kept {
		w.lose(s)
		return
	}
	if s.clone {
		w.cloneIngress(s)
	}
	if s.digest != nil {
		x.sink.Digest(s.digest.sample(s))
	}
	switch group := x.std.mcastGroup.get(s); {
	case s.resubmit != nil:
		w.resubmit(s)
	case group != 0:
		w.multicast(s, uint32(group))
	case x.std.egressSpec.get(s) == x.c.dropPort:
		w.shard.stats.dropped.Add(1)
		w.drop(s, "ingress")
	default:
		x.std.instanceType.set(s, instanceNormal)
		w.unicast(s, datapath.Port(x.std.egressSpec.get(s)))
	}
}

// unicast sends a packet to egress: at once, unless its copies come first.
func (w *worker) unicast(s *state, port datapath.Port) {
	if w.idle() {
		w.egress(s, port)
		return
	}
	w.enqueue(job{s, port, true})
}

// parse parses a packet and tells the program how that went.
func (w *worker) parse(s *state) {
	x := w.x
	x.parser.run(s)
	if s.failed {
		w.shard.stats.parserErrors.Add(1)
		if s.tr != nil {
			s.tr.event(Event{Kind: TraceParserError, Name: x.c.prog.ErrorName(int(s.code))})
		}
	}
	x.std.parserError.set(s, s.code)
	bad := uint64(0)
	if s.badChecksum {
		bad = 1
	}
	x.std.checksumError.set(s, bad)
	if s.tr != nil && s.tr.of != nil {
		s.tr.of.decide(s)
	}
}

// egress runs a packet through egress, deparses and emits it.
func (w *worker) egress(s *state, port datapath.Port) {
	x := w.x
	s.clone = false
	x.std.egressPort.set(s, uint64(port))
	x.std.egressSpec.set(s, 0)
	x.std.packetLength.set(s, s.length)
	if x.std.egressTime.exists() {
		x.std.egressTime.set(s, x.micros())
	}
	if x.std.enqueueTime.exists() {
		x.std.enqueueTime.set(s, x.micros())
	}
	if x.depths != nil {
		depth := x.queueDepth(port)
		x.std.enqueueDepth.saturate(s, depth)
		x.std.dequeueDepth.saturate(s, depth)
	}
	if s.tr != nil {
		s.tr.event(Event{Kind: TracePipeline, Name: "egress"})
	}
	x.egress.runAll(s)
	if s.lost != kept {
		w.lose(s)
		return
	}
	if s.clone {
		w.cloneEgress(s)
	}
	if x.std.egressSpec.get(s) == x.c.dropPort {
		w.shard.stats.dropped.Add(1)
		w.drop(s, "egress")
		return
	}
	if s.recirculate != nil {
		s.limit = -1
	}
	var packet []byte
	packet, w.out = x.deparser.run(s, w.out, w.idle())
	if s.recirculate != nil {
		w.recirculate(s, packet)
		return
	}
	w.output(s, port, packet)
}

// lose counts a packet that is lost.
func (w *worker) lose(s *state) {
	if s.lost == endlessLoop {
		w.shard.stats.looped.Add(1)
		w.drop(s, "too many steps in an action")
		return
	}
	w.shard.stats.asserted.Add(1)
	w.drop(s, "assertion")
}

// copyOf is a copy of a packet as it is, headers and metadata.
func (w *worker) copyOf(s *state) *state {
	c := w.x.states.Get().(*state)
	c.become(w.x.c.lay, s)
	return c
}

// fresh is a packet that is to be parsed, on behalf of another one.
func (w *worker) fresh(s *state, frame []byte) *state {
	c := w.x.states.Get().(*state)
	c.begin(w.x.c.lay, frame)
	c.shard, c.tr = s.shard, s.tr
	return c
}

// release gives a state back.
func (w *worker) release(s *state) {
	s.frame = nil
	w.x.states.Put(s)
}

// cloneIngress clones a packet as it came in, with metadata as it is now in the
// fields to keep. The clone is parsed again and goes to egress.
func (w *worker) cloneIngress(s *state) {
	x := w.x
	ses := x.sessions[s.session]
	if ses == nil {
		return
	}
	c := w.fresh(s, s.frame)
	defer w.release(c)
	c.inLen = s.inLen
	x.std.ingressPort.set(c, x.std.ingressPort.get(s)) // so that the parser goes the same way
	x.parser.run(c)
	c.resetMetadata(x.c.lay)
	c.keep(x.c.lay, s, s.cloneFields)
	x.std.instanceType.set(c, instanceClone)
	w.replicate(c, ses.replicas, ses.truncate, "clone")
}

// cloneEgress clones a packet as it leaves egress; the clone goes to egress.
func (w *worker) cloneEgress(s *state) {
	x := w.x
	ses := x.sessions[s.session]
	if ses == nil {
		return
	}
	c := w.copyOf(s)
	defer w.release(c)
	c.resetMetadata(x.c.lay)
	c.keep(x.c.lay, s, s.cloneFields)
	x.std.instanceType.set(c, instanceEgressClone)
	w.replicate(c, ses.replicas, ses.truncate, "clone")
}

// multicast replaces a packet by its group's replicas.
func (w *worker) multicast(s *state, group uint32) {
	w.x.std.instanceType.set(s, instanceReplication)
	w.replicate(s, w.x.groups[group], 0, "multicast")
}

// replicate lets copies of a packet wait for egress.
func (w *worker) replicate(s *state, to []datapath.Replica, truncate int, how string) {
	for _, r := range to {
		c := w.copyOf(s)
		w.x.std.egressRID.set(c, uint64(r.Instance))
		if truncate > 0 {
			c.limit = truncate
		}
		if s.tr != nil {
			s.tr.event(Event{Kind: TraceCopy, Name: how, Port: r.Port})
		}
		w.enqueue(job{c, r.Port, true})
	}
}

// resubmit sends a packet as it came to the parser again.
func (w *worker) resubmit(s *state) {
	c := w.fresh(s, s.frame)
	c.inLen = s.inLen
	w.again(c, s, s.resubmit, instanceResubmit, "resubmit")
}

// recirculate sends a packet as it leaves to the parser again.
func (w *worker) recirculate(s *state, packet []byte) {
	w.again(w.fresh(s, bytes.Clone(packet)), s, s.recirculate, instanceRecirculate, "recirculate")
}

// again lets a packet wait for ingress with the fields to keep. As in bmv2, it
// has forgotten the port it came in by.
func (w *worker) again(c, s *state, keep *v1model.FieldList, instance uint64, how string) {
	x := w.x
	c.keep(x.c.lay, s, keep)
	x.std.instanceType.set(c, instance)
	x.std.packetLength.set(c, c.length)
	if s.tr != nil {
		s.tr.event(Event{Kind: TraceCopy, Name: how})
	}
	w.enqueue(job{s: c})
}

// maxSession is the largest clone session, as in bmv2; an odd one is taken
// modulo one more.
const maxSession = 1<<15 - 1

// session is a clone session.
type session struct {
	replicas []datapath.Replica
	truncate int // the copies' largest length; 0 for none
}

// Multicast implements datapath.Datapath.
func (x *Executor) Multicast(id uint32, replicas []datapath.Replica) error {
	if id == 0 || id > 1<<16-1 {
		return fmt.Errorf("multicast group %d: %w", id, datapath.ErrUnsupported)
	}
	if !x.c.prog.Std.MulticastGroup.Valid() {
		return fmt.Errorf("multicast group %d: %w: the program has no mcast_grp", id, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	if len(replicas) == 0 {
		delete(x.groups, id)
		return nil
	}
	x.groups[id] = slices.Clone(replicas)
	return nil
}

// Clone implements datapath.Datapath.
func (x *Executor) Clone(id uint32, replicas []datapath.Replica, truncate int) error {
	if id > maxSession {
		return fmt.Errorf("clone session %d: %w", id, datapath.ErrUnsupported)
	}
	x.lock.lock()
	defer x.lock.unlock()
	if len(replicas) == 0 {
		delete(x.sessions, id)
		return nil
	}
	x.sessions[id] = &session{slices.Clone(replicas), max(truncate, 0)}
	return nil
}
