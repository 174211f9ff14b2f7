package callgraph

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/script"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestScripts runs testdata/*.txt; each command takes a millisecond.
//
//	sent c1 A B Service[!].method [under=c0] [pass=p1,p2] [policy=recover] [oneway] [loose]
//	                       A calls B; ! is a serial service; A.2 is incarnation 2 of A
//	delivered c1 B; finished c1; returned c1; remove c1
//	gone A; moved A A.2; expire 5ms
//	call c1; children c1; chain c1; waits A; serves B; carrying p1; nodes
//	list N                 all, in pages of N
//	domain A…              what the failure of these nodes takes back
func TestScripts(t *testing.T) {
	script.Run(t, "testdata/*.txt", func() script.Command {
		return (&scripted{g: New(8), now: time.Unix(100, 0).UTC()}).command
	})
}

type scripted struct {
	g   *Graph
	now time.Time
	out io.Writer
}

func (s *scripted) command(out io.Writer, f []string) error {
	s.out = out
	s.now = s.now.Add(time.Millisecond)
	arg := func(i int) string {
		if i < len(f) {
			return f[i]
		}
		return ""
	}
	switch f[0] {
	case "sent":
		return s.sent(f[1:])
	case "delivered":
		s.report(s.g.Delivered(idOf(arg(1)), nodeOf(arg(2)), s.now))
	case "finished":
		s.report(s.g.Finished(idOf(arg(1)), s.now))
	case "returned":
		s.one(s.g.Returned(idOf(arg(1)), s.now))
	case "remove":
		s.one(s.g.Remove(idOf(arg(1))))
	case "gone":
		s.views("cut", s.g.NodeGone(nodeOf(arg(1))))
	case "moved":
		s.g.NodeMoved(nodeOf(arg(1)), nodeOf(arg(2)))
	case "expire":
		age, err := time.ParseDuration(arg(1))
		if err != nil {
			return err
		}
		for _, id := range s.g.Expire(s.now.Add(-age)) {
			fmt.Fprintf(s.out, "expired %s\n", idText(id))
		}
	default:
		return s.query(f[0], arg(1), f[1:])
	}
	return nil
}

func (s *scripted) query(what, arg string, args []string) error {
	switch what {
	case "call":
		s.one(s.g.Call(idOf(arg)))
	case "children":
		s.views("child", s.g.Children(idOf(arg)))
	case "chain":
		s.views("in", s.g.Chain(idOf(arg)))
	case "waits":
		s.views("waits for", s.g.WaitsFor(nodeOf(arg)))
	case "serves":
		s.views("serves", s.g.Serves(nodeOf(arg)))
	case "carrying":
		s.views("carried by", s.g.Carrying(pointerOf(arg)))
	case "nodes":
		for _, n := range s.g.Nodes() {
			fmt.Fprintln(s.out, nodeText(n))
		}
	case "list":
		size, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		s.list(size)
	case "domain":
		var nodes []Node
		for _, a := range args {
			nodes = append(nodes, nodeOf(a))
		}
		d := s.g.Domain(nodes...)
		for _, n := range d.Nodes {
			fmt.Fprintf(s.out, "node %s\n", nodeText(n))
		}
		s.views("rerun", d.Rerun)
		s.views("cut", d.Cut)
		s.views("out", d.Out)
		s.views("waiting", d.Waiting)
	default:
		return fmt.Errorf("unknown command")
	}
	return nil
}

func (s *scripted) sent(f []string) error {
	service, method, ok := strings.Cut(f[3], ".")
	if !ok {
		return fmt.Errorf("no method")
	}
	service, serial := strings.CutSuffix(service, "!")
	c := Call{
		ID: idOf(f[0]), Caller: nodeOf(f[1]), Callee: nodeOf(f[2]), Service: service, Method: method, Serial: serial,
		Policy: rpcpacket.PolicyRecover,
	}
	for _, w := range f[4:] {
		switch key, value, _ := strings.Cut(w, "="); key {
		case "under":
			c.Parent = idOf(value)
		case "pass":
			for _, p := range strings.Split(value, ",") {
				c.Pointers = append(c.Pointers, pointerOf(p))
			}
		case "policy":
			for p := rpcpacket.PolicyNone; p <= rpcpacket.PolicyTainted; p++ {
				if p.String() == value {
					c.Policy = p
				}
			}
		case "oneway":
			c.Oneway = true
		case "loose":
			c.Loose = true
		default:
			return fmt.Errorf("unknown option %s", w)
		}
	}
	err := s.g.Sent(c, s.now)
	var d *Deadlock
	switch {
	case errors.As(err, &d):
		fmt.Fprintf(s.out, "refused (%s), loose %t:", d.Code(), d.Loose)
		for _, v := range d.Cycle {
			fmt.Fprintf(s.out, " → %s on %s", idText(v.ID), nodeText(v.Callee))
		}
		fmt.Fprintln(s.out)
	case err != nil:
		fmt.Fprintf(s.out, "refused: %v\n", err)
	}
	return nil
}

func (s *scripted) list(size int) {
	var from Cursor
	for more := true; more; {
		var page []View
		page, from, more = s.g.List(from, size)
		if again, err := ParseCursor(from.String()); err != nil || again != from {
			fmt.Fprintf(s.out, "cursor %v became %v, %v\n", from, again, err)
		}
		var ids []string
		for _, v := range page {
			ids = append(ids, idText(v.ID))
		}
		fmt.Fprintf(s.out, "page %s\n", strings.Join(ids, " "))
	}
}

func (s *scripted) report(ok bool) {
	if !ok {
		fmt.Fprintln(s.out, "nothing changes")
	}
}

func (s *scripted) one(v View, known bool) {
	if !known {
		fmt.Fprintln(s.out, "unknown")
		return
	}
	s.views("call", []View{v})
}

func (s *scripted) views(word string, all []View) {
	for _, v := range all {
		fmt.Fprintf(s.out, "%s %s %s→%s %s.%s, %s", word, idText(v.ID), nodeText(v.Caller), nodeText(v.Callee), v.Service, v.Method, v.Policy)
		for stage, at := range v.Times {
			if !at.IsZero() {
				fmt.Fprintf(s.out, ", %s %d ms", Stage(stage), at.UnixMilli()-100_000)
			}
		}
		if !v.Parent.IsZero() {
			fmt.Fprintf(s.out, ", under %s", idText(v.Parent))
		}
		if !v.Behind.IsZero() {
			fmt.Fprintf(s.out, ", behind %s", idText(v.Behind))
		}
		if len(v.Pointers) > 0 {
			fmt.Fprintf(s.out, ", passes %v", v.Pointers)
		}
		if v.Attempts > 0 {
			fmt.Fprintf(s.out, ", attempt %d", v.Attempts+1)
		}
		for _, is := range []struct {
			what string
			set  bool
		}{{"one-way", v.Oneway}, {"loose", v.Loose}, {"orphan", v.Orphan}, {"serial", v.Serial}} {
			if is.set {
				fmt.Fprintf(s.out, ", %s", is.what)
			}
		}
		fmt.Fprintln(s.out)
	}
}

func idOf(s string) (id rpcpacket.ID) { copy(id[:], s); return id }

func idText(id rpcpacket.ID) string { return strings.TrimRight(string(id[:]), "\x00") }

func nodeOf(s string) Node {
	name, incarnation, _ := strings.Cut(s, ".")
	n, _ := strconv.Atoi(incarnation)
	return Node{rackaddr.Node(uint64(name[0] - 'A' + 1)), uint32(max(n, 1))}
}

func nodeText(n Node) string {
	s := string('A' + rune(n.Address.As16()[15]) - 1)
	if n.Incarnation > 1 {
		s += fmt.Sprintf(".%d", n.Incarnation)
	}
	return s
}

func pointerOf(s string) dsmpacket.Pointer {
	return dsmpacket.Make(rackaddr.DefaultDSMPrefix, 1, uint64(s[1]-'0')<<12)
}
