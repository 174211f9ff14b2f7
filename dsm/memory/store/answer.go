package store

import (
	"iter"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Answer is what goes back to a request's source: one datagram, or, to a request that
// stands for several reads, as many as Datagrams yields.
type Answer struct {
	From   packet.Pointer
	Header packet.Header
	// Data may alias a region: it is good until the next call of a method.
	Data []byte
}

// answer returns a reply to r from the address that r was sent to.
func answer(r *Request, status fault.Code, length uint64) Answer {
	a := Answer{From: r.To, Header: r.Header}
	a.Header.Kind, a.Header.Flags = packet.Reply, 0
	a.Header.Status, a.Header.Length = status, length
	return a
}

func refuse(r *Request, status fault.Code) Answer { return answer(r, status, 0) }

// Datagrams yields the datagrams that the answer takes: one for each read that its
// request stood for. A refusal is one, for all of them.
func (a *Answer) Datagrams() iter.Seq[Answer] {
	return func(yield func(Answer) bool) {
		if a.Data == nil || a.Header.More == 0 {
			yield(*a)
			return
		}
		n := a.Header.Length
		for i := range uint64(a.Header.More) + 1 {
			piece := Answer{From: a.From.Add(int64(i * n)), Header: a.Header, Data: a.Data[i*n : (i+1)*n]}
			piece.Header.Request += i
			piece.Header.More = 0
			if !yield(piece) {
				return
			}
		}
	}
}

// Join makes the answer to a write acknowledge the next one, too, if next says that
// this was written and lies behind it, and reports whether it does. The same client
// must get both.
func (a *Answer) Join(next *Answer) bool {
	h, n := &a.Header, &next.Header
	behind := uint64(h.More) + 1
	if !a.wrote() || !next.wrote() || n.More != 0 || h.More == packet.MaxMore || n.Length != h.Length ||
		n.Request != h.Request+behind || n.Incarnation != h.Incarnation || next.From != a.From.Add(int64(behind*h.Length)) {
		return false
	}
	h.More++
	return true
}

// wrote reports whether the answer is that to a write that was carried out.
func (a *Answer) wrote() bool {
	return a.From.Op() == packet.OpWrite && a.Header.Kind == packet.Reply && a.Header.Status == fault.OK
}
