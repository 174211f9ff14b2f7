package simrack_test

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4"
)

// memoryAddresses are the addresses of all memory machines.
var memoryAddresses = netip.MustParsePrefix("::/32")

// broken says which assumption of p4/proof/theorems.py an entry breaks, "" if none.
func broken(e *p4rtclient.Entry) string {
	number := func(v p4rtclient.Value) (n uint64) {
		for _, b := range []byte(v) {
			n = n<<8 | uint64(b)
		}
		return n
	}
	param := func(name string) uint64 {
		i := slices.IndexFunc(e.Params, func(p p4rtclient.Param) bool { return p.Name == name })
		if i < 0 {
			return 0
		}
		return number(e.Params[i].Value)
	}
	memory := func(field string) bool {
		for _, m := range e.Match {
			if m.Field != field {
				continue
			}
			var a [16]byte
			copy(a[16-len(m.Value):], m.Value)
			bits := 128
			if e.Table != "rpc_route" {
				bits = m.PrefixLen
			}
			return netip.PrefixFrom(netip.AddrFrom16(a), bits).Overlaps(memoryAddresses)
		}
		return true // the field is left out: any address
	}
	switch e.Table {
	case "next_hop":
		if port := param("port"); e.Action == "forward" && (port == p4.CPUPort || port == 511) {
			return "hops_lead_to_blades"
		}
		if number(e.Match[0].Value) == 0 {
			return "hop_zero_is_nobody"
		}
	case "l3":
		if memory("destination") {
			return "addresses_of_memory_have_no_route"
		}
	case "rpc_route":
		if memory("service") {
			return "services_have_no_memory_address"
		}
	case "identity":
		if memory("source") && param("kind") != uint64(p4.MemoryServer) {
			return "nodes_have_no_memory_address"
		}
	}
	return ""
}

// keepAssumptions checks that the rules on the switch are such as the proof of the P4
// program assumes. All tests in virtual time end with it.
func keepAssumptions(t *testing.T, ctx context.Context, r *simrack.Rack) {
	t.Helper()
	g := r.Gatekeeper()
	if g == nil {
		return // the test has ended it
	}
	rules, err := g.Rules(ctx)
	if errors.Is(err, gatekeeper.ErrNoSwitch) {
		return
	}
	if err != nil {
		t.Error(err)
	}
	for _, e := range rules {
		if a := broken(&e); a != "" {
			t.Errorf("%+v breaks what the proof assumes: %s", e, a)
		}
	}
}

// The check sees each kind of rule while a rack is at work, and refuses what breaks an
// assumption.
func TestAssumptions(t *testing.T) {
	inVirtualTime(t, 1, wire.Impairment{}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		export(t, ctx, r, "s1")
		rules, err := r.Gatekeeper().Rules(ctx)
		if err != nil {
			t.Fatal(err)
		}
		seen := map[string]bool{}
		for _, e := range rules {
			seen[e.Table] = true
			if a := broken(&e); a != "" {
				t.Errorf("%+v breaks %s", e, a)
			}
		}
		for _, table := range []string{"identity", "l3", "dsm_home", "rpc_route", "next_hop"} {
			if !seen[table] {
				t.Errorf("no rule in %s", table)
			}
		}
	})
	lpm := func(field string, prefix string) p4rtclient.Match {
		p := netip.MustParsePrefix(prefix)
		return p4rtclient.Match{Field: field, Value: p4rtclient.Value(p.Addr().AsSlice()), PrefixLen: p.Bits()}
	}
	hop := p4rtclient.Match{Field: "hop", Value: p4rtclient.Uint(7)}
	for want, e := range map[string]p4rtclient.Entry{
		"hops_lead_to_blades":               {Table: "next_hop", Match: []p4rtclient.Match{hop}, Action: "forward", Params: []p4rtclient.Param{{Name: "port", Value: p4rtclient.Uint(p4.CPUPort)}}},
		"hop_zero_is_nobody":                {Table: "next_hop", Match: []p4rtclient.Match{{Field: "hop", Value: p4rtclient.Uint(0)}}, Action: "forward"},
		"addresses_of_memory_have_no_route": {Table: "l3", Match: []p4rtclient.Match{lpm("destination", "::/0")}},
		"services_have_no_memory_address":   {Table: "rpc_route", Match: []p4rtclient.Match{lpm("service", "0:0:1001::/128")}},
		"nodes_have_no_memory_address":      {Table: "identity", Match: []p4rtclient.Match{lpm("source", "0:0:1001::/48")}, Action: "known"},
	} {
		if got := broken(&e); got != want {
			t.Errorf("%+v breaks %q, want %q", e, got, want)
		}
	}
}
