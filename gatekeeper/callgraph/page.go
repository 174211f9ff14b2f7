package callgraph

import (
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Cursor is where a listing goes on; the zero Cursor is its beginning.
type Cursor struct {
	sequence uint64
	last     rpcpacket.ID
}

// String is the cursor as ParseCursor reads it, "" for the beginning.
func (c Cursor) String() string {
	if c.sequence == 0 {
		return ""
	}
	return fmt.Sprintf("%d-%s", c.sequence, c.last)
}

// ParseCursor reads what String wrote.
func ParseCursor(s string) (c Cursor, err error) {
	if s == "" {
		return c, nil
	}
	sequence, id, _ := strings.Cut(s, "-")
	c.sequence, err = strconv.ParseUint(sequence, 10, 64)
	b, err2 := hex.DecodeString(id)
	if err != nil || err2 != nil || len(b) != len(c.last) || c.sequence == 0 {
		return Cursor{}, fmt.Errorf("%q is no cursor", s)
	}
	c.last = rpcpacket.ID(b)
	return c, nil
}

// Cursor is where a listing goes on behind this call.
func (v *View) Cursor() Cursor { return Cursor{v.Sequence, v.ID} }

// List returns up to max calls, oldest first, from where a Cursor stands, and
// the Cursor for the next ones; more is false at the end. Calls that come and go
// between two pages may be missing; all others are listed once.
func (g *Graph) List(from Cursor, limit int) (all []View, next Cursor, more bool) {
	i := g.age.first
	if from.sequence > 0 {
		i = g.after(from)
	}
	for ; i != 0 && len(all) < limit; i = g.calls.at(i).links[byAge].next {
		v := g.view(i)
		all = append(all, v)
		from = Cursor{v.Sequence, v.ID}
	}
	return all, from, i != 0
}

// after finds the first call behind a cursor: beside the one where it stands, or
// if that is gone, by going back from the newest.
func (g *Graph) after(c Cursor) int32 {
	if i := g.index[c.last]; i != 0 && g.calls.at(i).sequence == c.sequence {
		return g.calls.at(i).links[byAge].next
	}
	first := int32(0)
	for i := g.age.last; i != 0 && g.calls.at(i).sequence > c.sequence; i = g.calls.at(i).links[byAge].prev {
		first = i
	}
	return first
}
