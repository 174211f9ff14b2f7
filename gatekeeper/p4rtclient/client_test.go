package p4rtclient

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is the real software switch behind a connection in memory.
type bench struct {
	t    *testing.T
	conn *grpc.ClientConn
	ctx  context.Context //nolint:containedctx // the test's

	mu     sync.Mutex
	sw     *softswitch.Switch
	listen *bufconn.Listener
	load   softswitch.Loader // of a switch that start starts; nil is its default
}

// virtual runs a test in a bubble with a switch that has no program yet.
func virtual(t *testing.T, f func(b *bench)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &bench{t: t, ctx: t.Context()}
		b.start()
		var err error
		b.conn, err = grpc.NewClient("passthrough:switch", append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				b.mu.Lock()
				l := b.listen
				b.mu.Unlock()
				return l.DialContext(ctx)
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = b.conn.Close()
			b.stop()
		}()
		f(b)
	})
}

func (b *bench) start() {
	b.t.Helper()
	sw, err := softswitch.New(softswitch.Config{DeviceID: 1, CPUPort: p4.CPUPort, Load: b.load})
	if err != nil {
		b.t.Fatal(err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sw, b.listen = sw, bufconn.Listen(1<<20)
	go func(l net.Listener) { _ = sw.Serve(l) }(b.listen)
}

func (b *bench) stop() {
	if err := b.sw.Close(); err != nil {
		b.t.Error(err)
	}
}

// client returns a client with an election id.
func (b *bench) client(election uint64) *Client {
	b.t.Helper()
	c, err := New(Config{Conn: b.conn, Program: program(b.t), DeviceID: 1, Election: Election{Low: election}})
	if err != nil {
		b.t.Fatal(err)
	}
	return c
}

// primary returns a client that is primary, with the program loaded, and its session.
func (b *bench) primary(election uint64) (*Client, *Session) {
	b.t.Helper()
	c := b.client(election)
	s, err := c.Open(b.ctx)
	if err != nil {
		b.t.Fatal(err)
	}
	if _, err := c.SetPipeline(b.ctx); err != nil {
		b.t.Fatal(err)
	}
	return c, s
}

// receive takes all that comes on a session.
func receive(s *Session) (packets chan PacketIn, digests chan Digest) {
	packets, digests = make(chan PacketIn, 16), make(chan Digest, 16)
	s.Receive(func(p PacketIn) { packets <- p }, func(d Digest) { digests <- d }, func(p4rt.Port) {})
	return packets, digests
}

func TestNew_Refused(t *testing.T) {
	p := program(t)
	conn := struct{ grpc.ClientConnInterface }{}
	for what, cfg := range map[string]Config{
		"no connection": {Program: p, DeviceID: 1, Election: Election{Low: 1}}, "no program": {Conn: conn, DeviceID: 1, Election: Election{Low: 1}},
		"device 0": {Conn: conn, Program: p, Election: Election{Low: 1}}, "election 0": {Conn: conn, Program: p, DeviceID: 1},
	} {
		if _, err := New(cfg); err == nil {
			t.Errorf("%s: no error", what)
		}
	}
}

// TestSetPipeline_Slow: a switch that needs a minute to load the program is waited for. If it were asked anew, it would begin again each time.
func TestSetPipeline_Slow(t *testing.T) {
	virtual(t, func(b *bench) {
		b.stop()
		loads := 0
		b.load = func(program []byte, env softswitch.Env) (softswitch.Executor, error) {
			loads++
			<-time.After(time.Minute) // virtual
			return softswitch.LoadGo(program, env)
		}
		b.start()
		c, s := b.primary(1)
		defer s.Close()
		if err := c.ResetPipeline(b.ctx); err != nil || loads != 2 {
			t.Errorf("once more: %v, loaded %d times", err, loads)
		}
	})
}

func TestSetPipeline(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		if set, err := c.SetPipeline(b.ctx); set || err != nil {
			t.Errorf("a second time: set %v, %v", set, err)
		}
		other, err := ParseProgram(append(p4.Info, '\n'), p4.JSON) // another program, as cookies go
		if err != nil {
			t.Fatal(err)
		}
		const state = "BifrostIngress.rights.switch_state"
		if err := b.sw.SetRegister(state, 1, []byte{7: 5}); err != nil {
			t.Fatal(err)
		}
		g := good()
		if err := c.Write(b.ctx, []Update{{Insert, g}}); err != nil {
			t.Fatal(err)
		}
		c.cfg.Program = other
		if set, err := c.SetPipeline(b.ctx); !set || err != nil {
			t.Errorf("another program: set %v, %v", set, err)
		}
		if v, err := b.sw.Register(state, 1); err != nil || v[7] != 5 {
			t.Errorf("a register has %x, %v: it outlives an update", v, err)
		}
		if all, err := c.Read(b.ctx); err != nil || len(all) != 0 {
			t.Errorf("tables have %v, %v: they are empty after an update", all, err)
		}
		if err := c.ResetPipeline(b.ctx); err != nil {
			t.Error(err)
		}
		if v, err := b.sw.Register(state, 1); err != nil || v[7] != 0 {
			t.Errorf("a register has %x, %v after a reset: want 0", v, err)
		}
	})
}

func TestWriteAndRead(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		g, h := good(), hop()
		if err := c.Write(b.ctx, []Update{{Insert, g}, {Insert, h}}); err != nil {
			t.Fatal(err)
		}
		all, err := c.Read(b.ctx)
		if err != nil || len(all) != 2 {
			t.Fatalf("read %v, %v", all, err)
		}
		one, err := c.Read(b.ctx, "next_hop")
		if err != nil || len(one) != 1 || one[0].Key() != h.Key() || !one[0].Equal(&h) {
			t.Errorf("read %v, %v", one, err)
		}
		if _, err := c.Read(b.ctx, "nothing"); err == nil {
			t.Error("an unknown table: no error")
		}
		changed := hop()
		changed.Params[0].Value = Uint(6)
		if err := c.Write(b.ctx, []Update{{Modify, changed}, {Delete, Entry{Table: g.Table, Match: g.Match}}}); err != nil {
			t.Fatal(err)
		}
		if all, err = c.Read(b.ctx); err != nil || len(all) != 1 || !all[0].Equal(&changed) {
			t.Errorf("read %v, %v", all, err)
		}
	})
}

// Of a batch in which some updates fail, the others are in force, and each
// failure is told.
func TestWrite_PartialFailure(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		h := hop()
		other := hop()
		other.Match[0].Value = Uint(4)
		err := c.Write(b.ctx, []Update{{Delete, good()}, {Insert, h}, {Insert, h}, {Modify, other}})
		var failed *BatchError
		if !errors.As(err, &failed) {
			t.Fatalf("error %v", err)
		}
		got := map[int]codes.Code{}
		for _, u := range failed.Updates {
			got[u.Index] = u.Code
			if u.Message == "" {
				t.Errorf("update %d: no message", u.Index)
			}
		}
		if len(got) != 3 || got[0] != codes.NotFound || got[2] != codes.AlreadyExists || got[3] != codes.NotFound {
			t.Errorf("failures %v: %v", got, err)
		}
		if all, err := c.Read(b.ctx); err != nil || len(all) != 1 {
			t.Errorf("read %v, %v", all, err)
		}
		// A bad update keeps the whole batch here.
		bad := good()
		bad.Action = "nothing"
		if err := c.Write(b.ctx, []Update{{Insert, other}, {Insert, bad}}); err == nil || errors.As(err, &failed) {
			t.Errorf("a bad entry: %v", err)
		}
		if all, err := c.Read(b.ctx); err != nil || len(all) != 1 {
			t.Errorf("read %v, %v", all, err)
		}
	})
}

// TestVacant: a controller whose election id is too low ends while another one is primary, and takes the id after that one's when nobody is. Who
// has been primary is deposed for good.
func TestVacant(t *testing.T) {
	virtual(t, func(b *bench) {
		_, s := b.primary(5)
		rules := make(chan *Client, 2)
		keep := func(c *Client) (ended chan error) {
			ended = make(chan error, 1)
			go func() {
				ctx, cancel := context.WithTimeout(b.ctx, time.Minute) // virtual
				defer cancel()
				ended <- c.Keep(ctx, func(_ context.Context, s *Session) error {
					receive(s)
					rules <- c
					<-s.Done()
					return s.Err()
				})
			}()
			return ended
		}
		if err := <-keep(b.client(3)); !errors.Is(err, ErrNotPrimary) || len(rules) > 0 {
			t.Errorf("beside a primary: %v", err)
		}
		s.Close()
		synctest.Wait() // the switch has heard of it
		began := time.Now()
		low := b.client(3)
		ended := keep(low)
		if c := <-rules; c != low || low.Election() != (Election{Low: 6}) || time.Since(began) < vacantFor {
			t.Errorf("after %s the controller rules under %v", time.Since(began), low.Election())
		}
		if err := low.Write(b.ctx, []Update{{Insert, hop()}}); err != nil {
			t.Errorf("a write: %v", err)
		}
		_, s9 := b.primary(9) // deposes it
		if err := <-ended; !errors.Is(err, ErrNotPrimary) {
			t.Errorf("deposed: %v", err)
		}
		s9.Close()
		synctest.Wait() // the switch has heard of it
		if err := <-keep(low); !errors.Is(err, ErrNotPrimary) || low.Election() != (Election{Low: 6}) {
			t.Errorf("once deposed, it ends with %v, under %v", err, low.Election())
		}
	})
}

// TestVacant_Returns: a primary that has lost its connection is back before a controller with too low an id takes its place.
func TestVacant_Returns(t *testing.T) {
	virtual(t, func(b *bench) {
		_, s := b.primary(5)
		s.Close()
		synctest.Wait() // the switch has heard of it
		ended := make(chan error, 1)
		go func() {
			ended <- b.client(3).Keep(b.ctx, func(context.Context, *Session) error {
				t.Error("two are primary")
				return nil
			})
		}()
		<-time.After(vacantFor - waits.Most) // virtual
		_, s = b.primary(5)
		defer s.Close()
		receive(s)
		if err := <-ended; !errors.Is(err, ErrNotPrimary) {
			t.Errorf("%v", err)
		}
		if err := s.Err(); err != nil {
			t.Errorf("who has come back: %v", err)
		}
	})
}

// A controller with a stale election id can neither become primary nor write.
func TestElection(t *testing.T) {
	virtual(t, func(b *bench) {
		c5, s5 := b.primary(5)
		defer s5.Close()
		receive(s5)
		if _, err := b.client(4).Open(b.ctx); !errors.Is(err, ErrNotPrimary) {
			t.Errorf("a lower id: %v", err)
		}
		if _, err := b.client(5).Open(b.ctx); err == nil || errors.Is(err, ErrNotPrimary) {
			t.Errorf("the same id: %v", err)
		}
		c6, s6 := b.primary(6)
		defer s6.Close()
		<-s5.Done()
		if err := s5.Err(); !errors.Is(err, ErrNotPrimary) {
			t.Errorf("the session ended with %v", err)
		}
		if err := s5.Send(PacketOut{Metadata: []uint64{0, 0}}); !errors.Is(err, ErrClosed) {
			t.Errorf("sending on it: %v", err)
		}
		if err := c5.Write(b.ctx, []Update{{Insert, hop()}}); status.Code(err) != codes.PermissionDenied {
			t.Errorf("a write of the old primary: %v", err)
		}
		if err := c6.Write(b.ctx, []Update{{Insert, hop()}}); err != nil {
			t.Errorf("a write of the new one: %v", err)
		}
	})
}

func TestPacketsAndDigests(t *testing.T) {
	virtual(t, func(b *bench) {
		c, s := b.primary(1)
		defer s.Close()
		var out [][]byte
		for port := range 3 {
			if err := b.sw.Attach(datapath.Port(port), func(f []byte) { out = append(out, append([]byte{byte(port)}, f...)) }); err != nil {
				t.Fatal(err)
			}
		}
		held := datagram(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fd00:b1f0::1"), 45102, []byte("hello"))
		b.sw.Input(2, bytes.Clone(held)) // the switch may work in place
		packets, digests := receive(s)
		in := <-packets
		if string(in.Payload) != string(held) || len(in.Metadata) != 3 || in.Metadata[0] != 2 || in.Metadata[1] != 1 {
			t.Errorf("PacketIn with metadata %v", in.Metadata)
		}
		if err := c.Write(b.ctx, []Update{{Insert, Entry{
			Table: "next_hop", Match: []Match{{Field: "hop", Value: Uint(9)}}, Action: "forward",
			Params: []Param{{"port", Uint(1)}, {"dst", Uint(1)}, {"src", Uint(2)}},
		}}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Send(PacketOut{Payload: held, Metadata: []uint64{9, 0}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(out) != 1 || out[0][0] != 1 {
			t.Errorf("out came %x", out)
		}
		for _, bad := range [][]uint64{{9}, {1 << 16, 0}} {
			if err := s.Send(PacketOut{Metadata: bad}); err == nil {
				t.Errorf("metadata %v: no error", bad)
			}
		}
		if err := c.EnableDigest(b.ctx, "nothing", Batch{}); err == nil {
			t.Error("an unknown digest: no error")
		}
		for range 2 { // the second time modifies
			if err := c.EnableDigest(b.ctx, "denied_digest_t", Batch{}); err != nil {
				t.Fatal(err)
			}
		}
		pointer := dsmpacket.Make(16, 1, dsmpacket.IDOf(1, 1))
		node := netip.MustParseAddr("fd00:b1f0:0:2::1")
		machine := pointer.Addr().As16()
		if err := c.Write(b.ctx, []Update{{Insert, Entry{
			Table: "identity", Match: []Match{{"ingress_port", Uint(2), 0}, {"source", Addr(node), 128}}, Action: "known", Params: []Param{{"kind", Uint(1)}, {"row", Uint(1)}, {"incarnation", Uint(1)}},
		}}, {Insert, Entry{
			Table: "dsm_home", Match: []Match{{Field: "machine_prefix", Value: Bytes(machine[:6])}}, Action: "to_hop", Params: []Param{{"hop", Uint(9)}},
		}}}); err != nil {
			t.Fatal(err)
		}
		rebuilt := append(make([]byte, 12), 0x88, 0xB5, 8) // an operation on the registers: packets are judged from now on
		rebuilt = append(rebuilt, make([]byte, 63)...)
		if err := s.Send(PacketOut{Payload: rebuilt, Metadata: []uint64{0, 0}}); err != nil {
			t.Fatal(err)
		}
		<-packets
		h := dsmpacket.Header{Kind: dsmpacket.Request, Request: 1, Floor: 1, Incarnation: 1}
		for range 2 { // each is told, since each is acknowledged
			b.sw.Input(2, datagram(node, pointer.With(dsmpacket.OpWrite).Addr(), 45101, h.Append(nil)))
			d := <-digests
			if d.Name != "denied_digest_t" || len(d.Fields) != 4 || d.Fields[0] != Uint(2) {
				t.Errorf("digest %+v", d)
			}
			synctest.Wait()
		}
	})
}

// What is on its way when a session ends is not handed over afterwards.
func TestSession_CloseEndsReceiving(t *testing.T) {
	virtual(t, func(b *bench) {
		_, s := b.primary(1)
		if err := b.sw.Attach(2, func([]byte) {}); err != nil {
			t.Fatal(err)
		}
		got := 0
		s.Receive(func(PacketIn) { got++ }, func(Digest) {}, func(p4rt.Port) {})
		held := datagram(netip.MustParseAddr("fe80::1"), netip.MustParseAddr("fd00:b1f0::1"), 45102, []byte("hello"))
		b.sw.Input(2, bytes.Clone(held))
		synctest.Wait()
		s.Close()
		before := got
		b.sw.Input(2, bytes.Clone(held))
		synctest.Wait()
		if before != 1 || got != 1 {
			t.Errorf("%d packets before the end, %d afterwards", before, got-before)
		}
	})
}

// Keep goes on from session to session, whatever happens to the switch.
func TestKeep(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.client(1)
		ctx, cancel := context.WithCancel(b.ctx)
		sessions := make(chan *Session)
		ended := make(chan error)
		go func() {
			ended <- c.Keep(ctx, func(_ context.Context, s *Session) error {
				receive(s)
				sessions <- s
				<-s.Done()
				return nil
			})
		}()
		for range 3 {
			s := <-sessions
			b.stop()
			<-s.Done()
			<-s.Context().Done() // a moment later
			if s.Err() == nil {
				t.Error("a session that ended says nothing")
			}
			<-time.After(time.Minute) // of virtual time
			b.start()
		}
		<-sessions
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("it ended with %v", err)
		}
	})
}

func TestKeep_EndsForGood(t *testing.T) {
	virtual(t, func(b *bench) {
		broken := errors.New("the switch cannot do this")
		if err := b.client(1).Keep(b.ctx, func(context.Context, *Session) error { return broken }); !errors.Is(err, broken) {
			t.Errorf("it ended with %v", err)
		}
		ended := make(chan error)
		ready := make(chan struct{})
		go func() {
			ended <- b.client(2).Keep(b.ctx, func(_ context.Context, s *Session) error {
				receive(s)
				close(ready)
				<-s.Done()
				return s.Err()
			})
		}()
		<-ready
		_, s := b.primary(3)
		defer s.Close()
		if err := <-ended; !errors.Is(err, ErrNotPrimary) {
			t.Errorf("it ended with %v", err)
		}
		// One error that a new session may cure is no reason to end.
		tries := 0
		err := b.client(4).Keep(b.ctx, func(context.Context, *Session) error {
			if tries++; tries < 3 {
				return status.Error(codes.Unavailable, "for now")
			}
			return broken
		})
		if !errors.Is(err, broken) || tries != 3 {
			t.Errorf("it ended after %d tries with %v", tries, err)
		}
	})
}

// datagram is a UDP frame, the same port on both sides.
func datagram(src, dst netip.Addr, port uint16, payload []byte) []byte {
	return frame.UDP6{
		DstMAC: frame.MAC{2, 0, 0, 0, 0, 9}, SrcMAC: frame.MAC{2, 0, 0, 0, 0, 1},
		Src: netip.AddrPortFrom(src, port), Dst: netip.AddrPortFrom(dst, port), Payload: payload,
	}.Append(nil)
}
