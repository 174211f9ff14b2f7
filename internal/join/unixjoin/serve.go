package unixjoin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/netio/relay"
)

// Listen opens a daemon's socket: join.SocketName, or a path.
func Listen(name string) (net.Listener, error) {
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; len(name) > most {
		return nil, fmt.Errorf("socket %s: its path has %d bytes, and the system takes %d: choose a directory with a shorter path", name, len(name), most)
	}
	l, err := net.Listen("unix", name)
	if errors.Is(err, unix.EADDRINUSE) {
		return nil, fmt.Errorf("socket %s: a compute daemon runs here already: stop it, or use another network namespace", name)
	}
	return l, err
}

// Serve brings the programs that connect to l to h, until ctx ends. Then it
// closes l and all connections, whose nodes end as crashed unless h has ended
// them before, and returns. A connection beyond its user's share of limits is told so, and closed.
func Serve(ctx context.Context, l net.Listener, h join.Host, limits *Limits, log *slog.Logger) error {
	var wg sync.WaitGroup
	defer wg.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		_ = l.Close() // ends Accept
	})
	a := acceptor{listener: l, log: log}
	defer a.close()
	for {
		conn, err := a.accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("socket %s: %w", l.Addr(), err)
		}
		who, err := peer(conn)
		if err == nil {
			err = limits.connect(who.uid)
			if err != nil {
				_ = writeLine(conn, failure(0, err)) // there is room for a line in a socket that is new
			}
		}
		if err != nil {
			log.Debug("program's connection", "err", err) // Limits counts them
			conn.Close()
			continue
		}
		wg.Go(func() {
			defer limits.disconnect(who.uid)
			s := &server{host: h, limits: limits, conn: conn, program: who, health: make(chan bool, 1)}
			if err := s.serve(ctx); err != nil {
				log.Warn("program's connection", "pid", who.pid, "err", err)
			}
		})
	}
}

// server is one connection.
type server struct {
	host    join.Host
	limits  *Limits
	conn    net.Conn
	program process
	node    join.Hosted
	left    atomic.Bool // in an orderly way
	health  chan bool   // what the program answers: whether it is stalled

	writeMu sync.Mutex
}

// serve carries out requests until the connection or ctx ends.
func (s *server) serve(ctx context.Context) error {
	daemon := ctx
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() {
		<-ctx.Done()
		s.conn.Close()
	})
	requests := make(chan arrived, maxRequests)
	var broken error
	wg.Go(func() {
		defer cancel() // what is being carried out is for nobody any more
		defer close(requests)
		broken = s.read(ctx, requests)
	})
	asking := make(chan struct{}, maxRequests)
	for r := range requests {
		if !asks[r.Op] {
			_ = s.write(s.handle(ctx, &wg, r.request)) // the reader sees the connection's end; a leave behind it still counts
			s.limits.give(s.program.uid, r.size)
			continue
		}
		asking <- struct{}{}
		wg.Go(func() {
			defer func() { s.limits.give(s.program.uid, r.size); <-asking }()
			_ = s.write(s.handle(ctx, &wg, r.request)) // as above
		})
	}
	switch {
	case s.node == nil || s.left.Load():
	case daemon.Err() != nil:
		s.node.Crash("the daemon stops")
	default:
		s.node.Exited("the program's connection has ended without a leave")
	}
	return broken
}

// arrived is a request, and how many bytes its line has taken.
type arrived struct {
	request
	size int
}

// read takes requests off the connection until it ends; that is no error.
func (s *server) read(ctx context.Context, to chan<- arrived) error {
	in := newReader(s.conn)
	in.take = func(n int) error { return s.limits.take(s.program.uid, n) }
	in.give = func(n int) { s.limits.give(s.program.uid, n) }
	for {
		var r arrived
		var err error
		if r.size, err = in.read(&r.request); err != nil {
			if errors.Is(err, errLine) || fault.CodeOf(err) == fault.Overloaded {
				return err
			}
			return nil
		}
		if r.ID == 0 {
			err = fmt.Errorf("%w: no id", errLine)
		} else {
			select {
			case to <- r:
				continue
			case <-ctx.Done():
			default:
				err = fmt.Errorf("more than %d requests at a time", maxRequests)
			}
		}
		s.limits.give(s.program.uid, r.size)
		return err
	}
}

// write sends a line. The connection of a program that takes none ends when its user's share of memory for lines is used up.
func (s *server) write(r reply) error {
	s.writeMu.Lock()
	defer s.writeMu.Unlock()
	b, err := json.Marshal(r)
	if err == nil {
		err = s.limits.take(s.program.uid, len(b)+1)
	}
	if err != nil {
		if r.file != nil {
			r.file.Close()
		}
		s.conn.Close()
		return err
	}
	defer s.limits.give(s.program.uid, len(b)+1)
	b = append(b, '\n')
	if r.file != nil {
		return send(s.conn, b, r.file)
	}
	_, err = s.conn.Write(b)
	return err
}

// handle carries out one request.
func (s *server) handle(ctx context.Context, wg *sync.WaitGroup, r request) reply {
	switch {
	case r.Op == opStatus:
		status := s.host.Status(s.program.uid)
		return reply{ID: r.ID, Status: &status}
	case r.Op == opJoin && s.node == nil:
		return s.join(ctx, wg, r)
	case r.Op == opJoin:
		return failure(r.ID, fault.New(fault.BadRequest, opJoin, "this connection is node %s already", s.node.Node().Address))
	case s.node == nil || s.left.Load():
		return failure(r.ID, fault.New(fault.BadRequest, r.Op, "this connection is no node"))
	}
	var err error
	answer := reply{ID: r.ID}
	switch r.Op {
	case opMain:
		if r.Main == nil {
			err = fault.New(fault.BadRequest, r.Op, "which?")
			break
		}
		answer.Main, err = got(s.node.BeginMain(ctx, *r.Main))
	case opWho:
		answer.Who, err = got(s.node.Who(ctx, r.Address))
	case opService:
		answer.Service, err = got(s.node.Service(ctx, r.Name))
	case opServing:
		if r.Serving == nil {
			err = fault.New(fault.BadRequest, r.Op, "of what?")
			break
		}
		answer.Serving, err = got(s.node.Serving(ctx, *r.Serving))
	case opSharing:
		if r.Sharing == nil {
			err = fault.New(fault.BadRequest, r.Op, "with whom?")
			break
		}
		answer.Sharing, err = got(s.node.Sharing(ctx, *r.Sharing))
	case opCalls:
		if r.Calls == nil {
			err = fault.New(fault.BadRequest, r.Op, "of what?")
			break
		}
		err = s.node.Calls(ctx, *r.Calls)
	case opBlocks:
		answer.Blocks, err = s.node.Blocks(ctx, r.Want)
	case opBatches:
		answer.Batches, err = s.node.Batches(ctx, r.Machine, r.Want)
	case opHeld:
		if r.Held == nil {
			err = fault.New(fault.BadRequest, r.Op, "from where?")
			break
		}
		answer.Held, err = got(s.node.HoldingsPage(ctx, *r.Held))
	case opAccount:
		if r.Account == nil {
			err = fault.New(fault.BadRequest, r.Op, "of what?")
			break
		}
		err = s.node.Account(ctx, *r.Account)
	case opShare:
		if r.Share == nil {
			err = fault.New(fault.BadRequest, r.Op, "with whom?")
			break
		}
		answer.Share, err = got(s.node.Share(ctx, *r.Share))
	case opLedger:
		answer.Ledger, err = s.node.Ledger(ctx)
	case opListen:
		answer.file, answer.Relayed, err = s.listen(netip.AddrPortFrom(r.Address, r.Port))
		answer.Socket = true
	case opExport:
		if r.Export == nil {
			err = fault.New(fault.BadRequest, r.Op, "no service")
			break
		}
		answer.Exported, err = got(s.node.Export(ctx, *r.Export))
	case opAlive:
		select {
		case s.health <- r.Stalled:
		default: // it answers without being asked
		}
	case opCrash:
		s.left.Store(true)
		s.node.Crash(r.Reason)
	case opLeave:
		s.left.Store(true)
		err = s.node.Close(ctx)
	default:
		err = fault.New(fault.Unsupported, r.Op, "the daemon does not know this operation")
	}
	if err != nil {
		return failure(r.ID, err)
	}
	return answer
}

// listen makes a socket for the program.
func (s *server) listen(local netip.AddrPort) (f *os.File, relayed bool, err error) {
	conn, err := s.node.Stack().ListenUDP(local)
	if err != nil {
		return nil, false, err
	}
	f, err = lend(conn)
	return f, relay.Relayed(conn), err
}

// got makes an answer of what was asked for.
func got[T any](v T, err error) (*T, error) {
	if err != nil {
		return nil, err
	}
	return &v, nil
}

func (s *server) join(ctx context.Context, wg *sync.WaitGroup, r request) reply {
	var speaks control.Release
	if r.Speaks != nil {
		speaks = *r.Speaks
	}
	if err := speaks.Check(opJoin, "program "+r.Name, "this blade's daemon"); err != nil {
		return failure(r.ID, err)
	}
	node, err := s.host.Host(ctx, join.Program{Name: r.Name, Instance: r.Instance, PID: s.program.pid, UID: s.program.uid, NoLedger: r.NoLedger})
	if err != nil {
		return failure(r.ID, err)
	}
	s.node = node
	changed := node.Changed() // before Rack, so that nothing is missed
	rack := node.Rack()
	answer := reply{ID: r.ID, Joined: &joined{Identity: node.Node(), MTU: node.Stack().MTU(), Rack: rack}}
	wg.Go(func() { s.tell(ctx, node, changed, rack.PolicyVersion) })
	wg.Go(func() { s.watch(ctx, wg, node) })
	node.OnCancel(func(call, deadlock string) {
		wg.Go(func() { _ = s.write(reply{Cancel: call, Deadlock: deadlock}) }) // the reader sees the connection's end
	})
	node.OnAccount(func(rebuild uint64) {
		wg.Go(func() { _ = s.write(reply{Account: rebuild}) })
	})
	return answer
}

// tell brings the program news of the rack, and that its node has ended. Of the
// policies it has those of a version, and gets others only when they have changed.
func (s *server) tell(ctx context.Context, node join.Hosted, changed <-chan struct{}, version uint64) {
	for {
		news := reply{}
		select {
		case <-ctx.Done():
			return
		case <-node.Done():
			news.Ended = true
		case <-changed:
			changed = node.Changed()
			rack := node.Rack()
			if rack.PolicyVersion == version {
				rack.Policies = nil
			}
			version = rack.PolicyVersion
			news.Rack = &rack
		}
		if s.write(news) != nil || news.Ended {
			return
		}
	}
}

// process is who is at the other end of a Unix socket: who has connected, or listens.
type process struct {
	pid int
	uid uint32
}

// peer asks the kernel.
func peer(conn net.Conn) (who process, err error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return who, fmt.Errorf("%s is no Unix socket", conn.LocalAddr())
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return who, err
	}
	if e := raw.Control(func(fd uintptr) { who, err = peerOf(int(fd)) }); e != nil {
		return who, e
	}
	return who, err
}
