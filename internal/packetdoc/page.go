// Package packetdoc writes docs/packets.md, docs/wire.md and the Python client's layout.py from the headers' definitions, and
// docs/rights.md from the model of rights in the switch, so that they cannot differ from the code.
package packetdoc

import (
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/fill"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/record"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

const intro = `# Packets

Generated from the code by ` + "`go test ./internal/packetdoc -update`" + `; do not edit.

Every packet is Ethernet / IPv6 / UDP. All fields are byte-aligned and in network byte order. A foreign, truncated,
oversized or inconsistent packet is an ordinary input everywhere: it is counted and dropped, or refused with an error.

## Addresses

| address | whose |
| --- | --- |
`

// Page returns the page as Markdown.
func Page() string {
	var b strings.Builder
	b.WriteString(intro)
	fmt.Fprintf(&b, "| `%s` | the Gatekeeper, behind the switch's CPU port |\n", rackaddr.Gatekeeper)
	fmt.Fprintf(&b, "| `%s` | blades |\n", rackaddr.BladePrefix)
	fmt.Fprintf(&b, "| `%s` | nodes; an address stays with its node when it moves |\n", rackaddr.NodePrefix)
	fmt.Fprintf(&b, "| `%s` | services; the low half is the start of the SHA-256 of the name |\n", rackaddr.ServicePrefix)
	fmt.Fprintf(&b, "| `%s` | memory machine 1, by default: bytes 0-3 zero, 4 DSM prefix, 5 machine, 6 operation, 7-15 slot (%d bits), generation (%d), offset (%d) |\n",
		dsmpacket.MachinePrefix(rackaddr.DefaultDSMPrefix, 1), dsmpacket.SlotBits, dsmpacket.GenerationBits, dsmpacket.OffsetBits)
	b.WriteString("\nMemory operations (byte 6):")
	for op := dsmpacket.OpAlloc; op <= dsmpacket.LastOp; op++ {
		fmt.Fprintf(&b, " %d %s%s", op, op, map[bool]string{true: ".", false: ","}[op == dsmpacket.LastOp])
	}
	b.WriteString(" A stored pointer has 0 there, and a generation that is not 0. Slot and generation name a region for ever. An alloc names the " +
		"one that is to be, and slots any one of the batch. A ledger operation names none; byte 7 says which one it is:")
	for op := dsmpacket.LedgerOpen; op <= dsmpacket.LastLedgerOp; op++ {
		fmt.Fprintf(&b, " %d (%s)%s", op, op, map[bool]string{true: ".", false: ","}[op == dsmpacket.LastLedgerOp])
	}
	b.WriteString("\n")
	section(&b, "Calls", rackaddr.PortRPC, rpcpacket.Layout, "Behind the header: the lists of regions, the Thrift message, the trailer.")
	table(&b, fmt.Sprintf("A list of regions has %d bytes. A message names each region once, however many pointers into it the payload has; "+
		"a receiver refuses a pointer whose region is not listed.", rpcpacket.ListSize), rpcpacket.ListLayout)
	section(&b, "Parts of calls", rackaddr.PortBulk, bulk.Layout, "Behind the header: the bytes of a part; of a pull 16 bytes for each range, offset and length. "+
		"A call or answer that exceeds a packet (flag 9) goes on here, from node to node; package bulk tells how.")
	section(&b, "Memory", rackaddr.PortDSM, dsmpacket.Layout, "Behind the header: the data of a write, or of a read's reply.")
	section(&b, "Filling a copy", rackaddr.PortFill, fill.Layout, "Behind the header: the item (package dsm/memory/store), or why the target refuses. "+
		"From memory server to memory server.")
	section(&b, "Control", rackaddr.PortControl, control.Layout, "Behind the header: a JSON body (package internal/control), or the message of an error.")
	return b.String()
}

const ledgerIntro = `# Records of a ledger

Generated from the code by ` + "`go test ./internal/packetdoc -update`" + `; do not edit.

A node writes these records to its ledger (package rpc/record). A record is its kind, one byte, and its fields in this order. A
number is an unsigned varint in its shortest form; bytes have their length in front; a list has its number of elements in front. What
is cut short, has bytes left over or is of another kind is refused. Records lie in the chunks of a ledger as whole records, each with
its length in front, or, if they do not fit into a packet, in several chunks of which each but the last continues.

`

// LedgerPage returns docs/ledger-records.md as Markdown.
func LedgerPage() string {
	var b strings.Builder
	b.WriteString(ledgerIntro)
	for i, d := range record.Describe() {
		if i > 0 {
			b.WriteString("\n")
		}
		fmt.Fprintf(&b, "## %d: %s\n\n%s.\n\n| field | type | meaning |\n| --- | --- | --- |\n", d.Kind, d.Kind, strings.ToUpper(d.Doc[:1])+d.Doc[1:])
		for _, f := range d.Fields {
			fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Name, f.Type, f.Doc)
		}
	}
	return b.String()
}

// section is one header's table.
func section(b *strings.Builder, title string, port int, l wirefmt.Layout, rest string) {
	table(b, fmt.Sprintf("## %s\n\nUDP port %d, header of %d bytes. %s", title, port, l.Size(), rest), l)
}

// table is a layout's fields, with text in front.
func table(b *strings.Builder, text string, l wirefmt.Layout) {
	fmt.Fprintf(b, "\n%s\n\n| bytes | field | meaning |\n| --- | --- | --- |\n", text)
	for _, f := range l.Fields {
		at := fmt.Sprint(f.Offset)
		if f.Size > 1 {
			at = fmt.Sprintf("%d-%d", f.Offset, f.Offset+f.Size-1)
		}
		fmt.Fprintf(b, "| %s | `%s` | %s |\n", at, f.Name, f.Doc)
	}
}
