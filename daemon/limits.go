package daemon

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Every time and bound of the daemons, in one place.
const (
	// lookups is how many of all programs' questions who takes calls may be under way; each user has its share (package share).
	lookups = 4096
	// lookupRoom is how many answers wait for a lookup; it asks again for those beyond.
	lookupRoom = 64
	// defaultHeartbeat counts if the Gatekeeper's welcome names no interval.
	defaultHeartbeat = 100 * time.Millisecond
	// heartbeatPatience is how long a heartbeat waits for its reply. New ones go
	// out meanwhile, so that one lost packet does not make the blade look dead;
	// with heartbeats of 100 ms, ten are under way at most.
	heartbeatPatience = time.Second
	// helloPause is how long to wait after a hello that was refused for now.
	helloPause = time.Second
	// programFarewell is what programs get between SIGTERM and SIGKILL when their
	// daemon stops or their node is gone; nodeFarewell is how long the Gatekeeper
	// may take to hear that the nodes of a stopping daemon have left.
	programFarewell = 3 * time.Second
	nodeFarewell    = time.Second
	// outputPatience is how long a program's output is read after its end, in case
	// a process that has left its group holds on to it.
	outputPatience = time.Second
	// questions is how many questions of all programs to the Gatekeeper may be under way; each user has its share (package
	// share). The rest of what the conversation takes (control.Window) is for the daemon's own: heartbeats, hellos, leaves.
	questions = control.Window - control.Kept
)
