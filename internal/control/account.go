package control

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Account is what a node knows of its rights: with it the switch's registers are rebuilt when they are lost (docs/rights.md, section 8).
type Account struct {
	// Regions are those that it owns.
	Regions []rpcpacket.Region `json:"regions,omitempty"`
	// Given are regions that it has handed over, and does not know to have arrived.
	Given []GivenRegion `json:"given,omitempty"`
	// Calls are those that it has made and that are not answered, of this incarnation. Asked are attempts of former ones that it asks about.
	Calls []OpenCall `json:"calls,omitempty"`
	Asked []Attempt  `json:"asked,omitempty"`
	// Last has the last number of each slot that this incarnation has used.
	Last []Attempt `json:"last,omitempty"`
	// Taken are the calls of others that it knows.
	Taken []TakenCall `json:"taken,omitempty"`
}

// GivenRegion is a region that was handed over.
type GivenRegion struct {
	Region rpcpacket.Region `json:"region"`
	To     netip.Addr       `json:"to"`
}

// Attempt is a place in a node's call slots.
type Attempt struct {
	Slot   rpcpacket.Slot   `json:"slot"`
	Number rpcpacket.Number `json:"number"`
}

// OpenCall is a call that is not answered.
type OpenCall struct {
	Attempt
	Call   string     `json:"call"` // its id
	Callee netip.Addr `json:"callee"`
	Slots  int        `json:"slots"`
	Oneway bool       `json:"oneway,omitempty"`
	// Lists are those of the packet, one for each slot at most.
	Lists []CallList `json:"lists,omitempty"`
}

// CallList is which regions one of a call's slots lists, and by which call they came.
type CallList struct {
	Regions []rpcpacket.Region `json:"regions"`
	By      Attempt            `json:"by,omitzero"`
}

// TakenCall is a call of another node. Its regions are named, unless it is over: then they are not known any more.
type TakenCall struct {
	Attempt
	Call    string             `json:"call"` // its id
	Caller  netip.Addr         `json:"caller"`
	Regions []rpcpacket.Region `json:"regions,omitempty"`
	Over    bool               `json:"over,omitempty"`
}

// GiveAccount tells a compute blade that a node is to give its account.
type GiveAccount struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	// Rebuild tells one question from another.
	Rebuild uint64 `json:"rebuild"`
}

// AccountPage is a part of a node's account, for GiveAccount's Rebuild. Pages count from 0, and come in their order; Last is the last one.
type AccountPage struct {
	Node        netip.Addr `json:"node"`
	Incarnation uint32     `json:"incarnation"`
	Rebuild     uint64     `json:"rebuild"`
	Page        int        `json:"page"`
	Last        bool       `json:"last,omitempty"`
	Account
}

// MaxAccount is how many entries an AccountPage has at most.
const MaxAccount = 256

// Pages divides an account, one page at least.
func (a *Account) Pages() (pages []AccountPage) {
	lengths := []int{len(a.Regions), len(a.Given), len(a.Calls), len(a.Asked), len(a.Last), len(a.Taken)}
	all, starts := 0, make([]int, len(lengths))
	for i, n := range lengths {
		starts[i] = all
		all += n
	}
	for from := 0; from == 0 || from < all; from += MaxAccount {
		end := from + MaxAccount
		pages = append(pages, AccountPage{Page: len(pages), Account: Account{
			part(a.Regions, starts[0], from, end), part(a.Given, starts[1], from, end), part(a.Calls, starts[2], from, end),
			part(a.Asked, starts[3], from, end), part(a.Last, starts[4], from, end), part(a.Taken, starts[5], from, end),
		}})
	}
	pages[len(pages)-1].Last = true
	return pages
}

// Add adds a page to an account.
func (a *Account) Add(p *Account) {
	a.Regions, a.Given, a.Calls = append(a.Regions, p.Regions...), append(a.Given, p.Given...), append(a.Calls, p.Calls...)
	a.Asked, a.Last, a.Taken = append(a.Asked, p.Asked...), append(a.Last, p.Last...), append(a.Taken, p.Taken...)
}
