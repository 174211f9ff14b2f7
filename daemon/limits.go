package daemon

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// Every time and bound of the daemons, in one place.
const (
	// maxAddresses is how many services a node serves.
	maxAddresses = 1024
	// serviceSockets is how many sockets of services all nodes have together; each user has its share (package share). A socket
	// takes a descriptor of the daemon.
	serviceSockets = 2 * maxAddresses
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
