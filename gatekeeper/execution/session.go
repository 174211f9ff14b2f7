package execution

import (
	"encoding/binary"
	"math"
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
)

// session is a plain client's sequence of calls: those below floor are settled,
// and dropped for ever.
type session struct {
	id     wal.ID
	client netip.Addr
	floor  uint64
	calls  map[*call]struct{}
	logged bool
}

// sessionID names a session of a node in the log.
func sessionID(n netip.Addr, number uint64) (id wal.ID) {
	a := n.As16()
	binary.BigEndian.PutUint64(id[:], number)
	copy(id[8:], a[8:])
	return id
}

func (t *Table) session(client netip.Addr, number uint64) *session {
	id := sessionID(client, number)
	s := t.sessions[id]
	if s == nil {
		s = &session{id: id, client: client, calls: map[*call]struct{}{}}
		t.sessions[id] = s
	}
	return s
}

// fromSession takes a new call of a plain client.
func (t *Table) fromSession(r Request) Verdict {
	h := &r.Message.Header
	s := t.session(r.Caller.Address, h.Call.Session())
	t.settle(s, min(h.Floor, h.Call.Sequence()))
	if h.Call.Sequence() < s.floor {
		return Stale
	}
	return t.begin(r, s)
}

// Settle says that a plain client asks no more for the calls of a session below the
// floor, if it has any there.
func (t *Table) Settle(client netip.Addr, number, floor uint64) Output {
	if s := t.sessions[sessionID(client, number)]; s != nil {
		t.settle(s, floor)
	}
	return t.take()
}

// charge notes how many bytes of the log a call takes more. The node pays that has had it put
// there: its caller, or the callee that has handed it over. Who called that is only its word.
func (t *Table) charge(k *call, bytes int) {
	if bytes == 0 {
		return
	}
	payer := k.caller
	if k.enlisted {
		payer = k.at.address
	}
	k.charged += bytes
	if t.charges[payer] += bytes; t.charges[payer] == 0 {
		delete(t.charges, payer)
	}
}

// Charged is how many bytes the calls take, with their outcomes, that a node has made or has
// handed over.
func (t *Table) Charged(node netip.Addr) int { return t.charges[node] }

// settle raises a session's floor: nobody asks for the calls below any more.
func (t *Table) settle(s *session, floor uint64) {
	if floor <= s.floor {
		return
	}
	s.floor = floor
	for _, k := range sorted(s.calls) {
		if k.id.Sequence() < floor {
			t.settled(k)
			t.forget(k)
		}
	}
}

// keepSession writes a floor down. Only what is struck out makes that necessary.
func (t *Table) keepSession(s *session) {
	s.logged = true
	t.put(wal.Record{Kind: wal.KindSession, ID: s.id, Caller: wal.Node{Address: s.client}, Order: s.floor})
}

// ended is the floor of a session whose client has failed.
const ended = math.MaxUint64

// endSessions settles all calls of a plain client that has failed. They run on, and are
// delivered again until they are answered: nobody else sends them again, or asks for their
// answers, even if the client's node begins anew.
func (t *Table) endSessions(client netip.Addr) {
	for _, s := range t.sessions {
		if s.client != client {
			continue
		}
		t.settle(s, ended)
		if len(s.calls) > 0 {
			t.keepSession(s)
		} else {
			t.dropSession(s)
		}
	}
}

// leaveSession takes a call out of its session.
func (t *Table) leaveSession(k *call) {
	s := k.session
	delete(s.calls, k)
	switch {
	case s.floor == ended && len(s.calls) == 0:
		t.dropSession(s)
	case k.stage == done:
		t.keepSession(s)
	}
}

func (t *Table) dropSession(s *session) {
	delete(t.sessions, s.id)
	if s.logged {
		t.strike(wal.KindSession, s.id)
	}
}
