package memory

import (
	"bytes"
	"math"
	"slices"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// LedgerConfig says what ledgers a server has room for. It takes memory only as ledgers
// are written.
type LedgerConfig struct {
	// Space is how many bytes of records one ledger may take, and as much again for a moment while a base is written; 0 stands
	// for DefaultLedgerSpace.
	Space uint64
	// Total is how many bytes all of them may take; 0 stands for 16 times Space.
	Total uint64
	// Birth is the number that the memory of ledgers begins with, drawn at random by
	// whoever starts the server; 0 stands for 1, for tests.
	Birth uint64
	// Disk keeps the ledgers, and their birth number, beyond the server's end; nil keeps
	// them in memory only. One server at a time may have it, and the first one begins with
	// what it has.
	Disk *LedgerDisk
	// Rack is the number of the rack (control.Welcome.Began). What the disk has of another
	// one goes.
	Rack uint64
}

// DefaultLedgerSpace is how many bytes the ledger of a node may take.
const DefaultLedgerSpace = 64 << 20

func (c LedgerConfig) withDefaults() LedgerConfig {
	if c.Space == 0 {
		c.Space = DefaultLedgerSpace
	}
	if c.Total == 0 {
		c.Total = 16 * c.Space
	}
	c.Birth = max(c.Birth, 1)
	return c
}

// ledgers is the server's half of ledgers. The server's mutex guards it.
type ledgers struct {
	cfg     LedgerConfig
	birth   uint64
	store   *ledger.Store
	refused map[string]uint64
	// Of ledgers on disk, else nil: what commits changes, what has to be sent then, and
	// whether all that the disk has is gone.
	commit *committer
	out    *answers
	anew   bool
}

func newLedgers(cfg LedgerConfig) (l *ledgers, err error) {
	l = &ledgers{cfg: cfg.withDefaults(), refused: map[string]uint64{}}
	d := l.cfg.Disk
	if d == nil {
		l.begin(l.cfg.Birth)
		return l, nil
	}
	l.commit = newCommitter(d)
	read, first := d.read, !d.taken
	d.read, d.taken = nil, true
	switch {
	case first && d.birth != 0 && d.rack == cfg.Rack:
		l.birth = d.birth
		l.store, err = restore(l.config(d.birth), read)
		return l, err
	case first && d.birth != 0 && d.rack == 0 && len(read) == 0:
		l.begin(d.birth) // it has been announced, and no rack has had it
	default:
		l.begin(max(l.cfg.Birth, d.birth+1)) // nobody takes what begins for what the disk had
	}
	l.flush()
	return l, l.waitForDisk()
}

func (l *ledgers) config(birth uint64) ledger.Config {
	return ledger.Config{Birth: birth, Space: l.cfg.Space, Total: l.cfg.Total, Durable: l.commit != nil}
}

// begin drops all ledgers. What begins now is another memory, with another birth number.
func (l *ledgers) begin(birth uint64) {
	l.birth = birth
	l.store = ledger.New(l.config(birth))
	l.anew = true
}

// flush hands what has changed, and the answers that tell of it, to the committer. The
// caller holds the server's mutex.
func (l *ledgers) flush() {
	if l.commit == nil {
		return
	}
	j := ledgerJob{anew: l.anew, changes: l.store.Changes(), answers: l.out}
	if j.anew || len(j.changes) > 0 || j.answers != nil {
		l.commit.add(j, l.birth, l.cfg.Rack)
	}
	l.anew, l.out = false, nil
}

// waitForDisk waits until all that was flushed is on disk.
func (l *ledgers) waitForDisk() error {
	if l.commit == nil {
		return nil
	}
	return l.commit.commit()
}

// The ledgers as a part of a copy that is filled.

func (l *ledgers) Fill()                             { l.store.Fill() }
func (l *ledgers) EndFill()                          { l.store.EndFill() }
func (l *ledgers) CloseFill()                        { l.store.CloseFill() }
func (l *ledgers) FillLeft() (left, done uint64)     { return l.store.FillLeft() }
func (l *ledgers) FillNext(limit int) ([]byte, bool) { return l.store.FillNext(limit) }

// BeFilled drops all ledgers, for those of another copy.
func (l *ledgers) BeFilled(uint32) {
	l.begin(l.birth + 1)
	l.store.BeFilled()
}

// Take takes an item of the source. The last one brings the source's birth number.
func (l *ledgers) Take(item []byte) error {
	filling := l.store.Filling()
	err := l.store.Take(item)
	if err == nil && filling && !l.store.Filling() {
		l.birth, l.anew = l.store.Birth(), true // with all that the source has
	}
	return err
}

// Reasons why a request is refused that has no status of its own.
const (
	refusedMalformed = "malformed"
	refusedBirth     = "other birth number"
	refusedQueue     = "the disk is slow"
)

// refuse counts a request that is refused.
func (l *ledgers) refuse(status fault.Code) {
	if status != fault.OK && status != fault.Overloaded {
		l.refused[status.String()]++
	}
}

// handleLedger answers a request about a ledger.
func (s *Server) handleLedger(m *netio.Message, r *store.Request, out *answers) {
	if s.store.Withholds() {
		s.metrics.drops[store.Filling].Add(1)
		return // the client asks again
	}
	if s.backup.holds() {
		return // likewise
	}
	q, err := dsmpacket.ParseLedgerRequest(r.To, &r.Header, r.Data)
	if err != nil || !r.To.InPrefix(s.cfg.Prefix) || r.To.Machine() != s.cfg.Machine {
		s.ledgers.refused[refusedMalformed]++
		s.metrics.drop(r.Node, store.Malformed)
		return
	}
	if q.Op.Word() {
		s.settleRun(m, r, &q, out)
		return
	}
	if c := s.ledgers.commit; c != nil {
		if c.full() {
			s.ledgers.refused[refusedQueue]++
			return // the client asks again
		}
		if s.ledgers.out == nil {
			s.ledgers.out = &answers{server: s}
		}
		out = s.ledgers.out
	}
	a := dsmpacket.LedgerAnswer{
		Op: q.Op, Ledger: q.Ledger, Incarnation: q.Incarnation, Chunk: dsmpacket.Chunk{Number: q.Chunk.Number}, Birth: s.ledgers.birth, Mirror: s.store.Mirror(),
	}
	send := func() {
		answer := store.Answer{From: r.To, Header: a.Header(), Data: a.Data()}
		s.metrics.count(r.Node, dsmpacket.OpLedger, &answer)
		out.add(m.Remote, &answer)
	}
	if q.Birth != 0 && q.Birth != s.ledgers.birth {
		s.ledgers.refused[refusedBirth]++
		a.Status = fault.NotFound
		send()
		return
	}
	w := ledger.Writer{Node: r.Node, Incarnation: q.Incarnation}
	switch q.Op {
	case dsmpacket.LedgerOpen:
		told := s.ledgers.store.Open(q.Ledger, q.Run, w)
		s.ledgers.tell(&a, told)
		a.Chunk.Number = told.First
	case dsmpacket.LedgerAppend:
		q.Chunk.Data = bytes.Clone(q.Chunk.Data)
		s.ledgers.tell(&a, s.ledgers.store.Append(q.Ledger, q.Run, w, q.Keep, q.Chunk))
	case dsmpacket.LedgerRead:
		for _, c := range s.ledgers.read(w, &q, &a) {
			a.Chunk = c
			send()
		}
		return
	case dsmpacket.LedgerCommit, dsmpacket.LedgerRollback: // above
	}
	send()
}

// settleRun obeys a node's own word about an execution.
func (s *Server) settleRun(m *netio.Message, r *store.Request, q *dsmpacket.LedgerRequest, out *answers) {
	run := control.Run{Execution: control.ExecutionID(q.Ledger), Node: r.Node, Incarnation: q.Run, Main: q.Main, Checkpoint: q.Checkpoint}
	obey := s.store.Commit
	if q.Op == dsmpacket.LedgerRollback {
		obey = s.store.Rollback
	}
	a := dsmpacket.LedgerAnswer{
		Op: q.Op, Ledger: q.Ledger, Run: q.Run, Incarnation: q.Incarnation, Main: q.Main, Checkpoint: q.Checkpoint, From: q.From, Mirror: s.store.Mirror(),
		Status: obey(run, q.Incarnation),
	}
	if a.Status == fault.OK && q.Op == dsmpacket.LedgerRollback {
		a.Left, a.More = s.store.Left(run, q.From, dsmpacket.MaxLeft)
	}
	s.ledgers.refuse(a.Status)
	answer := store.Answer{From: r.To, Header: a.Header(), Data: a.Data()}
	s.metrics.count(r.Node, dsmpacket.OpLedger, &answer)
	out.add(m.Remote, &answer)
}

// tell puts what the store says of a ledger into an answer.
func (l *ledgers) tell(a *dsmpacket.LedgerAnswer, told ledger.Answer) {
	a.Status, a.Run, a.Sealed, a.Next, a.Room, a.Space = told.Status, told.Run, told.Sealed, told.Next, told.Room, told.Space
	l.refuse(told.Status)
}

// read returns the chunks that a request asks for, as many as More and Size allow. If
// there are none, it is one chunk without data, and the answer tells how the ledger stands.
func (l *ledgers) read(w ledger.Writer, q *dsmpacket.LedgerRequest, a *dsmpacket.LedgerAnswer) []dsmpacket.Chunk {
	none := []dsmpacket.Chunk{{Number: q.Chunk.Number}}
	if !l.store.MayRead(q.Ledger, w.Node) {
		a.Status = fault.PermissionDenied
		l.refuse(a.Status)
		return none
	}
	chunks, told := l.store.Read(q.Ledger, q.Chunk.Number, int(min(q.Size, l.cfg.Space))) //nolint:gosec // far below
	l.tell(a, told)
	if len(chunks) == 0 {
		return none
	}
	return chunks[:min(len(chunks), int(min(q.More, dsmpacket.MaxMore))+1)]
}

// fence seals the ledgers of a node's incarnations, and tells how they stand.
func (l *ledgers) fence(f control.Fence) (all []control.Ledger) {
	for _, name := range l.store.Fence(ledger.Writer{Node: f.Node, Incarnation: f.Incarnation}) {
		all = append(all, l.state(name))
	}
	return all
}

// level makes the ledgers equal that a fence has sealed at both copies, and returns what does so at the other one: a chunk that only
// one of them has was never settled, and one that only one of them has dropped is not needed.
func (l *ledgers) level(q *control.Level) (items [][]byte, err error) {
	for _, a := range q.First.Ledgers {
		for _, b := range q.Second.Ledgers {
			if a.Name != b.Name || a.Run != b.Run || a.First == b.First && a.Next == b.Next {
				continue
			}
			item, err := l.store.Level(ledger.Name(a.Name), a.Run, max(a.First, b.First), min(a.Next, b.Next))
			if err != nil {
				return nil, err
			}
			items = append(items, item)
		}
	}
	return items, nil
}

// state is how a ledger stands.
func (l *ledgers) state(name ledger.Name) control.Ledger {
	st, _ := l.store.Stat(name)
	return control.Ledger{Name: control.LedgerName(name), Run: st.Run, Sealed: st.Sealed, First: st.First, Next: st.Next, Used: st.Used}
}

// command carries out a command about a ledger of a memory with a birth number.
func (l *ledgers) command(birth uint64, name control.LedgerName, do func(*ledger.Store) ledger.Answer) control.LedgerAnswer {
	if birth != l.birth {
		l.refused[refusedBirth]++
		return control.LedgerRefused(l.birth, name, fault.NotFound, "the ledger is of another memory, which this one has replaced")
	}
	told := do(l.store)
	l.refuse(told.Status)
	a := control.LedgerAnswer{Birth: l.birth, Ledger: l.state(ledger.Name(name))}
	if a.Ledger.Name = name; told.Status != fault.OK {
		a.Outcome = control.Outcome{Code: told.Status, Message: "ledger " + name.String()}
	}
	return a
}

// GrantLedger makes a ledger if there is none, and says who may open it next.
func (s *Server) GrantLedger(q control.LedgerGrant) (a control.LedgerAnswer, err error) {
	err = s.durably(s.with, func(*store.Store) error {
		a = s.ledgers.command(q.Birth, q.Name, func(st *ledger.Store) ledger.Answer {
			return st.Grant(ledger.Name(q.Name), ledger.Writer{Node: q.Node, Incarnation: q.Incarnation}, q.Owner)
		})
		return nil
	})
	return a, err
}

// DeleteLedger drops a ledger; one that is not there is no error.
func (s *Server) DeleteLedger(q control.LedgerDelete) (a control.LedgerAnswer, err error) {
	err = s.durably(s.with, func(*store.Store) error {
		a = s.ledgers.command(q.Birth, q.Name, func(st *ledger.Store) ledger.Answer { return st.Delete(ledger.Name(q.Name)) })
		return nil
	})
	return a, err
}

// ListLedgers lists ledgers in the order of their names.
func (s *Server) ListLedgers(q control.Ledgers) (list control.LedgerList, err error) {
	err = s.with(func(*store.Store) error {
		list.Birth = s.ledgers.birth
		for _, name := range s.ledgers.store.Names() {
			switch {
			case bytes.Compare(name[:], q.From[:]) < 0:
			case len(list.Ledgers) == control.MaxLedgers:
				list.Next = control.LedgerName(name)
				return nil
			default:
				list.Ledgers = append(list.Ledgers, s.ledgers.state(name))
			}
		}
		return nil
	})
	return list, err
}

// Birth is the number that the server's memory of ledgers began with; 0 after Run has
// returned.
func (s *Server) Birth() (birth uint64) {
	_ = s.now(func(*store.Store) error { birth = s.ledgers.birth; return nil })
	return birth
}

// LedgerState tells how a ledger stands; false if there is none, or after Run has returned.
func (s *Server) LedgerState(name control.LedgerName) (state control.Ledger, ok bool) {
	_ = s.now(func(*store.Store) error {
		if _, ok = s.ledgers.store.Stat(ledger.Name(name)); ok {
			state = s.ledgers.state(ledger.Name(name))
		}
		return nil
	})
	return state, ok
}

// RefusedOwners is how often owners were refused what is beyond their share, by what it is: "ledgers", "undo", "regions". Those beyond share.MaxOwners
// are counted together, under the zero Owner. It is empty after Run has returned.
func (s *Server) RefusedOwners() (all map[string]map[share.Owner]uint64) {
	_ = s.now(func(st *store.Store) error {
		all = map[string]map[share.Owner]uint64{
			"ledgers": share.ByOwner(s.ledgers.store.Refused), "undo": share.ByOwner(st.RefusedUndo), "regions": share.ByOwner(st.RefusedRegions),
		}
		return nil
	})
	return all
}

// Ledgers is what ledgers take; zero after Run has returned.
func (s *Server) Ledgers() (space control.LedgerSpace) {
	_ = s.now(func(*store.Store) error {
		s.forgetBackup()
		space = s.ledgers.space()
		return nil
	})
	return space
}

func (l *ledgers) space() control.LedgerSpace {
	space := control.LedgerSpace{Used: l.store.Used(), Total: l.cfg.Total, Space: l.cfg.Space, Count: len(l.store.Names()), Birth: l.birth}
	for _, n := range l.refused {
		space.Refused += n
	}
	return space
}

// ReadLedger returns how a ledger stands here, and its chunks; false if there is none, or
// after Run has returned. The chunks must not be changed.
func (s *Server) ReadLedger(name control.LedgerName) (chunks []dsmpacket.Chunk, state control.Ledger, ok bool) {
	_ = s.with(func(*store.Store) error {
		if _, ok = s.ledgers.store.Stat(ledger.Name(name)); ok {
			state = s.ledgers.state(ledger.Name(name))
			chunks, _ = s.ledgers.store.Read(ledger.Name(name), state.First, math.MaxInt)
			chunks = slices.Clone(chunks) // those that a base makes superfluous are cleared
		}
		return nil
	})
	return chunks, state, ok
}
