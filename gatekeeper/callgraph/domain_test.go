package callgraph

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestDomainOf: what fails with a node. A call is written as "id parent caller>callee policy", with "oneway" behind it; node 1 fails.
func TestDomainOf(t *testing.T) {
	for what, c := range map[string]struct {
		calls []string
		want  string // nodes | rerun | cut | out | waiting
	}{
		"nothing":              {nil, "1 | - | - | - | -"},
		"recover and none":     {[]string{"a - 2>1 recover", "b - 2>1 none", "c a 1>3 recover"}, "1 | a | b | c | -"},
		"those who wait":       {[]string{"a - 4>2 recover", "b a 2>1 recover", "c a 2>1 none", "d - 4>2 recover"}, "1 | b | c | - | a"},
		"the latest first":     {[]string{"a - 2>1 recover", "b - 3>1 recover"}, "1 | b a | - | - | -"},
		"fate-share, its root": {[]string{"a - 2>1 fate-share", "b - 3>2 recover"}, "1 2 | b a | - | - | -"},
		"fate-share, below":    {[]string{"a - 1>2 fate-share", "b a 2>3 recover"}, "1 2 | a | - | b | -"},
		"fate-share, far":      {[]string{"a - 1>2 fate-share", "b a 2>3 fate-share", "c b 3>4 none"}, "1 2 3 | b a | - | c | -"},
		"tainted":              {[]string{"a - 1>2 tainted", "b a 2>3 recover", "c b 3>4 none"}, "1 2 3 4 | b a | c | - | -"},
		"a one-way":            {[]string{"a - 1>2 fate-share oneway", "b - 4>5 recover", "c b 5>1 recover oneway"}, "1 | c | - | a | -"},
		"tainted, a one-way":   {[]string{"a - 1>2 tainted", "b a 2>3 recover oneway"}, "1 2 | a | - | b | -"},
		"calls that go round":  {[]string{"a b 1>2 tainted", "b a 2>1 recover"}, "1 2 | b a | - | - | -"},
	} {
		calls := make([]Call, len(c.calls))
		for i, text := range c.calls {
			calls[i] = callIn(t, text)
		}
		d := DomainOf(calls, nodeAt(1))
		nodes := make([]string, len(d.Nodes))
		for i, n := range d.Nodes {
			nodes[i] = fmt.Sprint(n.Address.As16()[15])
		}
		slices.Sort(nodes)
		got := strings.Join([]string{strings.Join(nodes, " "), names(d.Rerun), names(d.Cut), names(d.Out), names(d.Waiting)}, " | ")
		if got != c.want {
			t.Errorf("%s: %s, want %s", what, got, c.want)
		}
	}
}

func nodeAt(n uint64) Node { return Node{rackaddr.Node(n), 1} }

func callIn(t *testing.T, text string) (c Call) {
	t.Helper()
	w := strings.Fields(text)
	var from, to uint64
	if _, err := fmt.Sscanf(w[2], "%d>%d", &from, &to); err != nil {
		t.Fatal(err)
	}
	c.ID = rpcpacket.ID{w[0][0]}
	if w[1] != "-" {
		c.Parent = rpcpacket.ID{w[1][0]}
	}
	c.Caller, c.Callee, c.Oneway = nodeAt(from), nodeAt(to), len(w) > 4
	for p := rpcpacket.PolicyNone; p <= rpcpacket.PolicyTainted; p++ {
		if p.String() == w[3] {
			c.Policy = p
		}
	}
	return c
}

func names(ids []rpcpacket.ID) string {
	if len(ids) == 0 {
		return "-"
	}
	var all []string
	for _, id := range ids {
		all = append(all, string(id[:1]))
	}
	return strings.Join(all, " ")
}
