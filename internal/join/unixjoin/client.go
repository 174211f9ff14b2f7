package unixjoin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
)

// client is the program's end of a connection.
type client struct {
	conn    net.Conn
	sockets *arrivals
	done    chan struct{} // the node, or the connection, has ended

	writeMu sync.Mutex

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan reply
	rack    control.Rack
	refused error     // the daemon does not take the connection
	once    sync.Once // closes done
	reading chan struct{}

	policies atomic.Pointer[join.Policies]
	ping     atomic.Pointer[func()] // what is called for a question of the daemon's
	cancel   atomic.Pointer[func(string, string)]
	account  atomic.Pointer[func(uint64)]
}

// setRack takes a new view of the rack. Policies come only when they are others than
// before. The caller holds c.mu.
func (c *client) setRack(r control.Rack) {
	if r.PolicyVersion != c.rack.PolicyVersion {
		c.policies.Store(join.NewPolicies(r.Policies))
	}
	r.Policies = nil
	c.rack = r
}

// dial connects to a daemon.
func dial(ctx context.Context, socket string) (*client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, dialError(socket, err)
	}
	if err := checkDaemon(socket, conn); err != nil {
		conn.Close()
		return nil, err
	}
	c := &client{conn: conn, sockets: &arrivals{conn: conn.(*net.UnixConn)}, done: make(chan struct{}), reading: make(chan struct{}), waiting: map[uint64]chan reply{}}
	go c.read()
	return c, nil
}

// dialError says what to do when there is no daemon.
func dialError(socket string, err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fault.FromContext("connect", err)
	}
	f := &fault.Error{Code: fault.Unavailable, Op: "connect", Err: err}
	switch {
	case !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, os.ErrNotExist):
	case os.Getenv(join.SocketVariable) == socket:
		f.Err, f.Msg = nil, fmt.Sprintf("no compute daemon listens on %s: start `bifrost dev` again, or unset %s", socket, join.SocketVariable)
	default:
		f.Err, f.Msg = nil, fmt.Sprintf("no compute daemon listens on %s in this network namespace: start `bifrost dev` and set %s as it says, "+
			"run the program on a compute blade (`bifrost rack exec c1 -- program`), or start `bifrost compute`", socket, join.SocketVariable)
	}
	return f
}

// ask sends a request and waits for its reply.
func (c *client) ask(ctx context.Context, r request) (reply, error) {
	answer := make(chan reply, 1)
	c.mu.Lock()
	c.next++
	r.ID = c.next
	c.waiting[r.ID] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.waiting, r.ID)
		c.mu.Unlock()
	}()
	c.writeMu.Lock()
	err := writeLine(c.conn, r)
	c.writeMu.Unlock()
	if err != nil {
		<-c.reading // it ends, too
		return reply{}, c.gone(r.Op, err)
	}
	select {
	case a := <-answer:
		return a, a.err(r.Op)
	case <-c.reading:
		select {
		case a := <-answer: // it came with the end
			return a, a.err(r.Op)
		default:
			return reply{}, c.gone(r.Op, nil)
		}
	case <-ctx.Done():
		return reply{}, fault.FromContext(r.Op, ctx.Err())
	}
}

// gone is why nobody answers any more: the daemon has refused the connection, or is gone.
func (c *client) gone(op string, err error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.refused != nil {
		return c.refused
	}
	return &fault.Error{Code: fault.Unavailable, Op: op, Msg: "the compute daemon is gone", Err: err}
}

// read takes what the daemon sends until the connection ends.
func (c *client) read() {
	defer close(c.reading)
	defer c.end()
	defer c.sockets.close()
	in := newReader(c.sockets)
	for {
		var r reply
		if _, err := in.read(&r); err != nil {
			return
		}
		if r.Socket {
			r.file = c.sockets.next()
		}
		c.mu.Lock()
		if r.ID == 0 && r.Code != fault.OK {
			c.refused = r.err("connect")
		}
		if r.Rack != nil {
			c.setRack(*r.Rack)
		}
		if r.Joined != nil {
			c.setRack(r.Joined.Rack)
		}
		answer := c.waiting[r.ID]
		delete(c.waiting, r.ID)
		c.mu.Unlock()
		if r.Ended {
			c.end()
		}
		if f := c.cancel.Load(); r.Cancel != "" && f != nil {
			(*f)(r.Cancel, r.Deadlock)
		}
		if f := c.account.Load(); r.Account != 0 && f != nil {
			(*f)(r.Account)
		}
		if f := c.ping.Load(); r.Ping && f != nil {
			(*f)()
		}
		switch {
		case answer != nil:
			answer <- r // has room for the one reply
		case r.file != nil:
			r.file.Close() // whoever has asked has given up
		}
	}
}

// end says that the node is none any more.
func (c *client) end() { c.once.Do(func() { close(c.done) }) }

// close ends the connection; it returns when nothing reads it any more.
func (c *client) close() {
	c.conn.Close()
	<-c.reading
}

// AskStatus asks the daemon at a socket what it knows.
func AskStatus(ctx context.Context, socket string) (join.Status, error) {
	c, err := dial(ctx, socket)
	if err != nil {
		return join.Status{}, err
	}
	defer c.close()
	r, err := c.ask(ctx, request{Op: opStatus})
	if err != nil {
		return join.Status{}, err
	}
	if r.Status == nil {
		return join.Status{}, fault.New(fault.Internal, opStatus, "the daemon's reply has no status")
	}
	return *r.Status, nil
}
