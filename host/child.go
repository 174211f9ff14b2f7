package host

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/host/hostwire"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Config says what a host gives to its child. A field that is 0 stands for its default.
type Config struct {
	// Name is what people call the node. The default is that of its deployment and program; of a host that no deployment has started, what
	// the child says.
	Name string
	// Calls is how many calls of each service the child has at a time at most, those included that wait for calls of their own. Default: 256.
	Calls int
	// MaxMessage is how many bytes a Thrift message, a value of the state and the result of an effect have at most. Default: 64 MiB.
	MaxMessage int
	// HelloTimeout is how long the child may take to say what it serves. Default: 1 minute.
	HelloTimeout time.Duration
	// DrainTimeout is how long calls may take that are under way when the host is to end. Default: 2 seconds.
	DrainTimeout time.Duration
	// Logger receives what the child logs and what is wrong with it. Nil discards that.
	Logger *slog.Logger
}

// mostMessage is the most that Config.MaxMessage may say, in bytes.
const mostMessage = 1<<30 + 64<<10

func (c Config) withDefaults() (Config, error) {
	for _, f := range []struct {
		value     *int
		otherwise int
	}{{&c.Calls, 256}, {&c.MaxMessage, 64 << 20}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
	}
	for _, f := range []struct {
		value     *time.Duration
		otherwise time.Duration
	}{{&c.HelloTimeout, time.Minute}, {&c.DrainTimeout, 2 * time.Second}} {
		if *f.value == 0 {
			*f.value = f.otherwise
		}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if c.Calls < 1 || c.Calls > mostCalls || c.MaxMessage < 1 || c.MaxMessage > mostMessage {
		return c, rpc.Errorf(rpc.BadRequest, "%d calls at a time, and messages of %d bytes: want 1 to %d and 1 to %d", c.Calls, c.MaxMessage, mostCalls, mostMessage)
	}
	return c, nil
}

// mostCalls is the most that Config.Calls may say.
const mostCalls = 4096

// ErrChild is what a host ends with, wrapped, whose child has ended or has said what it may not.
var ErrChild = errors.New("the child of the host")

// Child is a process that has said what it serves.
type Child struct {
	config   Config
	log      *slog.Logger
	conn     net.Conn
	hello    hostwire.HelloBody
	services []*service

	node *rpc.Node     // that serves it
	gone chan struct{} // closed when nothing more is to be expected of the child

	mu    sync.Mutex
	why   error // valid once gone is closed
	last  uint32
	calls map[uint32]*call // those that the child has

	sending sync.Mutex

	clients sync.Map // target → thrift.TClient
}

// Accept reads what the process at the other end of conn serves. The connection is the Child's from then on, and is closed if that fails.
func Accept(ctx context.Context, conn net.Conn, cfg Config) (*Child, error) {
	c, err := accept(ctx, conn, cfg)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return c, nil
}

func accept(ctx context.Context, conn net.Conn, cfg Config) (*Child, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if err := conn.SetReadDeadline(time.Now().Add(cfg.HelloTimeout)); err != nil {
		return nil, err
	}
	f, err := hostwire.Read(conn, hostwire.MaxHello)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		return nil, fmt.Errorf("%w has not said what it serves: %w", ErrChild, err)
	case f.Kind != hostwire.Hello || f.Call != 0:
		return nil, fmt.Errorf("%w begins with %s for call %d: want hello, for call 0", ErrChild, f.Kind, f.Call)
	}
	c := &Child{config: cfg, log: cfg.Logger, conn: conn, gone: make(chan struct{}), calls: map[uint32]*call{}}
	if c.hello, err = hostwire.ParseHello(f.Body); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrChild, err)
	}
	for i := range c.hello.Services {
		s, err := newService(c, &c.hello.Services[i])
		if err != nil {
			return nil, err
		}
		c.services = append(c.services, s)
	}
	return c, conn.SetReadDeadline(time.Time{})
}

// JoinOptions are those with which the node must join that serves the child.
func (c *Child) JoinOptions() []rpc.JoinOption {
	all := []rpc.JoinOption{
		rpc.WithLogger(c.log), rpc.WithMaxMessage(uint64(c.config.MaxMessage)), rpc.WithLimits(rpc.Limits{Started: c.config.Calls}), //nolint:gosec // positive
	}
	name := c.config.Name
	if name == "" && os.Getenv(join.ProgramVariable) == "" { // which a deployment sets
		name = c.hello.Name
	}
	if name != "" {
		all = append(all, rpc.WithName(name))
	}
	return all
}

// Serve serves the child's services on a node, which has joined with [Child.JoinOptions] and is the child's alone. If ctx ends, calls under
// way finish, the node leaves, and Serve returns nil. If the child ends, or says what it may not, Serve returns an error and answers no call: the
// program must end then without closing the node, so that the next incarnation runs again what has not ended. Serve may be called once.
func (c *Child) Serve(ctx context.Context, node *rpc.Node) error {
	c.node = node
	welcome, _ := json.Marshal(hostwire.WelcomeBody{ // never fails
		Version: hostwire.Version, Node: node.Name(), Address: node.Address().String(), Calls: c.config.Calls * len(c.services), MaxMessage: c.config.MaxMessage,
	})
	c.send(hostwire.Welcome, 0, welcome)
	go c.read()
	if err := c.export(ctx); err != nil && ctx.Err() == nil {
		c.end(err)
		return err
	}
	c.send(hostwire.Ready, 0, nil)
	select {
	case <-c.gone:
		return c.failure()
	case <-node.Done():
		c.end(errors.New("the node has ended"))
		return errors.New("the host has lost its place in the rack")
	case <-ctx.Done():
	}
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.config.DrainTimeout)
	defer cancel()
	stop := context.AfterFunc(leaving, func() { c.log.Warn("host: calls have not finished in time") })
	defer stop()
	closed := make(chan error, 1)
	go func() { closed <- node.Close(leaving) }()
	select {
	case err := <-closed:
		c.end(errors.New("the host has ended"))
		return err
	case <-c.gone:
		return c.failure()
	}
}

// export has the rack route the services' calls to the node.
func (c *Child) export(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		select {
		case <-c.gone:
			cancel(c.failure())
		case <-ctx.Done():
		}
	}()
	var err error
	for _, s := range c.services {
		if err = c.node.Export(ctx, s.name, s, s.options()...); err != nil {
			break
		}
		c.log.Debug("host: a service is exported", "service", s.name, "state", s.state != nil)
	}
	cancel(nil)
	<-watched
	select {
	case <-c.gone:
		return c.failure()
	default:
		return err
	}
}

// read takes frames of the child until it says what it may not, or nothing more.
func (c *Child) read() {
	for {
		f, err := hostwire.Read(c.conn, c.config.MaxMessage+hostwire.MaxBeside)
		if err == nil {
			err = c.take(f)
		} else if errors.Is(err, io.EOF) {
			err = errors.New("it has ended")
		}
		if err != nil {
			c.end(err)
			return
		}
	}
}

// take gives a frame to its call.
func (c *Child) take(f hostwire.Frame) error {
	if f.Kind == hostwire.Log {
		return c.logs(f)
	}
	if !f.Kind.FromChild() || f.Kind == hostwire.Hello {
		return fmt.Errorf("it has sent %s for call %d, which is not for it to send", f.Kind, f.Call)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.calls[f.Call]
	if k == nil {
		return fmt.Errorf("it has sent %s for call %d, which it does not have: calls are answered once", f.Kind, f.Call)
	}
	switch {
	case k.turn == effect && f.Kind != hostwire.EffectDone, k.turn == own && f.Kind == hostwire.EffectDone, k.turn == hosts:
		return fmt.Errorf("it has sent %s for call %d while %s", f.Kind, f.Call, k.turn)
	case k.turn == own && !f.Kind.Asks():
		delete(c.calls, f.Call)
	}
	k.turn = hosts
	k.frames <- f // there is room for one
	return nil
}

// levels are those of the child's logs.
var levels = [...]slog.Level{slog.LevelDebug, slog.LevelInfo, slog.LevelWarn, slog.LevelError}

// logs writes a line of the child's.
func (c *Child) logs(f hostwire.Frame) error {
	l, err := hostwire.ParseLog(f.Body)
	if err != nil {
		return err
	}
	attrs := []any{"text", l.Text}
	c.mu.Lock()
	if k := c.calls[f.Call]; k != nil {
		attrs = append(attrs, "service", k.service, "method", k.method, "call", k.id)
	}
	c.mu.Unlock()
	c.log.Log(context.Background(), levels[l.Level], "child", attrs...)
	return nil
}

// send sends a frame to the child. If that fails, the child is gone.
func (c *Child) send(k hostwire.Kind, call uint32, body []byte) {
	head := hostwire.AppendHead(nil, k, call, len(body))
	c.sending.Lock()
	defer c.sending.Unlock()
	parts := net.Buffers{head, body}
	if len(body) <= joined {
		parts = net.Buffers{append(head, body...)}
	}
	if _, err := parts.WriteTo(c.conn); err != nil {
		c.end(fmt.Errorf("it takes nothing more: %w", err))
	}
}

// joined is up to how many bytes of a body go out together with what stands in front of it.
const joined = 16 << 10

// end notes that nothing more is to be expected of the child, and why. It closes the connection, on which others may be waiting: a child that
// has misbehaved need not read.
func (c *Child) end(why error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.gone:
	default:
		c.why = why
		close(c.gone)
		_ = c.conn.Close()
	}
}

// failure is why the child is gone.
func (c *Child) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w: %w", ErrChild, c.why)
}

// begin gives a call a number.
func (c *Child) begin(k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.last++; c.last == 0 || c.calls[c.last] != nil; {
		c.last++
	}
	k.number = c.last
	c.calls[k.number] = k
}

// target is what a client of the node is for.
type target struct {
	service string
	policy  uint8
}

// client is the node's client for a service.
func (c *Child) client(t target) thrift.TClient {
	if known, ok := c.clients.Load(t); ok {
		return known.(thrift.TClient)
	}
	var opts []rpc.ClientOption
	if t.policy != hostwire.NoPolicy {
		opts = append(opts, rpc.WithPolicy(rpc.Policy(t.policy)))
	}
	known, _ := c.clients.LoadOrStore(t, c.node.Client(t.service, opts...))
	return known.(thrift.TClient)
}

// sorted are the keys of a map, in order.
func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
