package p4rt

// The limits of the server, with their reasons. They bound what a controller
// (or a crowd of them) can make the switch hold.
const (
	// streamWorkers are the goroutines that wait for calls; beyond them, each call
	// gets one of its own, with a stack that has to grow first.
	streamWorkers = 8

	// maxStreamsPerRole bounds the controllers of one role: a primary and its
	// standbys, generously.
	maxStreamsPerRole = 64
	// maxRoles bounds the roles ever seen; each is remembered for good, because
	// its highest election id must be.
	maxRoles = 256
	// maxMessageSize is what gRPC accepts from a controller. Device configs run
	// to megabytes, and the specification recommends much more than gRPC's 4 MiB.
	maxMessageSize = 128 << 20
	// receiveWindow is the flow control window of a stream and of a connection
	// towards us: several jumbo PacketOuts in flight without waiting.
	receiveWindow = 4 << 20
	// readChunk is roughly how many entities go into one ReadResponse: well
	// below gRPC's default limit of 4 MiB for a client.
	readChunk = 1024
	// maxReadCells bounds how many cells of an array one request reads, since all
	// of an answer is gathered before any of it is sent: some 150 MiB.
	maxReadCells = 1 << 20
	// maxDigestList bounds a digest list whose configuration sets no limit.
	maxDigestList = 1024
	// maxDigestCache bounds the samples remembered until they are acknowledged;
	// beyond it the oldest list is forgotten, which costs duplicates only.
	maxDigestCache = 1 << 16
	// maxIdleQueue bounds idle notifications that wait to be looked up.
	maxIdleQueue = 1024
	// maxInstance is the largest replica instance: v1model's egress_rid has 16 bits.
	maxInstance = 1<<16 - 1
	// maxSession is the largest clone session id that v1model's targets accept.
	maxSession = 1<<15 - 1
	// maxGroup is the largest multicast group: v1model's mcast_grp has 16 bits.
	maxGroup = 1<<16 - 1
	// maxReplicas bounds the copies of one packet.
	maxReplicas = 4096
)
