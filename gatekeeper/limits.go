package gatekeeper

import "fmt"

// Limits bound what a Gatekeeper keeps and does at a time. What goes beyond is refused
// with an error or, where its sender will try again anyway, dropped and counted. A field
// that is 0 stands for its default.
type Limits struct {
	// Held bounds the packets that wait for rules, and those that wait for the log, at
	// up to 64 KiB each. Default: 4096.
	Held int
	// NodeCalls bounds the calls of one caller that are on record, finished ones
	// included that the caller has not settled yet. Default: 65,536.
	NodeCalls int
	// Calls bounds the calls in the call graph. Default: 1,048,576, some 300 MiB.
	Calls int
	// NodeSessions bounds the sessions of one caller; a runtime has one for each call
	// that it has out at a time. Default: 65,536.
	NodeSessions int
	// Allocs bounds the allocations of one node at one memory machine that it has not
	// settled; a client has far fewer requests out. Default: 65,536.
	Allocs int
	// Parts bounds the bytes of messages that have come in parts and are not whole; one
	// message has up to 1 MiB. Default: 64 MiB.
	Parts int
	// Resume is how many calls are released again at a time after a restart. Default: 256.
	Resume int
	// Scan is how many regions or calls are looked at in a turn for somebody who lists
	// them, before other inputs have theirs: some hundred microseconds. Default: 1024.
	Scan int
}

// DefaultLimits are the defaults.
var DefaultLimits = Limits{
	Held: 4096, NodeCalls: 1 << 16, Calls: 1 << 20, NodeSessions: 1 << 16, Allocs: 1 << 16, Parts: 64 << 20, Resume: 256, Scan: 1024,
}

// withDefaults fills in what is left out. What is negative is an error.
func (l Limits) withDefaults() (Limits, error) {
	for _, f := range []struct {
		name      string
		value     *int
		otherwise int
	}{
		{"Held", &l.Held, DefaultLimits.Held}, {"NodeCalls", &l.NodeCalls, DefaultLimits.NodeCalls}, {"Calls", &l.Calls, DefaultLimits.Calls},
		{"NodeSessions", &l.NodeSessions, DefaultLimits.NodeSessions}, {"Allocs", &l.Allocs, DefaultLimits.Allocs},
		{"Parts", &l.Parts, DefaultLimits.Parts}, {"Resume", &l.Resume, DefaultLimits.Resume}, {"Scan", &l.Scan, DefaultLimits.Scan},
	} {
		switch {
		case *f.value < 0:
			return l, fmt.Errorf("gatekeeper: Limits.%s of %d: want 1 at least, or 0 for the default of %d", f.name, *f.value, f.otherwise)
		case *f.value == 0:
			*f.value = f.otherwise
		}
	}
	return l, nil
}

// Bounds that are not up to whoever runs a Gatekeeper.
const (
	// maxBlades bounds the names of blades ever seen, several for each port.
	maxBlades = 4096
	// maxNodes bounds the nodes of a rack; the switch's identity table has 4096
	// rows, of which blades take some.
	maxNodes = 3500
	// maxServices is from how many services on those are forgotten that no node
	// exports any more; calling one that is remembered is Unavailable, not
	// NoSuchMethod.
	maxServices = 4096
	// maxClaims bounds the names of services and durable mains of one owner, maxOwners those
	// of all: beyond, names of which nothing is left are forgotten.
	maxClaims = 1024
	maxOwners = 1 << 16
	// maxMethods bounds the methods of one service on one node.
	maxMethods = 1024
	// maxName bounds the names of blades, programs and services, in bytes.
	maxName = 255
	// maxBatch is how many updates the writer puts into one Write, if it can
	// choose: one P4Runtime message of some 100 KiB.
	maxBatch = 1024
	// maxFixes is how often a plan turns insertions into modifications or back,
	// because the switch says so, until it gives up.
	maxFixes = 4
	// maxDenied is how many denied accesses are remembered for people.
	maxDenied = 256
	// logReserve is which part of the log, one in so many bytes, is not for new
	// calls and allocations: what is under way must be able to end. Half of it is not
	// for answers either, lest they keep out what makes room.
	logReserve = 8
	// eventQueue is how far a subscriber may lag behind before it loses events.
	eventQueue = 1024
)
