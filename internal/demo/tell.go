package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/lease"
)

// teller narrates: what the demo does, and what the Gatekeeper says it did.
type teller struct {
	out    io.Writer
	events <-chan gatekeeper.Event
	// names and regions are what the story calls nodes and regions.
	names   map[netip.Addr]string
	regions map[dsmpacket.Pointer]string
}

func newTeller(out io.Writer) teller {
	return teller{out: out, names: map[netip.Addr]string{}, regions: map[dsmpacket.Pointer]string{}}
}

// act begins a part of the story.
func (t *teller) act(format string, args ...any) {
	fmt.Fprintf(t.out, "\n%s\n", fmt.Sprintf(format, args...))
}

// say tells one step.
func (t *teller) say(format string, args ...any) {
	fmt.Fprintf(t.out, "  • %s\n", fmt.Sprintf(format, args...))
}

// until tells the Gatekeeper's events up to the first of a kind.
func (t *teller) until(ctx context.Context, kind gatekeeper.EventKind) error {
	for {
		select {
		case e, ok := <-t.events:
			if !ok {
				return errors.New("the Gatekeeper's events ended")
			}
			if s := t.describe(e); s != "" {
				fmt.Fprintf(t.out, "    gatekeeper: %s\n", s)
			}
			if e.Kind == kind {
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", kind, ctx.Err())
		}
	}
}

// next waits for one more event, without telling it.
func (t *teller) next(ctx context.Context) error {
	select {
	case _, ok := <-t.events:
		if !ok {
			return errors.New("the Gatekeeper's events ended")
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// describe puts the events of a call into words; "" for those not worth telling.
func (t *teller) describe(e gatekeeper.Event) string {
	switch e.Kind {
	case gatekeeper.CallHeld:
		return fmt.Sprintf("the switch holds %s's call of %s.%s", t.name(e.Node), e.Service, e.Method)
	case gatekeeper.ReplyHeld:
		return fmt.Sprintf("the switch holds %s's reply", t.name(e.Peer))
	case gatekeeper.RulesRevoked:
		return "revokes " + t.rules(e.Rules)
	case gatekeeper.RulesGranted:
		return "grants " + t.rules(e.Rules)
	case gatekeeper.CallReleased:
		return "releases the call to " + t.name(e.Peer)
	case gatekeeper.ReplyReleased:
		return "releases the reply to " + t.name(e.Node)
	}
	return ""
}

// rules lists rules by node and region: "c1: read+write a".
func (t *teller) rules(rs []lease.Rule) string {
	type key struct {
		node   netip.Addr
		region dsmpacket.Region
	}
	var order []key
	ops := map[key][]string{}
	for _, r := range rs {
		k := key{r.Node, r.Region}
		if ops[k] == nil {
			order = append(order, k)
		}
		ops[k] = append(ops[k], r.Op.String())
	}
	s := make([]string, len(order))
	for i, k := range order {
		s[i] = fmt.Sprintf("%s: %s %s", t.name(k.node), strings.Join(ops[k], "+"), t.region(k.region))
	}
	return strings.Join(s, ", ")
}

// name is a node's blade, where it is known.
func (t *teller) name(a netip.Addr) string {
	if n := t.names[a]; n != "" {
		return n
	}
	return a.String()
}

// region is what the story calls a region.
func (t *teller) region(r dsmpacket.Region) string {
	if n := t.regions[r.Base]; n != "" {
		return n
	}
	return "a new region of m" + strconv.Itoa(int(r.Base.Machine()))
}
