package p4rt

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const device = 7

// bench is a server over an in-memory listener, with clients. Tests run it in a
// synctest bubble: time is virtual, and synctest.Wait means "all is quiet".
type bench struct {
	t     *testing.T
	srv   *Server
	fakes *fakes
	lis   *bufconn.Listener
}

// virtual runs a test in a bubble with a server that has no pipeline yet.
func virtual(t *testing.T, f func(b *bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(newBench(t)) })
}

// configured is virtual with a primary whose pipeline is committed.
func configured(t *testing.T, f func(b *bench, c *controller)) {
	t.Helper()
	virtual(t, func(b *bench) {
		c := b.dial()
		c.mustBePrimary(1)
		c.commit(testInfo(t))
		f(b, c)
	})
}

func newBench(t *testing.T) *bench {
	t.Helper()
	return newBenchAs(t, Config{})
}

// newBenchAs is newBench with a configuration, but for device and loader.
func newBenchAs(t *testing.T, cfg Config) *bench {
	t.Helper()
	b := &bench{t: t, fakes: &fakes{}, lis: bufconn.Listen(1 << 20)}
	cfg.DeviceID, cfg.Load = device, b.fakes.load
	var err error
	if b.srv, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.srv.Serve(b.lis) }()
	t.Cleanup(func() {
		if err := b.srv.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return b
}

func testInfo(t testing.TB) *configv1.P4Info {
	t.Helper()
	text, err := os.ReadFile("testdata/all.p4info.txt")
	if err != nil {
		t.Fatal(err)
	}
	info := &configv1.P4Info{}
	if err := prototext.Unmarshal(text, info); err != nil {
		t.Fatal(err)
	}
	return info
}

// controller is a client with one stream.
type controller struct {
	p4v1.P4RuntimeClient
	t        *testing.T
	stream   p4v1.P4Runtime_StreamChannelClient
	hangUp   context.CancelFunc
	role     string
	election *p4v1.Uint128
	// in are the messages received; it is closed when the stream ends, and then
	// err tells how.
	in  chan *p4v1.StreamMessageResponse
	err error
	// While the controller does not read its stream, gate is full.
	gate chan struct{}
	// keepRegisters makes config ask for that.
	keepRegisters bool
}

// pause and resume stop and start reading the stream; one message may still come.
func (c *controller) pause()  { c.gate <- struct{}{} }
func (c *controller) resume() { <-c.gate }

// dial connects a controller and opens its stream.
func (b *bench) dial(opts ...grpc.DialOption) *controller {
	b.t.Helper()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return b.lis.DialContext(ctx) }),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:bufnet", opts...)
	if err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c := &controller{P4RuntimeClient: p4v1.NewP4RuntimeClient(conn), t: b.t, hangUp: cancel, in: make(chan *p4v1.StreamMessageResponse, 1<<16), gate: make(chan struct{}, 1)}
	if c.stream, err = c.StreamChannel(ctx); err != nil {
		b.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.receive()
	}()
	b.t.Cleanup(func() {
		cancel()
		<-done
		if err := conn.Close(); err != nil {
			b.t.Error(err)
		}
	})
	return c
}

func (c *controller) receive() {
	defer close(c.in)
	for {
		c.gate <- struct{}{}
		<-c.gate
		m, err := c.stream.Recv()
		if err != nil {
			c.err = err
			return
		}
		c.in <- m
	}
}

func (c *controller) send(m *p4v1.StreamMessageRequest) {
	c.t.Helper()
	if err := c.stream.Send(m); err != nil {
		c.t.Fatal(err)
	}
}

func id128(low uint64) *p4v1.Uint128 { return &p4v1.Uint128{Low: low} }

// arbitrate sends an arbitration message for the default role and waits until
// its effects are over. Election id 0 stands for unset.
func (c *controller) arbitrate(low uint64) {
	c.t.Helper()
	var id *p4v1.Uint128
	if low > 0 {
		id = id128(low)
	}
	c.arbitrateAs(&p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: id})
}

func (c *controller) arbitrateAs(m *p4v1.MasterArbitrationUpdate) {
	c.t.Helper()
	c.role, c.election = m.GetRole().GetName(), m.GetElectionId()
	c.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}})
	synctest.Wait()
}

func (c *controller) mustBePrimary(low uint64) {
	c.t.Helper()
	c.arbitrate(low)
	c.expectArbitration(codes.OK, low)
}

// next is the next message; there must be one once all is quiet.
func (c *controller) next() *p4v1.StreamMessageResponse {
	c.t.Helper()
	synctest.Wait()
	select {
	case m, ok := <-c.in:
		if !ok {
			c.t.Fatalf("the stream has ended: %v", c.err)
		}
		return m
	default:
		c.t.Fatal("no message has come")
		return nil
	}
}

// silent checks that no message has come.
func (c *controller) silent() {
	c.t.Helper()
	synctest.Wait()
	select {
	case m, ok := <-c.in:
		c.t.Fatalf("unexpected message (open=%v): %v %v", ok, m, c.err)
	default:
	}
}

// ended checks that the stream has ended with a code.
func (c *controller) ended(code codes.Code) {
	c.t.Helper()
	synctest.Wait()
	select {
	case m, ok := <-c.in:
		if ok {
			c.t.Fatalf("unexpected message: %v", m)
		}
		if status.Code(c.err) != code {
			c.t.Fatalf("the stream has ended with %v, want %v", c.err, code)
		}
	default:
		c.t.Fatal("the stream is still open")
	}
}

func (c *controller) expectArbitration(code codes.Code, election uint64) *p4v1.MasterArbitrationUpdate {
	c.t.Helper()
	m := c.next().GetArbitration()
	switch {
	case m == nil:
		c.t.Fatal("not an arbitration update")
	case codes.Code(m.GetStatus().GetCode()) != code || m.GetElectionId().GetLow() != election:
		c.t.Fatalf("arbitration update %v, want code %v and election %d", m, code, election)
	case m.GetDeviceId() != device:
		c.t.Fatalf("arbitration update for device %d", m.GetDeviceId())
	}
	return m
}

// patience bounds what must come on a busy machine, in the tests that run in real time.
const patience = time.Minute

// limited is the context of a call, which ends when that takes too long.
func limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), patience)
}

func (c *controller) config(action p4v1.SetForwardingPipelineConfigRequest_Action, cfg *p4v1.ForwardingPipelineConfig) error {
	ctx, cancel := limited()
	defer cancel()
	if c.keepRegisters {
		ctx = metadata.AppendToOutgoingContext(ctx, KeepRegisters, "yes")
	}
	_, err := c.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: device, Role: c.role, ElectionId: c.election, Action: action, Config: cfg,
	})
	return err
}

func (c *controller) commit(info *configv1.P4Info) {
	c.t.Helper()
	err := c.config(p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT, &p4v1.ForwardingPipelineConfig{
		P4Info: info, P4DeviceConfig: []byte("{}"), Cookie: &p4v1.ForwardingPipelineConfig_Cookie{Cookie: 99},
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// write sends a batch, given as text: one "INSERT|MODIFY|DELETE entity" each.
func (c *controller) write(updates ...*p4v1.Update) error {
	ctx, cancel := limited()
	defer cancel()
	_, err := c.Write(ctx, &p4v1.WriteRequest{DeviceId: device, Role: c.role, ElectionId: c.election, Updates: updates})
	return err
}

// entity parses an entity in text format.
func entity(t testing.TB, text string) *p4v1.Entity {
	t.Helper()
	e := &p4v1.Entity{}
	if err := prototext.Unmarshal([]byte(text), e); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return e
}

func (c *controller) insert(text string) *p4v1.Update {
	return &p4v1.Update{Type: p4v1.Update_INSERT, Entity: entity(c.t, text)}
}

func (c *controller) modify(text string) *p4v1.Update {
	return &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: entity(c.t, text)}
}

func (c *controller) del(text string) *p4v1.Update {
	return &p4v1.Update{Type: p4v1.Update_DELETE, Entity: entity(c.t, text)}
}

// must writes a batch that has to succeed.
func (c *controller) must(updates ...*p4v1.Update) {
	c.t.Helper()
	if err := c.write(updates...); err != nil {
		c.t.Fatalf("%v %v", err, codesOf(c.t, err))
	}
}

// fails writes one update that has to fail with a code.
func (c *controller) fails(code codes.Code, u *p4v1.Update) {
	c.t.Helper()
	err := c.write(u)
	if got := codesOf(c.t, err); len(got) != 1 || got[0] != code {
		c.t.Fatalf("%v\nfailed with %v (%v), want %v", u, got, err, code)
	}
}

// codesOf are the codes of a batch's p4.v1.Error details.
func codesOf(t testing.TB, err error) []codes.Code {
	t.Helper()
	var out []codes.Code
	for _, d := range status.Convert(err).Details() {
		e, ok := d.(*p4v1.Error)
		if !ok {
			t.Fatalf("detail %T is not a p4.v1.Error", d)
		}
		out = append(out, codes.Code(e.GetCanonicalCode()))
	}
	return out
}

// read reads a batch; entities that came before an error are returned too.
func (c *controller) read(requests ...*p4v1.Entity) ([]*p4v1.Entity, error) {
	ctx, cancel := limited()
	defer cancel()
	s, err := c.Read(ctx, &p4v1.ReadRequest{DeviceId: device, Entities: requests})
	if err != nil {
		return nil, err
	}
	var out []*p4v1.Entity
	for {
		m, err := s.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				err = nil
			}
			return out, err
		}
		out = append(out, m.GetEntities()...)
	}
}

// expect reads one request and compares the answer with the wanted entities.
func (c *controller) expect(request string, want ...string) {
	c.t.Helper()
	got, err := c.read(entity(c.t, request))
	if err != nil {
		c.t.Fatalf("read %s: %v %v", request, err, codesOf(c.t, err))
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			c.t.Errorf("read %s: unexpected %v", request, got[i])
		case i >= len(got):
			c.t.Errorf("read %s: missing %s", request, want[i])
		case !proto.Equal(got[i], entity(c.t, want[i])):
			c.t.Errorf("read %s: got %v, want %s", request, got[i], want[i])
		}
	}
}
