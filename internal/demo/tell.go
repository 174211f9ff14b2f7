package demo

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
)

// teller narrates what the demo does.
type teller struct {
	out io.Writer
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

// holds tells what the switch's registers have of a region.
func (t *teller) holds(r *gatekeeper.RegionState, region string) {
	by := "nobody"
	if len(r.Leases) > 0 {
		by = fmt.Sprintf("%s, by the call in %s", t.name(r.Leases[0].Node), r.Leases[0].Call)
	}
	fmt.Fprintf(t.out, "    switch: %s is %s's; it is lent to %s\n", region, t.name(r.Controller), by)
}

// name is a node's blade, where it is known.
func (t *teller) name(a netip.Addr) string {
	if n := t.names[a]; n != "" {
		return n
	}
	return a.String()
}
