package admin

import (
	"fmt"
	"math/big"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// ruleOf prints a table entry: every field in the notation that people know it by.
// An access rule's region is put together with the rack's DSM prefix.
func ruleOf(e *p4rtclient.Entry, dsmPrefix uint8) api.Rule {
	r := api.Rule{Table: e.Table, Action: e.Action, Match: map[string]string{}}
	var machine uint64
	for _, m := range e.Match {
		r.Match[m.Field] = show(m.Field, m.Value, m.PrefixLen)
		switch m.Field {
		case "machine":
			machine, _ = m.Value.Uint64()
		case "region":
			id, _ := m.Value.Uint64()
			r.Region = dsmpacket.Make(dsmPrefix, uint8(machine), dsmpacket.RegionID(id)).String() //nolint:gosec // 8 bits
		}
	}
	for _, p := range e.Params {
		if r.Params == nil {
			r.Params = map[string]string{}
		}
		r.Params[p.Name] = show(p.Name, p.Value, 0)
	}
	return r
}

// show prints the value of a field of p4/bifrost.p4; prefix is the length of an LPM
// match, 0 for others. What has no notation of its own is a decimal number, or
// bits/length.
func show(field string, v p4rtclient.Value, prefix int) string {
	switch field {
	case "source", "destination", "service":
		if a, ok := v.Addr(); ok && prefix > 0 {
			return netip.PrefixFrom(a, prefix).String()
		} else if ok {
			return a.String()
		}
	case "machine_prefix": // the first 48 bits of pointers
		b := padded(v, 6)
		return netip.PrefixFrom(netip.AddrFrom16([16]byte(append(b, make([]byte, 10)...))), 48).String()
	case "method":
		return rpcpacket.Method(padded(v, len(rpcpacket.Method{}))).String()
	case "operation":
		if n, ok := v.Uint64(); ok && n < 256 {
			return dsmpacket.Op(n).String()
		}
	case "region":
		if n, ok := v.Uint64(); ok {
			return dsmpacket.RegionID(n).String()
		}
	case "dst", "src":
		return frame.MAC(padded(v, 6)).String()
	}
	n := new(big.Int).SetBytes([]byte(v))
	if prefix > 0 {
		return fmt.Sprintf("%s/%d", n, prefix)
	}
	return n.String()
}

// padded returns a value's bytes with the leading zeros that the canonical form
// leaves out.
func padded(v p4rtclient.Value, n int) []byte {
	b := make([]byte, n)
	copy(b[max(0, n-len(v)):], v)
	return b
}
