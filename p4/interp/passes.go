package interp

import "github.com/bifrost-rack/bifrost/p4/datapath"

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
