package wire

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
)
