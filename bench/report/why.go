package report

import (
	"fmt"
	"strings"
)

// Why says, from what was measured, what the time goes to where an aim is missed;
// "" if nothing was measured that would tell.
func (r *Report) Why(f Finding) string {
	switch {
	case f.Reached() || !f.Measured():
		return ""
	case strings.HasPrefix(f.Measure, "by region / the same transfers"):
		return "Each packet of the call, of its transfers and of their answers is judged on its way through the switch: registers are read and changed under a lock, and a call looks its block of slots up."
	case strings.HasPrefix(f.Measure, "by region, exactly once / with policy none"):
		return "The callee's ledger has the outcome before the answer leaves, and what the execution allocates and frees is committed at the memory servers, which answer."
	case strings.HasPrefix(f.Measure, "by region: 1 MiB through"):
		return "By reference, 1 MiB is written once and read once, whatever the length of the chain, and each call is a round trip. By value each call copies it, and streams it while it comes."
	case strings.Contains(f.Measure, "while the Gatekeeper is dead"):
		return "No packet of a call waits for the Gatekeeper. But a node whose batches of region slots are used up gets no other batch while it is dead, and a freed slot rests for a second."
	case strings.HasPrefix(f.Measure, "by region, 64 KiB: packets held"):
		return "No packet of a call is held. What is counted here are heartbeats and grants of batches, which come at their own pace."
	case strings.HasPrefix(f.Measure, "by region, 64 KiB: CPU of"):
		return "Of calls the switch tells nothing. What is counted here comes at its own pace, however many the calls are: heartbeats, what nodes tell of their calls, readings of registers, grants of batches."
	case strings.Contains(f.Measure, "regions kept"):
		return "A call by region takes five transfers and an allocation, each a round trip; TCP takes one. The runtime keeps freed regions for a program by itself, so keeping them oneself gains little."
	case strings.Contains(f.Measure, "by reference up to 16 KiB"):
		return "Such a reference travels inside the call: what is left is Thrift's work and the runtime's on both sides, and the copies."
	case strings.Contains(f.Measure, "by value from 64 KiB on"):
		return "Each way, a value is copied into its message before the kernel gets it, and beyond a packet it travels in datagrams, each of which the switch looks up; TCP streams. " +
			"What a call brings is new memory, and Go collects a program that keeps little after every 4 MiB of it (see [by reference](by-reference.md#what-is-left))."
	case strings.Contains(f.Measure, "the faster Thrift TCP, mean"):
		return "The same five transfers, beside which the copies that are saved weigh the more, the larger the arrays are."
	case strings.Contains(f.Measure, "by reference / raw TCP"):
		workload := "increment"
		if strings.HasPrefix(f.Measure, "add") {
			workload = "add"
		}
		return r.whyTransfers(workload)
	case strings.HasPrefix(f.Measure, "exactly once: p99 of a ping with policy none"):
		return "The slowest calls are those beside which another process of the rack has run: switch, Gatekeeper and memory servers share the server's CPU here."
	case strings.HasPrefix(f.Measure, "exactly once: 64 KiB"):
		return "With policy none the arrays go there and back by value, in parts. What a ledger is to keep does not go in parts, so they go through regions: allocated, written and read."
	case strings.HasPrefix(f.Measure, "exactly once:"):
		return "Beyond the call itself there is one append to a memory server, which the answer waits for: a packet each way, and a second process that is woken."
	case strings.HasPrefix(f.Measure, "ping, exactly once"):
		return r.whyExactly()
	case strings.HasPrefix(f.Measure, "ping, policy none"):
		return "Both sides wait alike. Beyond the datagrams there are Thrift's work on both sides and the runtime's: ids, windows for duplicates, time-outs."
	case strings.HasPrefix(f.Measure, "rpc.Ref /"):
		return "Where both ways cross depends on the machine and on what the callee does. The runtime goes by lengths, and by what answers say of a method's arguments: how many get a value and do not read all of it. It has few bounds, which two CPUs have shown."
	case strings.HasPrefix(f.Measure, "1 GiB there and back"):
		return "Raw TCP reads into the same buffer again and again. A call takes new memory at both ends, of which the kernel clears each page when it is first used: for the message that is sent, for the one that comes, " +
			"and for a third of that once more, since a receiver takes memory as the message comes."
	case strings.HasPrefix(f.Measure, "1 MiB through"):
		return "Each hop by reference is a call and an answer; by value it is one copy of the array more, streamed."
	case strings.Contains(f.Measure, "two copies"):
		return "The switch makes the second packet, but both memory daemons work for a write, and here they share the CPUs of the switch; the write is done when the slower one has answered."
	case strings.HasPrefix(f.Measure, "death of a memory blade"):
		return "Beside three reports of silence there are the end of the dead blade's identity, the survivor's new epoch and its route, each of which is waited for, and the time until the client sends its request again."
	case strings.HasPrefix(f.Measure, "read of 4 KiB, quiet: p99"):
		return "One read in a hundred meets a tick of the kernel's timer. On a virtual machine a tick takes the CPU for 16 to 32 µs, 250 times a second on the client's CPU and as often on the server's. " +
			"Raw UDP that spins meets them, too (see [by reference](by-reference.md#what-is-left))."
	case strings.HasPrefix(f.Measure, "read of 4 KiB while 1 GiB is filled: p99"):
		return "A thousand times a second 64 KiB are read, sent, and written to memory that is new to the kernel, which takes some 20 µs at the source and 50 at the target. Here both share the CPU that answers the reads, so each time one or two of them wait."
	case strings.Contains(f.Measure, "filled"), strings.HasPrefix(f.Measure, "filling"):
		return "The content goes through the same switch as the reads, and both memory daemons share its CPUs."
	case strings.HasPrefix(f.Measure, "read of 4 KiB"):
		return "Both are one request and one answer. Redis answers from the kernel's TCP and a single thread in C; the memory daemon is a Go program that waits by its network poller."
	case strings.HasPrefix(f.Measure, "bandwidth"):
		return "The sender's CPU is the bound: a datagram of 64 KiB takes it 8 to 9 µs, half of that to copy, half for the way through IPv6 and the switch's program into the receiver's socket, all of which a sender does itself on a veth; the receiver copies at the same time."
	case strings.HasPrefix(f.Measure, "ping throughput"):
		return "With one CPU on each side, throughput is the CPU's time for a call; gRPC packs the calls of many callers into few segments."
	}
	return ""
}

// whyTransfers tells of the breakdown of a workload by reference.
func (r *Report) whyTransfers(workload string) string {
	e := r.Experiment("where-time-goes")
	if e == nil {
		return ""
	}
	label := workload + "\nBifröst, by regions"
	total := 0.0
	part := map[string]float64{}
	for _, s := range e.Series {
		if p, ok := s.labelled(label); ok {
			part[s.Name] = p.Value
			total += p.Value
		}
	}
	if total == 0 {
		return ""
	}
	return fmt.Sprintf("At 16 KiB, %.0f %% of %s µs are reads and writes of memory, %.0f %% the network of the call, and %.0f %% allocations, frees and rights. "+
		"Each transfer is a round trip of its own, where TCP needs one for all; that does not grow with the arrays, so the ratio falls with size.",
		100*part["DSM"]/total, number(total), 100*part["network"]/total, 100*part[Rights]/total)
}

// Rights is the part of "where-time-goes" beyond transfers: allocations and frees, and what the switch does for a call with regions.
const Rights = "regions and rights"

// whyExactly tells of the pings with and without exactly-once.
func (r *Report) whyExactly() string {
	e := r.Experiment("ping-overhead")
	none, exact := e.value("thrift-udp", 0), e.value("bifrost-exact", 0)
	return fmt.Sprintf("The same call takes %s µs with policy none. The other %s µs are one append to the callee's ledger, which the answer waits for: "+
		"a packet to a memory server and back, and a third process that is woken.", number(none), number(exact-none))
}
