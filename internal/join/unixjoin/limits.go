package unixjoin

import (
	"fmt"
	"sync"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// Every bound of the socket, in one place.
const (
	// maxLine is the longest line in bytes: a service of some thousand methods, or
	// the status of a blade with as many nodes.
	maxLine = 1 << 20
	// firstBuffer is how many bytes of a line are read at a time. A connection has one buffer of this size; longer
	// lines take memory as they come.
	firstBuffer = 4 << 10
	// maxRequests is how many requests of a connection wait at most while one is
	// carried out; a program that sends more without reading its replies is broken.
	maxRequests = 64
	// lineBytes is how many bytes the lines of all connections take together: those that are being read, wait to be
	// carried out, or to be taken by their programs.
	lineBytes = 64 << 20
	// moreConnections is how many connections a daemon takes beside two for each node that it may run.
	moreConnections = 256
)

// Limits is what the users of a blade may take of a daemon's socket: connections, and memory for lines. Each user has its
// share (package share), and is refused alone. Methods may be called concurrently.
type Limits struct {
	mu          sync.Mutex
	connections *share.Pool[uint32]
	bytes       *share.Pool[uint32]
}

// NewLimits returns the limits of a daemon that runs so many nodes.
func NewLimits(nodes int) *Limits {
	return &Limits{
		connections: share.New[uint32](uint64(2*nodes + moreConnections)), //nolint:gosec // positive
		bytes:       share.New[uint32](lineBytes),
	}
}

// Refused tells how often users were refused connections and bytes, by Unix user. Users beyond share.MaxOwners are
// counted together.
func (l *Limits) Refused(each func(user, what string, n uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for what, pool := range map[string]*share.Pool[uint32]{"connections": l.connections, "bytes": l.bytes} {
		others := pool.Refusals().Each(func(uid uint32, n uint64) { each(fmt.Sprint(uid), what, n) })
		if others > 0 {
			each("other", what, others)
		}
	}
}

// connect takes a connection of a user; it is to be given back with disconnect.
func (l *Limits) connect(uid uint32) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.connections.Take(uid, 1) {
		return fault.New(fault.Overloaded, "connect", "user %d has %d connections to this blade's daemon, its share of %d: end programs of that user", uid, l.connections.Held(uid), l.connections.Total())
	}
	return nil
}

func (l *Limits) disconnect(uid uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connections.Release(uid, 1)
}

// take takes bytes for lines of a user; they are to be given back with give.
func (l *Limits) take(uid uint32, n int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.bytes.Take(uid, uint64(n)) { //nolint:gosec // a length
		return fault.New(fault.Overloaded, "read", "lines of user %d take %d bytes, its share of %d", uid, l.bytes.Held(uid), l.bytes.Total())
	}
	return nil
}

func (l *Limits) give(uid uint32, n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes.Release(uid, uint64(n)) //nolint:gosec // a length
}
