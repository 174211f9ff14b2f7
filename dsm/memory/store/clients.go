package store

import "net/netip"

// client is what the store knows of one node: the newest incarnation heard of,
// and that incarnation's window.
type client struct {
	incarnation uint32
	fenced      bool // the incarnation is dead; so are all before it
	window      window
}

// clients is the nodes that the store knows.
type clients struct {
	byNode  map[netip.Addr]*client
	fenced  []netip.Addr // in the order in which they were fenced first
	records int          // ring lengths, added up
	limits  Limits
}

func newClients(l Limits) clients { return clients{byNode: make(map[netip.Addr]*client), limits: l} }

// standing is a request's incarnation against the store's knowledge.
type standing uint8

const (
	current  standing = iota
	stale             // fenced, or replaced by a newer incarnation
	noRecord          // unknown, and there is no room for another client
)

// admit finds the client that a request belongs to. The first request of a newer
// incarnation begins a new window; the older one's is gone.
func (t *clients) admit(node netip.Addr, incarnation uint32, floor uint64) (*client, standing) {
	c := t.byNode[node]
	switch {
	case c == nil:
		if !t.makeRoom() {
			return nil, noRecord
		}
		c = &client{incarnation: incarnation, window: window{floor: floor}}
		t.byNode[node] = c
	case incarnation < c.incarnation || incarnation == c.incarnation && c.fenced:
		return nil, stale
	case incarnation > c.incarnation:
		t.drop(c)
		*c = client{incarnation: incarnation, window: window{floor: floor}}
	}
	c.window.raise(floor)
	return c, current
}

// fence refuses the node's incarnations up to this one from now on, and returns the
// records of the requests that they had not settled.
func (t *clients) fence(node netip.Addr, incarnation uint32) []record {
	c := t.byNode[node]
	if c == nil {
		t.makeRoom() // a fence is never refused
		c = &client{}
		t.byNode[node] = c
	}
	if c.incarnation > incarnation || c.incarnation == incarnation && c.fenced {
		return nil
	}
	unsettled := c.window.unsettled()
	t.drop(c)
	*c = client{incarnation: incarnation, fenced: true}
	t.fenced = append(t.fenced, node)
	return unsettled
}

// makeRoom forgets the node fenced longest ago when the table is full.
func (t *clients) makeRoom() bool {
	for len(t.byNode) >= t.limits.Clients && len(t.fenced) > 0 {
		if c := t.byNode[t.fenced[0]]; c != nil && c.fenced {
			delete(t.byNode, t.fenced[0])
		}
		t.fenced = t.fenced[1:]
	}
	return len(t.byNode) < t.limits.Clients
}

// reserve makes the window fit for a record of id; false if the client or all
// clients together leave too many requests unsettled.
func (t *clients) reserve(w *window, id uint64) bool {
	n := w.want(id)
	more := n - len(w.ring)
	if n == 0 || more > 0 && t.records+more > t.limits.Records {
		return false
	}
	if more != 0 {
		w.resize(n)
		t.records += more
	}
	return true
}

func (t *clients) drop(c *client) {
	t.records -= len(c.window.ring)
	c.window = window{}
}
