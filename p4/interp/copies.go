package interp

import (
	"bytes"

	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/v1model"
)

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
