package simrack

import (
	"context"
	"errors"
	"net"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
)

// The switch dies and returns, and the connection between it and the Gatekeepers breaks or
// stalls. Methods of Rack that do this may be called by OnFrame.

// startSwitch makes a switch that has no program, puts it on the wire and serves P4Runtime. Its registers are those that the machine has.
func (r *Rack) startSwitch() error {
	sw, err := softswitch.New(softswitch.Config{
		DeviceID: 1, CPUPort: p4.CPUPort, Log: r.cfg.Log, Registers: &r.registers,
	})
	if err != nil {
		return err
	}
	for _, b := range r.blades {
		if err := r.attach(sw, b.host.Port()); err != nil {
			return errors.Join(err, sw.Close())
		}
	}
	l := bufconn.Listen(64 << 10)
	r.core.run("P4Runtime", func(context.Context) error {
		if err := sw.Serve(l); err != nil && !errors.Is(err, softswitch.ErrClosed) {
			return err
		}
		return nil
	})
	r.line.listen(l)
	r.mu.Lock()
	r.sw = sw
	r.mu.Unlock()
	r.wire.Connect(sw.Input)
	return nil
}

// attach gives the switch a port on the wire.
func (r *Rack) attach(sw *softswitch.Switch, port datapath.Port) error {
	return sw.Attach(port, func(frame []byte) { r.wire.Output(port, frame) })
}

// CrashSwitch kills the switch's process: rules are lost, and frames until BootSwitch, too. The machine goes on, and keeps the
// registers. A switch that has crashed stays as it is.
func (r *Rack) CrashSwitch() error {
	r.mu.Lock()
	sw := r.sw
	r.sw = nil
	r.mu.Unlock()
	if sw == nil {
		return nil
	}
	r.wire.Connect(func(datapath.Port, []byte) {})
	r.line.listen(nil)
	r.line.cut()
	return sw.Close()
}

// LoseSwitch ends the switch as a power cut does: registers are lost as well.
func (r *Rack) LoseSwitch() error {
	if err := r.CrashSwitch(); err != nil {
		return err
	}
	r.registers.Lose()
	return nil
}

// BootSwitch starts a switch that has crashed; it has no rules. For one that is up it does
// nothing.
func (r *Rack) BootSwitch() error {
	if r.Switch() != nil {
		return nil
	}
	return r.startSwitch()
}

// Switch is the rack's switch; nil if it has crashed.
func (r *Rack) Switch() *softswitch.Switch {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sw
}

// CutLine breaks the connections between Gatekeepers and the switch. They can connect
// again at once.
func (r *Rack) CutLine() { r.line.cut() }

// StallLine holds back all that Gatekeepers and the switch say to each other, until the
// function that it returns is called: nothing is lost, and both believe to be connected.
// Stalls may overlap.
func (r *Rack) StallLine() (resume func()) { return r.line.stall() }

// dial connects to the switch that runs.
func (r *Rack) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:switch", append(p4rtclient.DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return r.line.dial(ctx) }))...)
}

// line is the connections between Gatekeepers and the switch.
type line struct {
	mu       sync.Mutex
	listener *bufconn.Listener // nil while the switch is down
	cables   map[*cable]bool
	stalls   int           // under way
	moving   chan struct{} // closed when stalls is 0 again; nil while it is 0
}

func newLine() *line { return &line{cables: map[*cable]bool{}} }

// listen says where the switch takes connections; nil if there is none.
func (l *line) listen(at *bufconn.Listener) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.listener = at
}

// errNoSwitch is what dialing gets while the switch is down.
var errNoSwitch = errors.New("simrack: the switch is down")

func (l *line) dial(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	at := l.listener
	l.mu.Unlock()
	if at == nil {
		return nil, errNoSwitch
	}
	conn, err := at.DialContext(ctx)
	if err != nil {
		return nil, err
	}
	c := &cable{Conn: conn, line: l, closed: make(chan struct{})}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cables[c] = true
	return c, nil
}

func (l *line) cut() {
	l.mu.Lock()
	var all []*cable
	for c := range l.cables {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		_ = c.Close()
	}
}

func (l *line) isStalled() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stalls > 0
}

func (l *line) stall() (resume func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stalls++; l.stalls == 1 {
		l.moving = make(chan struct{})
	}
	return sync.OnceFunc(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.stalls--; l.stalls == 0 {
			close(l.moving)
			l.moving = nil
		}
	})
}

// cable is a connection of a line, at the Gatekeeper's end.
type cable struct {
	net.Conn
	line   *line
	once   sync.Once
	closed chan struct{}
}

// wait waits for the end of a stall.
func (c *cable) wait() error {
	for {
		c.line.mu.Lock()
		moving := c.line.moving
		c.line.mu.Unlock()
		if moving == nil {
			return nil
		}
		select {
		case <-moving:
		case <-c.closed:
			return net.ErrClosed
		}
	}
}

// Read implements net.Conn.
func (c *cable) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if e := c.wait(); e != nil {
		return 0, e
	}
	return n, err
}

// Write implements net.Conn.
func (c *cable) Write(b []byte) (int, error) {
	if err := c.wait(); err != nil {
		return 0, err
	}
	return c.Conn.Write(b)
}

// Close implements net.Conn.
func (c *cable) Close() error {
	c.once.Do(func() {
		close(c.closed)
		c.line.mu.Lock()
		defer c.line.mu.Unlock()
		delete(c.line.cables, c)
	})
	return c.Conn.Close()
}
