package gatekeeper

import (
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/bifrost-rack/bifrost/rpc/endpoint"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rack is a Gatekeeper and the real software switch with the real program; the
// blades are scripts. It lives in a synctest bubble: settle means that all has
// happened that follows from what was done.
type rack struct {
	t        testing.TB // of the bubble
	sw       *softswitch.Switch
	listen   *bufconn.Listener
	conn     *grpc.ClientConn
	gk       *Gatekeeper
	stop     func() error
	settle   func()
	frames   atomic.Int64 // that have arrived at blades
	writes   atomic.Int64 // requests to write, by anybody
	disk     *wal.Disk    // of the Gatekeeper's log, if it has one
	logLimit uint64       // wal.Options.Limit
	// exporters are the nodes that have exported a service last.
	exporters map[string]*testNode

	mu     sync.Mutex
	blades map[uint16]*testBlade
	dialed []net.Conn
	open   chan struct{} // closed while the way from the switch is not stalled
}

// inRack runs a test with a rack whose Gatekeeper is connected.
func inRack(t *testing.T, f func(r *rack)) {
	t.Helper()
	started(t, new(rack), f)
}

// started does so with a rack that is still empty.
func started(t *testing.T, r *rack, f func(r *rack)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r.fill(t)
		r.settle = synctest.Wait
		r.start(Config{})
		f(r)
	})
}

// testSecret is the secret of racks in tests.
var testSecret = endpoint.Secret{1}

func newRack(t testing.TB) *rack {
	t.Helper()
	r := new(rack)
	r.fill(t)
	return r
}

// fill gives a rack its switch, and a connection to it.
func (r *rack) fill(t testing.TB) {
	t.Helper()
	r.t, r.blades, r.open = t, map[uint16]*testBlade{}, make(chan struct{})
	close(r.open)
	r.startSwitch()
	var err error
	r.conn, err = grpc.NewClient("passthrough:switch", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			if strings.HasSuffix(method, "/Write") {
				r.writes.Add(1)
			}
			return invoke(ctx, method, req, reply, cc, opts...)
		}),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			r.mu.Lock()
			l := r.listen
			r.mu.Unlock()
			conn, err := l.DialContext(ctx)
			if err != nil {
				return nil, err
			}
			r.mu.Lock()
			r.dialed = append(r.dialed, conn)
			r.mu.Unlock()
			return stallable{conn, r}, nil
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if r.stop != nil {
			r.stopGatekeeper()
		}
		_ = r.conn.Close()
		r.stopSwitch()
	})
}

// stallable is the Gatekeeper's connection to the switch.
type stallable struct {
	net.Conn
	r *rack
}

// Read implements net.Conn.
func (s stallable) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	s.r.mu.Lock()
	open := s.r.open
	s.r.mu.Unlock()
	<-open
	return n, err
}

// stall lets nothing come from the switch for a while. What it sends comes later.
func (r *rack) stall(d time.Duration) {
	open := make(chan struct{})
	r.mu.Lock()
	was := r.open
	r.open = open
	r.mu.Unlock()
	<-time.After(d)
	r.mu.Lock()
	r.open = was
	r.mu.Unlock()
	close(open)
	r.settle()
}

// startSwitch starts a switch without a program, and attaches the blades to it.
func (r *rack) startSwitch() {
	r.t.Helper()
	sw, err := softswitch.New(softswitch.Config{DeviceID: 1, CPUPort: p4.CPUPort})
	if err != nil {
		r.t.Fatal(err)
	}
	l := bufconn.Listen(1 << 20)
	go func() { _ = sw.Serve(l) }()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sw, r.listen = sw, l
	for _, b := range r.blades {
		b.attach()
	}
}

func (r *rack) stopSwitch() {
	if err := r.sw.Close(); err != nil {
		r.t.Error(err)
	}
}

// start starts a Gatekeeper and waits until the switch obeys it.
func (r *rack) start(cfg Config) {
	r.t.Helper()
	cfg.Conn, cfg.Secret = r.conn, testSecret
	if cfg.Ports == nil {
		cfg.Open, cfg.ShareExports = true, true
	}
	if r.disk != nil {
		store, err := wal.OpenMemory(r.disk, wal.Options{Limit: r.logLimit})
		if err != nil {
			r.t.Fatal(err)
		}
		cfg.Store = store
	}
	if testing.Verbose() {
		cfg.Logger = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	gk, err := New(cfg)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	events := gk.Subscribe(ctx)
	go func() { ended <- gk.Run(ctx) }()
	r.gk = gk
	r.stop = func() error {
		cancel()
		err := <-ended
		if cfg.Store != nil {
			_ = cfg.Store.Close() // it may have crashed
		}
		return err
	}
	awaitSwitch(events)
}

// awaitSwitch returns when the Gatekeeper has told that the switch obeys it.
func awaitSwitch(events <-chan Event) {
	for e := range events {
		if e.Kind == SwitchConnected {
			return
		}
	}
}

func (r *rack) stopGatekeeper() {
	if err := r.stop(); err != nil {
		r.t.Errorf("the Gatekeeper ended: %v", err)
	}
	r.stop = nil
}

func (r *rack) snapshot() Snapshot {
	r.t.Helper()
	var s Snapshot
	if err := r.gk.query(context.Background(), func(c *controller) error {
		s = c.snapshot() // without a survey, for which memory would have to answer
		return nil
	}); err != nil {
		r.t.Fatal(err)
	}
	return s
}

// quiet expects that nothing has arrived at nodes.
func quiet(what string, ns ...*testNode) {
	for _, n := range ns {
		n.r.t.Helper()
		if got := n.take(); len(got) != 0 {
			n.r.t.Errorf("%s: node %s got %+v", what, n.address, got)
		}
	}
}
