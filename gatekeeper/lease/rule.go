package lease

import (
	"fmt"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Node names a node by its address, which stays with it when it moves.
type Node = netip.Addr

// CallID names a call, and with it the leases that the call gives.
type CallID = rpcpacket.ID

// Rule permits one node one operation on one region; without a rule the switch
// denies. Op is OpRead, OpWrite or OpFree.
type Rule struct {
	Node   Node
	Op     dsmpacket.Op
	Region dsmpacket.Region
}

// String prints the rule as "NODE may OP REGION".
func (r Rule) String() string { return fmt.Sprintf("%s may %s %s", r.Node, r.Op, r.Region) }

// ops is a set of operations.
type ops uint8

const (
	mayRead ops = 1 << iota
	mayWrite
	mayFree
)

// opOrder lists the operations of a set in the order in which rules are given.
var opOrder = [...]struct {
	bit ops
	op  dsmpacket.Op
}{{mayRead, dsmpacket.OpRead}, {mayWrite, dsmpacket.OpWrite}, {mayFree, dsmpacket.OpFree}}

// rules appends the rules that set s gives node n on region r.
func (s ops) rules(dst []Rule, n Node, r dsmpacket.Region) []Rule {
	for _, o := range opOrder {
		if s&o.bit != 0 {
			dst = append(dst, Rule{n, o.op, r})
		}
	}
	return dst
}
