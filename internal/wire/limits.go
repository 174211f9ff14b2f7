package wire

import "github.com/bifrost-rack/bifrost/internal/duration"

// Every bound of the wire, in one place. What finds no room is a counted drop, as
// on any network; senders retransmit.
const (
	// queueDatagrams and queueBytes bound one endpoint's receive queue: some
	// hundred of the largest datagrams, as a Linux socket buffer of 8 MiB holds.
	queueDatagrams = 4096
	queueBytes     = 8 << 20
	// answerQueue bounds the echo replies not yet sent in direct mode.
	answerQueue = 64
	// inFlight bounds the frames on their way in one direction of one link when
	// scheduled; it is more than a long flood of a test.
	inFlight = 1 << 16
	// never is when a frame comes that takes for ever. Behind it there is room for the instants
	// of more frames than there are.
	never = duration.Max - 1<<32
)
