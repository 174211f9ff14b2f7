package unixjoin

import (
	"context"
	"math"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
)

// addressPatience bounds how long the daemon may take to add an address or make a socket, which
// it does by itself.
const addressPatience = 10 * time.Second

// crashPatience bounds how long the word of a node's crash takes to leave.
const crashPatience = time.Second

// Joiner joins by the compute daemon of the blade that the program runs on.
type Joiner struct {
	// Socket is the daemon's; "" stands for join.Socket.
	Socket string
}

var _ join.Joiner = Joiner{}

// Join implements join.Joiner. It fails as Unavailable where no daemon listens.
func (j Joiner) Join(ctx context.Context, name string) (join.Session, error) {
	if j.Socket == "" {
		j.Socket = join.Socket()
	}
	c, err := dial(ctx, j.Socket)
	if err != nil {
		return nil, err
	}
	r, err := c.ask(ctx, request{Op: opJoin, Name: name, Instance: os.Getenv(join.ProgramVariable), Speaks: new(control.Release)})
	if err == nil && r.Joined == nil {
		err = fault.New(fault.Internal, opJoin, "the daemon's reply has no node")
	}
	if err == nil {
		err = r.Joined.Speaks.Check(opJoin, "this blade's daemon", "program "+name)
	}
	if err != nil {
		c.close()
		return nil, err
	}
	return &session{client: c, identity: r.Joined.Identity, mtu: r.Joined.MTU}, nil
}

// session is a join.Session over a connection.
type session struct {
	client   *client
	identity join.Identity
	mtu      int
}

// Node implements join.Session.
func (s *session) Node() join.Identity { return s.identity }

// Stack implements join.Session: sockets and addresses are the daemon's, so that a program needs no privilege, and no other
// program has them.
func (s *session) Stack() netio.Network { return stack{s} }

// Rack implements join.Session.
func (s *session) Rack() control.Rack {
	s.client.mu.Lock()
	defer s.client.mu.Unlock()
	r := s.client.rack
	r.Memories = slices.Clone(r.Memories)
	return r
}

// Policies implements join.Session.
func (s *session) Policies() *join.Policies { return s.client.policies.Load() }

// told asks the daemon, and returns the part of its reply that answers; without it the reply is wrong in the way that is said.
func told[T any](ctx context.Context, c *client, q request, part func(*reply) *T, wrong string) (v T, err error) {
	r, err := c.ask(ctx, q)
	if err != nil {
		return v, err
	}
	p := part(&r)
	if p == nil {
		return v, fault.New(fault.Internal, q.Op, "the daemon's reply %s", wrong)
	}
	return *p, nil
}

// Export implements join.Session.
func (s *session) Export(ctx context.Context, e control.Export) (control.Exported, error) {
	return told(ctx, s.client, request{Op: opExport, Export: &e}, func(r *reply) *control.Exported { return r.Exported }, "does not say what was exported")
}

// BeginMain implements join.Session.
func (s *session) BeginMain(ctx context.Context, m control.BeginMain) (control.BegunMain, error) {
	return told(ctx, s.client, request{Op: opMain, Main: &m}, func(r *reply) *control.BegunMain { return r.Main }, "has no main")
}

// Who implements join.Session.
func (s *session) Who(ctx context.Context, a netip.Addr) (control.NodeInfo, error) {
	return told(ctx, s.client, request{Op: opWho, Address: a}, func(r *reply) *control.NodeInfo { return r.Who }, "names no node")
}

// Service implements join.Session.
func (s *session) Service(ctx context.Context, name string) (control.ServiceInfo, error) {
	return told(ctx, s.client, request{Op: opService, Name: name}, func(r *reply) *control.ServiceInfo { return r.Service }, "names no service")
}

var (
	_ join.Pinged     = (*session)(nil)
	_ join.Canceller  = (*session)(nil)
	_ join.Accountant = (*session)(nil)
)

// OnCancel implements join.Canceller.
func (s *session) OnCancel(f func(call, deadlock string)) { s.client.cancel.Store(&f) }

// OnAccount implements join.Accountant.
func (s *session) OnAccount(f func(rebuild uint64)) { s.client.account.Store(&f) }

// Account implements join.Accountant.
func (s *session) Account(ctx context.Context, p control.AccountPage) error {
	_, err := s.client.ask(ctx, request{Op: opAccount, Account: &p})
	return err
}

// OnPing implements join.Pinged.
func (s *session) OnPing(f func()) {
	s.client.ping.Store(&f)
	s.Alive(false)
}

// Alive implements join.Pinged. The daemon asks again only when it has been answered, so
// there is one answer on its way at a time.
func (s *session) Alive(stalled bool) {
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), addressPatience)
		defer cancel()
		_, _ = s.client.ask(ctx, request{Op: opAlive, Stalled: stalled}) // without a daemon the node has ended
	}()
}

// Serving implements join.Session.
func (s *session) Serving(ctx context.Context, q control.Serving) (control.ServingList, error) {
	return told(ctx, s.client, request{Op: opServing, Serving: &q}, func(r *reply) *control.ServingList { return r.Serving }, "lists no nodes")
}

// Sharing implements join.Session.
func (s *session) Sharing(ctx context.Context, q control.Sharing) (control.SharingReply, error) {
	return told(ctx, s.client, request{Op: opSharing, Sharing: &q}, func(r *reply) *control.SharingReply { return r.Sharing }, "does not say")
}

// Calls implements join.Session.
func (s *session) Calls(ctx context.Context, c control.NodeCalls) error {
	_, err := s.client.ask(ctx, request{Op: opCalls, Calls: &c})
	return err
}

// Holdings implements join.Session.
func (s *session) Holdings(ctx context.Context, now bool) (control.Holdings, error) {
	return control.ReadHoldings(ctx, now, func(ctx context.Context, q control.HoldingsQuery) (control.HoldingsPage, error) {
		return told(ctx, s.client, request{Op: opHeld, Held: &q}, func(r *reply) *control.HoldingsPage { return r.Held }, "has no page")
	})
}

// Blocks implements join.Session.
func (s *session) Blocks(ctx context.Context, want int) ([]uint32, error) {
	r, err := s.client.ask(ctx, request{Op: opBlocks, Want: want})
	return r.Blocks, err
}

// Batches implements join.Session.
func (s *session) Batches(ctx context.Context, machine uint8, want int) ([]uint32, error) {
	r, err := s.client.ask(ctx, request{Op: opBatches, Machine: machine, Want: want})
	return r.Batches, err
}

// Share implements join.Session.
func (s *session) Share(ctx context.Context, q control.Share) (control.ShareReply, error) {
	r, err := told(ctx, s.client, request{Op: opShare, Share: &q}, func(r *reply) *control.ShareReply { return r.Share }, "has no state")
	return r, err
}

// Ledger implements join.Session.
func (s *session) Ledger(ctx context.Context) (*control.LedgerPlace, error) {
	r, err := s.client.ask(ctx, request{Op: opLedger})
	return r.Ledger, err
}

// Done implements join.Session.
func (s *session) Done() <-chan struct{} { return s.client.done }

// Close implements join.Session. A node that has ended already has nobody to
// disappoint.
func (s *session) Close(ctx context.Context) error {
	ended := false
	select {
	case <-s.Done():
		ended = true
	default:
	}
	_, err := s.client.ask(ctx, request{Op: opLeave})
	s.client.close()
	if ended {
		return nil
	}
	return err
}

// Crash implements join.Session. If the daemon gets no word, it takes the connection's end for that of the program.
func (s *session) Crash(reason string) {
	c := s.client
	_ = c.conn.SetWriteDeadline(time.Now().Add(crashPatience))
	c.writeMu.Lock()
	_ = writeLine(c.conn, request{ID: math.MaxUint64, Op: opCrash, Reason: reason})
	c.writeMu.Unlock()
	c.conn.Close()
}

// stack is the network of a node in a process of its own.
type stack struct{ s *session }

// ListenUDP implements netio.Network: the daemon makes the socket.
func (t stack) ListenUDP(local netip.AddrPort) (netio.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), addressPatience)
	defer cancel()
	r, err := t.s.client.ask(ctx, request{Op: opListen, Address: local.Addr(), Port: local.Port()})
	if err == nil && r.file == nil {
		err = fault.New(fault.Internal, opListen, "no socket came with the daemon's reply")
	}
	if err != nil {
		return nil, err
	}
	if r.Relayed {
		return relay.Adopt(r.file, local, t.s.mtu, t.s.Done())
	}
	return adopt(r.file, t.s.mtu)
}

// MTU implements netio.Network.
func (t stack) MTU() int { return t.s.mtu }
