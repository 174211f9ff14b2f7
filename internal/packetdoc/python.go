package packetdoc

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/bulk"
	"github.com/bifrost-rack/bifrost/rpc/direct"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// constant is one number or text that both ends of a protocol must agree on.
type constant struct {
	name  string
	value any // an integer, a string, or a time.Duration
	doc   string
}

// constants are those of the protocols that a program speaks.
func constants() []constant {
	return []constant{
		{"JOIN_SOCKET", join.SocketName, "abstract Unix socket of the blade's compute daemon; @ stands for a zero byte"},
		{"JOIN_VARIABLE", join.SocketVariable, "environment variable: the path of another socket than that, as `bifrost dev` prints it"},
		{"PROGRAM_VARIABLE", join.ProgramVariable, "environment variable: the name under which the daemon has started the program"},
		{"GATEKEEPER", rackaddr.Gatekeeper.String(), "address of the Gatekeeper"},
		{"SERVICE_PREFIX", rackaddr.ServicePrefix.Addr().String(), "upper half of the addresses of services"},
		{"PORT_RPC", rackaddr.PortRPC, "UDP port of answers and of calls with pointers, at both ends"},
		{"PORT_DSM", rackaddr.PortDSM, "UDP port of memory operations, at both ends"},
		{"PORT_BULK", rackaddr.PortBulk, "UDP port of large messages without pointers and of the parts of all, at both ends"},
		{"PORT_DIRECT", rackaddr.PortDirect, "UDP port of calls without pointers that fit a packet, at both ends; calls with pointers come to it, too"},
		{"OVERHEAD", netio.Overhead, "bytes of a packet that are the IPv6 and UDP headers"},
		{"MAX_DATAGRAM", netio.MaxDatagram, "bytes of a datagram at most"},
		{"RPC_MAGIC", rpcpacket.Magic, "opens a call header"},
		{"RPC_VERSION", rpcpacket.Version, "version of the call header"},
		{"DSM_MAGIC", dsmpacket.Magic, "opens a memory header"},
		{"DSM_VERSION", dsmpacket.Version, "version of the memory header"},
		{"MAX_LISTS", rpcpacket.MaxLists, "lists of regions that a message has at most"},
		{"LIST_REGIONS", rpcpacket.ListRegions, "regions that a list has room for"},
		{"FLAG_RELEASED", rpcpacket.FlagReleased, "call flag: the packet is the Gatekeeper's; it alone can set it"},
		{"FLAG_DONE", rpcpacket.FlagDone, "call flag: completion of a one-way"},
		{"FLAG_GIVEN_UP", rpcpacket.FlagGivenUp, "call flag: its caller gives it up; of an ACK: its ledger has such a call"},
		{"FLAG_MORE", rpcpacket.FlagMore, "call flag: the first packet of a large message"},
		{"FLAG_SETTLED", rpcpacket.FlagSettled, "flag of a FORGET: it lists calls that nobody asks for any more; in an ACK: they are forgotten"},
		{"FLAG_HEADERS", rpcpacket.FlagHeaders, "call flag: headers stand in front of the Thrift message"},
		{"MAX_HEADERS", rpcpacket.MaxHeaders, "headers of a message at most"},
		{"MAX_HEADER_BYTES", rpcpacket.MaxHeaderBytes, "bytes of them at most, 4 for each included"},
		{"FLAG_UNBEGUN", rpcpacket.FlagUnbegun, "call flag of an exception: the call did not begin to run, and will not; of an ACK: its sender has restarted"},
		{"FLAG_TAINTED", rpcpacket.FlagTainted, "call flag: a call on behalf of a call of policy tainted"},
		{"DSM_FINAL", dsmpacket.FlagFinal, "memory flag of a settle: the request must not be applied from now on"},
		{"DSM_APPLIED", dsmpacket.FlagApplied, "memory flag of the reply to a settle: the request was applied"},
		{"DSM_SLOT", dsmpacket.FlagSlot, "memory flag of the refusal of an alloc: the slot is not free"},
		{"BULK_MAGIC", bulk.Magic, "opens a header of the port for parts; its version is that of calls"},
		{"BULK_RANGES", bulk.MaxRanges, "ranges of a pull at most"},
		{"BULK_PULL_BYTES", bulk.MaxPull, "bytes that a pull is answered with at most"},
		{"BULK_TRIES", bulk.MaxTries, "pulls in vain after which the sender of a message counts as silent"},
		{"BULK_PUSH", bulk.Push, "bytes of parts that follow a first packet without being asked for, 1024 for each part included"},
		{"BULK_PUSH_REST", bulk.PushRest, "bytes of a last part that is pushed, too, at most"},
		{"MAX_MESSAGE", rpc.DefaultMaxMessage, "bytes of a Thrift message at most, unless a program says otherwise"},
		{"PROTOCOL", control.Protocol, "version of what a program and its daemon say to each other"},
		{"MAX_REGION", 1 << dsmpacket.MaxClass, "bytes of a region at most"},
		{"LIST_SIZE", rpcpacket.ListSize, "bytes of a list"},
		{"SLOT_BITS", dsmpacket.SlotBits, "bits of a pointer that say which slot its region has"},
		{"GENERATION_BITS", dsmpacket.GenerationBits, "bits of a pointer that say which region of its slot it names"},
		{"MAX_GENERATION", dsmpacket.MaxGeneration, "highest generation of a slot"},
		{"MOST_AHEAD", dsmpacket.MostAhead, "how far a new region's generation may lie above the last one of its slot"},
		{"BATCH_SLOTS", dsmpacket.BatchSlots, "region slots of a batch"},
		{"SLOTS_SIZE", dsmpacket.SlotsSize, "bytes of the answer about the slots of a batch: 4 for each, with the last generation; bit 31 says that its region is there, bit 30 that it was freed just now"},
		{"OFFSET_BITS", dsmpacket.OffsetBits, "bits of a pointer that say which byte of the region it names"},
		{"INITIAL_TIMEOUT", endpoint.InitialTimeout, "until the first call of a method is sent again"},
		{"MIN_TIMEOUT", endpoint.MinTimeout, "until a call is sent again, at least"},
		{"MAX_TIMEOUT", endpoint.MaxTimeout, "between two copies of a call, at most"},
		{"BLOCK_SLOTS", rpcpacket.BlockSlots, "call slots of a block"},
		{"BLOCKS", rpcpacket.Blocks, "blocks of a rack; nobody gets block 0"},
		{"MAX_BLOCKS", rpcpacket.MaxBlocks, "blocks of a node at most"},
		{"SLOT_OPEN", uint8(control.SlotOpen), "state of a call slot whose call is not over"},
		{"SHARE_COMES", uint8(control.ShareComes), "state of a standing lease by which nobody may read yet"},
		{"SHARE_HOLDS", uint8(control.ShareHolds), "state of one by which its reader reads"},
		{"SHARE_ENDED", uint8(control.ShareEnded), "state of one by which nobody reads any more"},
		{"COUNT_BITS", bits.Len64(rpcpacket.MaxCount), "bits of a call's number that count the calls of an incarnation in a slot; the incarnation is above them"},
		{"FORGET_AFTER", endpoint.ForgetAfter, "time after which a node is told that nobody asks for the last call of a slot any more"},
		{"HOST_VARIABLE", hostwire.Variable, "environment variable: the descriptor on which the child of `bifrost host` finds its host"},
		{"HOST_VERSION", hostwire.Version, "version of what a host and its child say to each other"},
		{"HOST_MAX_HELLO", hostwire.MaxHello, "bytes of a child's hello at most"},
		{"HOST_MAX_BESIDE", hostwire.MaxBeside, "bytes of a frame beside the Thrift message, value or result in it, at most"},
		{"HOST_MAX_KEY", hostwire.MaxKey, "bytes of a key of the state, or of an effect, at most"},
		{"HOST_MAX_RANDOM", hostwire.MaxRandom, "random bytes that a child gets at once, at most"},
		{"HOST_NO_POLICY", hostwire.NoPolicy, "stands for the policy that the rack gives to a call which asks for none"},
		{"SLOT_LIFETIME", direct.DefaultLimits.Lifetime, "silence after which a callee forgets a slot, if its calls have policy none"},
	}
}

// Python returns the module that clients/python takes its formats and numbers from.
func Python() string {
	var b strings.Builder
	b.WriteString("\"\"\"Wire formats and numbers of the rack's protocols; docs/wire.md explains them.\n\n" +
		"Generated from the code by `go test ./internal/packetdoc -update`; do not edit.\n\"\"\"\n\n")
	for _, c := range constants() {
		fmt.Fprintf(&b, "%s = %s  # %s\n", c.name, pythonValue(c.value), c.doc)
	}
	b.WriteString("\n# Error codes.\n")
	for code := fault.OK; code.Known(); code++ {
		fmt.Fprintf(&b, "%s = %d\n", pythonName(code.String()), code)
	}
	b.WriteString("\n# What people call the error codes.\nCODE_NAMES = (\n")
	for code := fault.OK; code.Known(); code++ {
		fmt.Fprintf(&b, "    %q,\n", code.String())
	}
	b.WriteString(")\n\n# Types of calls.\n")
	for t := rpcpacket.Call; t <= rpcpacket.Forget; t++ {
		fmt.Fprintf(&b, "TYPE_%s = %d\n", pythonName(t.String()), t)
	}
	b.WriteString("\n# Why the switch has turned a message around.\n")
	for t := rpcpacket.Denied; t <= rpcpacket.NeverBegun; t++ {
		fmt.Fprintf(&b, "TURNED_%s = %d\n", pythonName(t.String()), t)
	}
	b.WriteString("\n# Policies.\n")
	for p := rpcpacket.PolicyNone; p <= rpcpacket.PolicyTainted; p++ {
		fmt.Fprintf(&b, "POLICY_%s = %d\n", pythonName(p.String()), p)
	}
	b.WriteString("\n# Packets of the port for parts.\n")
	for k := bulk.Part; k <= bulk.Gone; k++ {
		fmt.Fprintf(&b, "BULK_%s = %d\n", pythonName(k.String()), k)
	}
	b.WriteString("\n# Frames between a host and its child.\n")
	for k := hostwire.Hello; k.Known(); k++ {
		fmt.Fprintf(&b, "HOST_%s = %d\n", pythonName(k.String()), k)
	}
	b.WriteString("\n# Memory operations.\n")
	for op := dsmpacket.OpAlloc; op <= dsmpacket.LastOp; op++ {
		fmt.Fprintf(&b, "OP_%s = %d\n", pythonName(op.String()), op)
	}
	b.WriteString("\n# Memory packets.\n")
	fmt.Fprintf(&b, "KIND_REQUEST = %d\nKIND_REPLY = %d\nKIND_NACK = %d\n", dsmpacket.Request, dsmpacket.Reply, dsmpacket.Nack)
	for _, l := range []wirefmt.Layout{rpcpacket.Layout, rpcpacket.ListLayout, dsmpacket.Layout, bulk.Layout, relay.Layout} {
		pythonLayout(&b, l)
	}
	return b.String()
}

// pythonLayout writes a header as a format of Python's struct module and the names of
// its fields.
func pythonLayout(b *strings.Builder, l wirefmt.Layout) {
	name := strings.ToUpper(l.Name)
	format := ">"
	for _, f := range l.Fields {
		letter, whole := map[int]string{1: "B", 2: "H", 4: "I", 8: "Q"}[f.Size]
		if !whole {
			letter = fmt.Sprintf("%ds", f.Size)
		}
		format += letter
	}
	fmt.Fprintf(b, "\n# The %s header, %d bytes, as a format of the struct module.\n%s_FORMAT = %q\n%s_FIELDS = (\n", l.Name, l.Size(), name, format, name)
	for _, f := range l.Fields {
		fmt.Fprintf(b, "    %q,\n", f.Name)
	}
	b.WriteString(")\n")
}

// pythonName is a name as Python writes constants.
func pythonName(s string) string {
	return strings.ToUpper(strings.NewReplacer(" ", "_", "-", "_").Replace(s))
}

// pythonValue is a constant's value; durations are in seconds.
func pythonValue(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%q", v)
	case time.Duration:
		return fmt.Sprint(v.Seconds())
	}
	return fmt.Sprintf("%d", v)
}
