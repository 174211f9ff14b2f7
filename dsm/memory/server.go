package memory

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// Config says which machine a server is.
type Config struct {
	// Stack is the blade's network.
	Stack netio.Stack
	// Prefix and Machine are bytes 4 and 5 of the machine's pointers.
	Prefix, Machine uint8
	// Capacity is how many bytes of regions it holds at most. They take real
	// memory only when they are written to.
	Capacity uint64
	// Floor is below the generations of this boot's regions, and at least those of all earlier boots.
	Floor uint32
	// Lost is the highest generation of the regions of earlier boots, whose content is lost; 0 if there was
	// none. The server answers Unavailable for them.
	Lost uint32
	// Ask, if set, is called when Asking says something: memory, regions and undo are then charged to the owners of nodes. It must not block, or call the
	// server.
	Ask func()
	// Limits bound what it remembers of its clients.
	Limits store.Limits
	// Ledgers says what ledgers it has room for.
	Ledgers LedgerConfig
	// FillChanged, if set, is called when FillProgress says something that somebody may
	// wait for. It must not block, or call the server.
	FillChanged func()
}

// Server is one memory machine. Its methods may be called concurrently.
type Server struct {
	cfg     Config
	conn    netio.Conn
	arena   *arena
	metrics metrics
	dirty   chan struct{} // wakes the cleaner; has room for one
	start   time.Time

	mu      sync.Mutex
	store   *store.Store
	ledgers *ledgers
	calm    chan struct{} // closed when the store takes commands again; nil while it does
	fill    filler
	seeking seeking
	backup  *backup // nil: none is being made
}

// NewServer returns a server that is bound and accepts its machine's addresses.
// Whoever gets it must Run it.
func NewServer(cfg Config) (*Server, error) {
	prefix := dsmpacket.MachinePrefix(cfg.Prefix, cfg.Machine)
	if err := cfg.Stack.AddLocalPrefix(prefix); err != nil {
		return nil, fmt.Errorf("memory server of %s: %w", prefix, err)
	}
	conn, err := cfg.Stack.ListenUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortDSM))
	if err != nil {
		return nil, fmt.Errorf("memory server of %s: %w", prefix, err)
	}
	fillConn, err := cfg.Stack.ListenUDP(netip.AddrPortFrom(netip.IPv6Unspecified(), rackaddr.PortFill))
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("memory server of %s: %w", prefix, err)
	}
	arena, err := newArena(cfg.Capacity)
	if err != nil {
		_, _ = conn.Close(), fillConn.Close()
		return nil, fmt.Errorf("memory server of %s: %w", prefix, err)
	}
	ledgers, err := newLedgers(cfg.Ledgers)
	if err != nil {
		_, _ = conn.Close(), fillConn.Close()
		arena.close()
		return nil, fmt.Errorf("memory server of %s: %w", prefix, err)
	}
	s := &Server{cfg: cfg, conn: conn, arena: arena, dirty: make(chan struct{}, 1), start: time.Now(), ledgers: ledgers, seeking: seeking{ask: cfg.Ask}, store: store.New(store.Config{
		Prefix: cfg.Prefix, Machine: cfg.Machine, Floor: cfg.Floor, Memory: arena.bytes, Discard: arena.discard,
		MaxData: cfg.Stack.MTU() - netio.Overhead - dsmpacket.HeaderSize, Owners: cfg.Ask != nil, Limits: cfg.Limits,
	})}
	s.store.Lost(cfg.Lost)
	s.fill.init(fillConn, &cfg)
	return s, nil
}

// Run serves until ctx ends; then all regions are gone. It returns nil unless
// the endpoint failed.
func (s *Server) Run(ctx context.Context) error {
	cleaning, stop := context.WithCancel(ctx)
	var cleaner sync.WaitGroup
	cleaner.Go(func() { s.clean(cleaning) })
	cleaner.Go(s.serveFill)
	failed := make(chan error, 1)
	if c := s.ledgers.commit; c != nil {
		cleaner.Go(func() {
			failed <- c.run(cleaning.Done())
			_ = s.conn.Close()
		})
	}
	closing := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	err := s.serve()
	closing()
	_, _ = s.conn.Close(), s.fill.conn.Close()
	stop()
	cleaner.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropBackup()
	s.store = nil
	s.resume()
	s.arena.close()
	select {
	case failure := <-failed:
		if failure != nil {
			return failure
		}
	default:
	}
	if ctx.Err() != nil && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// errStopped is what commands get after Run has returned.
var errStopped = fault.New(fault.Unavailable, "memory server", "stopped")

// Fence refuses everything from a node's incarnations up to the given one, and
// returns the regions that these may have got without knowing it, and their ledgers,
// which are sealed.
func (s *Server) Fence(f control.Fence) (answer control.Fenced, err error) {
	err = s.durably(s.with, func(st *store.Store) error {
		answer = st.Fence(f)
		answer.Unsettled.Ledgers = s.ledgers.fence(f)
		return nil
	})
	return answer, err
}

// Forget makes the server what it was at first, but for the generations that it has
// given: regions and ledgers go, and with them what it knows of nodes and executions.
// From now on it belongs to another rack (LedgerConfig.Rack).
func (s *Server) Forget(rack uint64) error {
	return s.durably(s.now, func(st *store.Store) error {
		st.Forget()
		s.ledgers.cfg.Rack = rack
		s.ledgers.begin(s.ledgers.birth + 1)
		s.endFill(fault.New(fault.Canceled, "fill", "the copy is empty now"))
		return nil
	})
}

// Reclaim frees regions; one that is gone already is no error.
func (s *Server) Reclaim(r control.Reclaim) (answer control.Reclaimed, err error) {
	err = s.with(func(st *store.Store) error { answer = st.Reclaim(r); return nil })
	return answer, err
}

// Regions lists live regions in the order of their ids.
func (s *Server) Regions(q control.Regions) (l control.RegionList, err error) {
	err = s.with(func(st *store.Store) error { l = st.List(q); return nil })
	return l, err
}

// KeepUndo says whether changes of executions can be taken back until they are
// committed; at first they cannot. The undo then takes as many bytes as Limits.Undo says, or
// up to undoLimit.
func (s *Server) KeepUndo(on bool) error {
	limit := uint64(0)
	if on {
		limit = cmp.Or(uint64(s.cfg.Limits.Undo), undoLimit(s.cfg.Capacity)) //nolint:gosec // not negative
	}
	return s.now(func(st *store.Store) error { st.KeepUndo(limit); return nil })
}

// undoLimit is a quarter of the capacity, and at least 16 MiB: as much again as
// executions that end at about the same time overwrite.
func undoLimit(capacity uint64) uint64 { return max(16<<20, capacity/4) }

// Become makes the server a copy of its machine (store.Store.Become). A copy of another
// incarnation than before has no ledgers, and takes the machine's birth number.
func (s *Server) Become(m control.Mirror) error {
	return s.durably(s.now, func(st *store.Store) error {
		was := st.Mirror()
		if err := st.Become(m); err != nil {
			return err
		}
		kept := m.Birth != 0 && m.Birth == s.ledgers.birth // on disk
		if !kept && (m.Incarnation != was.Incarnation || m.Birth != 0 && len(s.ledgers.store.Names()) == 0) {
			s.ledgers.begin(cmp.Or(m.Birth, s.ledgers.birth+1))
		}
		if m.Epoch != was.Epoch || m.Incarnation != was.Incarnation {
			s.endFill(fault.New(fault.Canceled, "fill", "the machine has other copies"))
			s.fill.job = control.Fill{}
		}
		return nil
	})
}

// Grant says which nodes may allocate in which batches of slots.
func (s *Server) Grant(g control.Grant) error {
	return s.now(func(st *store.Store) error { return st.Grant(g) })
}

// ReadRegion returns what the first n bytes of a region hold here, for tests; false if it has not so many, or after Run has returned.
func (s *Server) ReadRegion(id dsmpacket.RegionID, n uint64) (data []byte, ok bool) {
	_ = s.with(func(st *store.Store) error { data, ok = st.Content(id, n); return nil })
	return data, ok
}

// Diverged is how often clients have said in the present mirror epoch that the copies
// disagree; 0 after Run has returned.
func (s *Server) Diverged() (n uint64, epoch uint32) {
	_ = s.now(func(st *store.Store) error { n, epoch = st.Diverged(), st.Mirror().Epoch; return nil })
	return n, epoch
}

// Capacity is how many bytes of regions the server holds at most.
func (s *Server) Capacity() uint64 { return s.cfg.Capacity }

// RegionBytes is how many bytes the regions have; 0 after Run has returned.
func (s *Server) RegionBytes() (n uint64) {
	_ = s.now(func(st *store.Store) error { n = st.Regions(); return nil })
	return n
}

// Used is how many bytes are taken; 0 after Run has returned.
func (s *Server) Used() (n uint64) {
	_ = s.now(func(st *store.Store) error { n = st.Used(); return nil })
	return n
}

// Generation is the highest that a region has had here, or Config.Floor; 0 after
// Run has returned.
func (s *Server) Generation() (highest uint32) {
	_ = s.now(func(st *store.Store) error { highest = st.Generation(); return nil })
	return highest
}

// now carries out what may be done at any time.
func (s *Server) now(f func(*store.Store) error) error {
	s.mu.Lock()
	defer s.unlock()
	return s.do(f)
}

// do has something done to the store now. The caller holds the mutex.
func (s *Server) do(f func(*store.Store) error) error {
	if s.store == nil {
		return errStopped
	}
	s.store.Tick(time.Since(s.start))
	return f(s.store)
}

// durably carries out a command that changes ledgers. It returns when the change is on disk,
// if ledgers are there.
func (s *Server) durably(how func(func(*store.Store) error) error, f func(*store.Store) error) error {
	err := how(func(st *store.Store) error {
		err := f(st)
		s.ledgers.flush()
		return err
	})
	if err != nil {
		return err
	}
	return s.ledgers.waitForDisk()
}

// with carries out a command. While a copy is being completed, here or from here, the
// command waits.
func (s *Server) with(f func(*store.Store) error) error {
	s.mu.Lock()
	for patience := (<-chan time.Time)(nil); s.store != nil && s.store.Withholds(); {
		if s.calm == nil {
			s.calm = make(chan struct{})
		}
		if patience == nil {
			patience = time.After(commandWait)
		}
		calm := s.calm
		s.mu.Unlock()
		select {
		case <-calm:
		case <-patience:
			return fault.New(fault.Unavailable, "memory server", "a copy is being filled")
		}
		s.mu.Lock()
	}
	defer s.unlock()
	return s.do(f)
}

// batch is how many datagrams the server takes at once. More save no time once
// a system call is shared by this many, and cost latency.
const batch = 8

// Datagrams from large on are taken fewer at once: while the server copies some, the
// client makes the next ones.
const large, largeBatch = 16 << 10, 4

// serve answers requests until the endpoint is closed.
func (s *Server) serve() error {
	in, out := make([]netio.Message, batch), newAnswers(s)
	size := min(s.cfg.Stack.MTU()-netio.Overhead, netio.MaxDatagram)
	buf := make([]byte, batch*size)
	for most := batch; ; {
		for i := range in[:most] {
			in[i] = netio.Message{Buf: buf[i*size : (i+1)*size]}
		}
		n, err := s.conn.ReadBatch(in[:most])
		if err != nil {
			return err
		}
		most = nextBatch(in[:n])
		s.answerAll(in[:n], out)
		if most == largeBatch {
			if err := s.receiveInto(buf, out); err != nil {
				return err
			}
		}
	}
}

// receiveInto has large writes that wait already received into their regions: their headers
// are looked at first, and say where the data belongs. It returns when the next datagram is
// none. For small ones the second system call costs more than the copy that it saves.
func (s *Server) receiveInto(scratch []byte, out *answers) error {
	peeker, ok := s.conn.(netio.Peeker)
	var err error
	for ok && err == nil {
		ok, err = s.receiveSome(peeker, scratch, out)
	}
	return err
}

// errChanged is that another datagram was received than the one that was looked at. It must
// not happen: the region that it was received into is damaged, so the server ends.
var errChanged = errors.New("memory server: a datagram changed between its header and its data")

// receiveSome is receiveInto for some datagrams, and reports whether to go on.
func (s *Server) receiveSome(peeker netio.Peeker, scratch []byte, out *answers) (more bool, err error) {
	s.mu.Lock()
	defer s.unlock()
	s.store.Tick(time.Since(s.start))
	defer out.send()
	head, again := scratch[:dsmpacket.HeaderSize], scratch[dsmpacket.HeaderSize:2*dsmpacket.HeaderSize]
	for range largeBatch {
		m := netio.Message{Buf: head}
		size, ok, err := peeker.Peek(&m)
		if err != nil || !ok || size < large || dsmpacket.FromAddr(m.Local).Op() != dsmpacket.OpWrite {
			return false, err
		}
		h, _, err := dsmpacket.Parse(m.Buf)
		if err != nil {
			return false, nil //nolint:nilerr // it is dropped as any is
		}
		received := false
		receive := func(to [2][]byte) bool {
			one := []netio.Message{{Buf: again, More: to}}
			n, failed := s.conn.ReadBatch(one)
			if err = failed; err == nil && (n != 1 || one[0].Size() != size || one[0].Remote != m.Remote || !bytes.Equal(one[0].Buf, head)) {
				err = errChanged
			}
			received = true
			return err == nil
		}
		s.handle(&m, &store.Request{Node: m.Remote.Addr(), To: dsmpacket.FromAddr(m.Local), Header: h, Receive: receive, Size: size - dsmpacket.HeaderSize}, out)
		if received {
			s.metrics.inPlace.Add(uint64(size - dsmpacket.HeaderSize)) //nolint:gosec // not negative
		} else { // it is refused, or known
			receive([2][]byte{scratch[2*dsmpacket.HeaderSize:][:size-dsmpacket.HeaderSize]})
		}
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// nextBatch is how many datagrams to take after these.
func nextBatch(ms []netio.Message) int {
	for i := range ms {
		if len(ms[i].Buf) >= large {
			return largeBatch
		}
	}
	return batch
}

// answerAll answers datagrams.
func (s *Server) answerAll(in []netio.Message, out *answers) {
	s.mu.Lock()
	defer s.unlock()
	s.store.Tick(time.Since(s.start))
	for i := range in {
		m := &in[i]
		if out.refers && dsmpacket.FromAddr(m.Local).Op() != dsmpacket.OpRead {
			out.send() // before what it refers to changes
		}
		h, data, err := dsmpacket.Parse(m.Buf)
		if err != nil {
			s.metrics.drop(m.Remote.Addr(), store.Malformed)
			continue
		}
		s.handle(m, &store.Request{Node: m.Remote.Addr(), To: dsmpacket.FromAddr(m.Local), Header: h, Data: data}, out)
	}
	s.ledgers.flush()
	out.send()
}

// handle answers one request. The answer may refer to the memory that was read.
func (s *Server) handle(m *netio.Message, r *store.Request, out *answers) {
	if r.To.Op() == dsmpacket.OpLedger {
		s.handleLedger(m, r, out)
		return
	}
	a, drop := s.store.Handle(r)
	if drop != store.NotDropped {
		s.metrics.drop(r.Node, drop)
		return
	}
	if r.AsksOwner {
		s.seeking.seek(r)
	}
	s.metrics.count(r.Node, r.To.Op(), &a)
	out.add(m.Remote, &a)
}

// answers is what is to be sent together.
type answers struct {
	server  *Server
	ms      []netio.Message
	headers []byte // of ms, in a row
	refers  bool   // to memory that was read, so it has to be sent before that changes
	// The newest, to which the next one may be joined.
	last store.Answer
	to   netip.AddrPort
}

// maxAnswers is how many answers a batch of requests has at most.
const maxAnswers = batch * (1 + dsmpacket.MaxMore)

func newAnswers(s *Server) *answers {
	return &answers{server: s, ms: make([]netio.Message, 0, maxAnswers), headers: make([]byte, 0, maxAnswers*dsmpacket.HeaderSize)}
}

// add takes the answer to a request from an address.
func (o *answers) add(to netip.AddrPort, a *store.Answer) {
	if len(o.ms) > 0 && o.to == to && o.last.Join(a) {
		m := &o.ms[len(o.ms)-1]
		m.Buf = o.last.Header.Append(m.Buf[:0])
		return
	}
	o.last, o.to = *a, to
	for piece := range a.Datagrams() {
		o.put(&piece)
	}
}

// put takes one datagram.
func (o *answers) put(a *store.Answer) {
	at := len(o.headers)
	o.headers = a.Header.Append(o.headers)
	o.refers = o.refers || len(a.Data) > 0
	o.ms = append(o.ms, netio.Message{
		Buf: o.headers[at:len(o.headers):len(o.headers)], More: [netio.MaxMore][]byte{a.Data}, Remote: o.to, Local: a.From.Addr(),
	})
}

// send hands them to the network. One that it does not take is lost like any other;
// the client asks again.
func (o *answers) send() {
	for out := o.ms; len(out) > 0; {
		n, err := o.server.conn.WriteBatch(out)
		if err != nil {
			o.server.metrics.unsent.Add(1)
			n++
		}
		if n <= 0 {
			break
		}
		out = out[min(n, len(out)):]
	}
	o.ms, o.headers, o.refers, o.last = o.ms[:0], o.headers[:0], false, store.Answer{}
}

// arena is a machine's memory: one anonymous mapping of its whole capacity, of
// which the kernel backs only the pages that have been written to.
type arena struct{ bytes []byte }

func newArena(capacity uint64) (*arena, error) {
	if capacity == 0 || capacity > 1<<46 {
		return nil, fmt.Errorf("capacity of %d bytes: want 1 to 2^46", capacity)
	}
	b, err := unix.Mmap(-1, 0, int(capacity), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", capacity, err)
	}
	return &arena{bytes: b}, nil
}

// discard gives whole pages back to the kernel, which gives zeroed ones on the
// next touch.
func (a *arena) discard(b []byte) {
	if unix.Madvise(b, unix.MADV_DONTNEED) != nil {
		clear(b)
	}
}

// close unmaps the arena; nothing may refer to it any more.
func (a *arena) close() { _ = unix.Munmap(a.bytes) }

// cleanPart is how many bytes are zeroed at a time: some 100 µs, for which
// requests wait.
const cleanPart = 1 << 20

// clean zeroes freed memory in the background until ctx ends.
func (s *Server) clean(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		}
		for ctx.Err() == nil && s.cleanSome() {
		}
	}
}

// cleanSome cleans one part; true means that there is more.
func (s *Server) cleanSome() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.store.Clean(cleanPart)
	return s.store.Dirty()
}

// resume lets commands go on that have waited, if the store takes them again.
func (s *Server) resume() {
	if s.calm != nil && (s.store == nil || !s.store.Withholds()) {
		close(s.calm)
		s.calm = nil
	}
}

// unlock unlocks s.mu after something that may have freed memory, or ended the filling of
// a copy.
func (s *Server) unlock() {
	s.resume()
	if s.store != nil && s.store.Dirty() {
		select {
		case s.dirty <- struct{}{}:
		default:
		}
	}
	s.mu.Unlock()
}
