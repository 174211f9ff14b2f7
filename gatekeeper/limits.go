package gatekeeper

// Every bound of the Gatekeeper, in one place. What goes beyond is refused with
// an error or, where its sender will try again anyway, dropped and counted.
const (
	// maxHeld bounds the packets that wait for rules: at 64 KiB each, 256 MiB.
	maxHeld = 4096
	// maxNodeCalls bounds the calls of one caller that are on record, finished
	// ones included that the caller has not settled yet.
	maxNodeCalls = 1 << 16
	// maxCalls bounds the calls in the call graph: some 300 MiB.
	maxCalls = 1 << 20
	// maxAllocs bounds the allocations of one node at one memory machine that it
	// has not settled; a client has far fewer requests out.
	maxAllocs = 1 << 16
	// maxSessions bounds the sessions of one caller; a runtime has one for each
	// call that it has out at a time.
	maxSessions = 1 << 16
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
	// maxScan is how many regions or calls are looked at in a turn for somebody who lists
	// them, before other inputs have theirs: some hundred microseconds.
	maxScan = 1024
	// maxDenied is how many denied accesses are remembered for people.
	maxDenied = 256
	// logReserve is which part of the log, one in so many bytes, is not for new
	// calls and allocations: what is under way must be able to end. Half of it is not
	// for answers either, lest they keep out what makes room.
	logReserve = 8
	// maxParts bounds the bytes of messages that have come in parts and are not whole.
	maxParts = 64 << 20
	// maxResume is how many calls are released again at a time after a restart.
	maxResume = 256
	// eventQueue is how far a subscriber may lag behind before it loses events.
	eventQueue = 1024
)
