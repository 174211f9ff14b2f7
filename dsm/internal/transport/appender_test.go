package transport

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// appendLab is one ledger on a mirrored machine, its writer, and a network between them
// that loses, doubles and reorders. Time is virtual.
type appendLab struct {
	t       *testing.T
	rng     *rand.Rand
	now     time.Duration
	copies  []*ledger.Store // nil: that copy is gone
	epoch   uint32
	run     uint32
	writer  *Appender
	flight  []delivery
	loss    float64
	history [][]byte // all records that were appended in the order of the ledger
	settled int      // how many of them were reported as settled
	offset  int      // of the history: records of earlier runs
	fails   bool     // the writer may fail
}

// delivery is one packet under way.
type delivery struct {
	at time.Duration
	do func()
}

const labBirth = 77

func newAppendLab(t *testing.T, seed uint64, copies int) *appendLab {
	l := &appendLab{t: t, rng: rand.New(rand.NewPCG(seed, 1)), epoch: 1}
	for range copies {
		c := ledger.New(labConfig)
		c.Grant(l.name(), ledger.Writer{Node: rackaddr.Node(1), Incarnation: 1}, share.Owner{})
		l.copies = append(l.copies, c)
	}
	l.loss = []float64{0, 0.02, 0.3}[l.rng.IntN(3)]
	l.open()
	return l
}

var labConfig = ledger.Config{Birth: labBirth, Space: 1 << 20, Total: 1 << 20, Durable: true}

func (l *appendLab) who() ledger.Writer {
	return ledger.Writer{Node: rackaddr.Node(1), Incarnation: l.run}
}

func (l *appendLab) name() ledger.Name { return ledger.NameOf(rackaddr.Node(1)) }

func (l *appendLab) members() (n int) {
	for _, c := range l.copies {
		if c != nil {
			n++
		}
	}
	return n
}

// open begins the next run.
func (l *appendLab) open() {
	l.run++
	next := uint64(0)
	for i, c := range l.copies {
		if c == nil {
			continue
		}
		a := c.Open(l.name(), l.run, l.who())
		if a.Status != fault.OK || next != 0 && a.Next != next {
			l.t.Fatalf("open at copy %d: %+v, the other has %d", i, a, next)
		}
		next = a.Next
	}
	l.writer = NewAppender(AppenderConfig{MaxData: 100, Next: next, Birth: labBirth, Mirror: dsmpacket.Mirror{Epoch: l.epoch, Members: uint8(l.members())}})
	l.offset = len(l.history)
	l.flight = nil
}

// after lets something happen after a random delay, or never, or twice.
func (l *appendLab) after(do func()) {
	for range 1 + l.rng.IntN(20)/19 {
		if l.rng.Float64() >= l.loss {
			l.flight = append(l.flight, delivery{l.now + time.Duration(1+l.rng.IntN(500))*time.Microsecond, do})
		}
	}
}

// deliver sends what the writer has to send.
func (l *appendLab) deliver() {
	for _, p := range l.writer.Send() {
		for i := range l.copies {
			l.after(func() { l.arrive(i, p, l.run) })
		}
	}
}

// arrive hands an append to a copy and sends its answer back.
func (l *appendLab) arrive(i int, p Append, run uint32) {
	c := l.copies[i]
	if c == nil {
		return
	}
	chunk := p.Chunk
	chunk.Data = bytes.Clone(p.Data)
	a := c.Append(l.name(), run, ledger.Writer{Node: rackaddr.Node(1), Incarnation: run}, p.Keep, chunk)
	epoch, members := l.epoch, l.members()
	l.after(func() {
		l.writer.Receive(l.now, &dsmpacket.LedgerAnswer{
			Mirror: dsmpacket.Mirror{Copy: uint8(min(i, members-1)), Epoch: epoch, Members: uint8(members)}, Birth: a.Birth, Chunk: dsmpacket.Chunk{Number: p.Number}, Next: a.Next, Status: a.Status, Room: a.Room,
		})
		l.progress()
	})
}

// progress notes what the writer takes for settled.
func (l *appendLab) progress() {
	if n := l.offset + int(l.writer.Settled()); n < l.settled {
		l.t.Fatalf("settled falls from %d to %d", l.settled, n)
	} else {
		l.settled = n
	}
	if err := l.writer.Err(); err != nil && !l.fails {
		l.t.Fatal(err)
	}
}

// step lets the next thing happen; false means that nothing will.
func (l *appendLab) step() bool {
	l.deliver()
	at := l.writer.Wake()
	k := -1
	for i, d := range l.flight {
		if d.at < at {
			at, k = d.at, i
		}
	}
	if at == Never {
		return false
	}
	l.now = max(l.now, at)
	if k < 0 {
		l.writer.Tick(l.now)
		return true
	}
	do := l.flight[k].do
	l.flight = slices.Delete(l.flight, k, k+1)
	do()
	return true
}

// append adds a record of random size.
func (l *appendLab) append() {
	b := make([]byte, []int{0, 8, 90, 99, 100, 101, 700}[l.rng.IntN(7)]+8)
	binary.BigEndian.PutUint64(b, uint64(len(l.history)))
	l.history = append(l.history, b)
	if l.rng.IntN(20) == 0 {
		binary.BigEndian.PutUint32(b, 1) // marks a base
		l.writer.add(l.now, ledgerRecord{data: b, base: true})
		return
	}
	l.writer.add(l.now, ledgerRecord{data: b})
}

// crash ends the run and reads what it has left.
func (l *appendLab) crash() {
	first, next := uint64(1), uint64(1<<62)
	for _, c := range l.copies {
		if c != nil {
			c.Fence(l.who())
			st, _ := c.Stat(l.name())
			first, next = max(first, st.First), min(next, st.Next)
		}
	}
	var records [][]byte
	for i, c := range l.copies {
		if c == nil {
			continue
		}
		if a := c.End(l.name(), l.run, first, next); a.Status != fault.OK {
			l.t.Fatalf("end at copy %d: %+v", i, a)
		}
		got := l.read(c)
		if records != nil && !slices.EqualFunc(records, got, bytes.Equal) {
			l.t.Fatal("the copies differ")
		}
		records = got
	}
	l.check(records)
	l.open()
}

// read returns the records of a copy.
func (l *appendLab) read(c *ledger.Store) (records [][]byte) {
	st, _ := c.Stat(l.name())
	var r dsmpacket.Records
	for from := st.First; from < st.Next; {
		chunks, a := c.Read(l.name(), from, 300)
		if a.Status != fault.OK {
			l.t.Fatal(a)
		}
		for _, ch := range chunks {
			if err := r.Chunk(ch, func(b []byte) { records = append(records, bytes.Clone(b)) }); err != nil {
				l.t.Fatal(err)
			}
		}
		from += uint64(len(chunks))
	}
	if !r.Whole() {
		l.t.Fatal("a sealed ledger ends in the middle of a record")
	}
	return records
}

// check compares what was read with what was appended, and forgets what was lost.
func (l *appendLab) check(records [][]byte) {
	if len(records) == 0 {
		if l.settled > 0 {
			l.t.Fatalf("%d settled records are gone", l.settled)
		}
		l.history = nil
		return
	}
	index := func(b []byte) int { return int(binary.BigEndian.Uint32(b[4:])) }
	first := index(records[0])
	for i, b := range records {
		if k := first + i; k >= len(l.history) || !bytes.Equal(l.history[k], b) {
			l.t.Fatalf("record %d of the ledger is not what was appended as number %d", i, k)
		}
	}
	if first > 0 && binary.BigEndian.Uint32(records[0]) != 1 {
		l.t.Fatalf("the ledger begins with record %d, which is no base", first)
	}
	if end := first + len(records); end < l.settled {
		l.t.Fatalf("the ledger ends with record %d of %d that were settled", end, l.settled)
	}
	l.history = l.history[:first+len(records)]
	l.settled = len(l.history) // the next run begins behind them
}

// lose takes a copy away: the survivors go on in the next epoch.
func (l *appendLab) lose(i int) {
	if l.copies[i] == nil || l.members() < 2 {
		return
	}
	l.copies[i] = nil
	l.epoch++
}

// fill gives a lost copy the state of another.
func (l *appendLab) fill(i int) {
	if l.copies[i] != nil {
		return
	}
	from := l.copies[1-i]
	st, _ := from.Stat(l.name())
	chunks, _ := from.Read(l.name(), st.First, 1<<30)
	c := ledger.New(labConfig)
	err := c.Load(l.name(), ledger.Meta{Run: st.Run, Sealed: st.Sealed, Writer: st.Writer, First: st.First}, chunks)
	if err != nil {
		l.t.Fatal(err)
	}
	l.copies[i] = c
	l.epoch++
}

// TestAppender_Random appends through a bad network while the writer crashes and copies
// are lost and filled: what was settled is there after each crash, in order, equal on
// all copies.
func TestAppender_Random(t *testing.T) {
	for seed := range uint64(200) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			l := newAppendLab(t, seed, 1+int(seed%2))
			for range 3000 {
				switch r := l.rng.IntN(600); {
				case r == 0:
					l.crash()
				case r == 1 && len(l.copies) == 2:
					l.lose(l.rng.IntN(2))
				case r < 6 && len(l.copies) == 2:
					l.fill(l.rng.IntN(2))
				case r < 150 && len(l.history)-l.settled < 400:
					l.append()
				default:
					l.step()
				}
			}
			for end := l.now + time.Hour; l.settled < len(l.history) && l.now < end && l.step(); {
			}
			if l.settled != len(l.history) {
				t.Fatalf("%d of %d records are settled after an hour", l.settled, len(l.history))
			}
			l.crash()
		})
	}
}

// appended is what the only copy of a machine answers to an append.
func appended(birth uint64, epoch uint32, number, next uint64, status fault.Code) *dsmpacket.LedgerAnswer {
	return &dsmpacket.LedgerAnswer{
		Mirror: dsmpacket.Mirror{Epoch: epoch, Members: 1}, Birth: birth, Chunk: dsmpacket.Chunk{Number: number}, Next: next, Status: status,
	}
}

// Records that come while one is in flight share chunks.
func TestAppender_GroupCommit(t *testing.T) {
	a := NewAppender(AppenderConfig{MaxData: 100, Next: 1, Birth: 1, Mirror: dsmpacket.Mirror{Members: 1}})
	for range 21 {
		a.add(0, ledgerRecord{data: make([]byte, 9)})
	}
	if s := a.Send(); len(s) != 1 || s[0].Number != 1 {
		t.Fatalf("the first record left in %d chunks", len(s))
	}
	a.Receive(time.Millisecond, appended(1, 0, 1, 2, fault.OK))
	if s := a.Send(); len(s) != 2 || a.Settled() != 1 {
		t.Fatalf("20 records of 10 bytes left in %d chunks of 100, %d settled", len(s), a.Settled())
	}
	a.Receive(2*time.Millisecond, appended(1, 0, 3, 4, fault.OK))
	if a.Settled() != 21 || a.Wake() != Never && a.flight.Len() > 0 {
		t.Fatalf("%d of 21 settled", a.Settled())
	}
}

// A chunk that was sent before a base was settled, and finds no room, is sent again at once: now the copies can drop what lies before the base. It is
// sent again later if there is still none.
func TestAppender_BaseMakesRoom(t *testing.T) {
	a := NewAppender(AppenderConfig{MaxData: 100, Next: 1, Birth: 1, Mirror: dsmpacket.Mirror{Members: 1}})
	a.add(0, ledgerRecord{data: make([]byte, 90), base: true}, ledgerRecord{data: make([]byte, 90)})
	if s := a.Send(); len(s) != 2 {
		t.Fatalf("the base and the record behind it left in %d chunks", len(s))
	}
	a.Receive(time.Millisecond, appended(1, 0, 1, 2, fault.OK))
	if s := a.Send(); len(s) != 1 || s[0].Keep != 1 {
		t.Fatalf("%v tells that the base is settled", s)
	}
	a.Receive(2*time.Millisecond, appended(1, 0, 2, 2, fault.NoSpace))
	if s := a.Send(); len(s) == 0 || s[0].Number != 2 || s[0].Keep != 1 {
		t.Fatalf("%v are sent again after the base", s)
	}
	a.Receive(3*time.Millisecond, appended(1, 0, 2, 2, fault.NoSpace))
	if s := a.Send(); len(s) != 0 || a.Wake() == Never {
		t.Fatalf("%v are sent again without room", s)
	}
}

// Records that are added together leave in one chunk, though nothing is in flight.
func TestAppender_Together(t *testing.T) {
	a := NewAppender(AppenderConfig{MaxData: 100, Next: 1, Birth: 1, Mirror: dsmpacket.Mirror{Members: 1}})
	if n := a.add(0, ledgerRecords([][]byte{make([]byte, 9), make([]byte, 20), make([]byte, 9)})...); n != 3 {
		t.Fatalf("the last of three records has number %d", n)
	}
	if s := a.Send(); len(s) != 1 || len(s[0].Data) != 3*dsmpacket.RecordSize(0)+38 {
		t.Fatalf("three records left in %d chunks: %v", len(s), s)
	}
	a.Receive(time.Millisecond, appended(1, 0, 1, 2, fault.OK))
	if a.Settled() != 3 {
		t.Fatalf("%d of 3 settled", a.Settled())
	}
}

// What a writer cannot go on after is said, and nothing is sent any more.
func TestAppender_Fails(t *testing.T) {
	for want, r := range map[fault.Code]*dsmpacket.LedgerAnswer{
		fault.Stale:    appended(1, 0, 1, 1, fault.Stale),
		fault.Internal: appended(2, 0, 1, 2, fault.OK),
	} {
		a := NewAppender(AppenderConfig{MaxData: 100, Next: 1, Birth: 1, Mirror: dsmpacket.Mirror{Members: 1}})
		a.add(0, ledgerRecord{data: []byte("x")})
		a.Send()
		a.Receive(1, r)
		a.Tick(time.Hour)
		a.add(time.Hour, ledgerRecord{data: []byte("y")})
		if fault.CodeOf(a.Err()) != want || a.Settled() != 0 || len(a.Send()) != 0 || a.Wake() != Never {
			t.Errorf("%v: error %v, settled %d", want, a.Err(), a.Settled())
		}
	}
	// A refusal that passes, and a copy of an epoch that is over, change nothing.
	a := NewAppender(AppenderConfig{MaxData: 100, Next: 1, Birth: 1, Mirror: dsmpacket.Mirror{Epoch: 3, Members: 1}})
	a.add(0, ledgerRecord{data: []byte("x")})
	a.Receive(1, appended(1, 2, 1, 2, fault.OK))
	a.Receive(1, appended(1, 3, 1, 1, fault.Overloaded))
	if a.Err() != nil || a.Settled() != 0 {
		t.Errorf("error %v, settled %d", a.Err(), a.Settled())
	}
}

// TestAppender_Room: a writer knows what room there is for new work. What a base has cut is
// dropped although nothing more is appended, and the room that it makes is known. An
// eighth of the space is left for what makes room.
func TestAppender_Room(t *testing.T) {
	const space = 16 << 10
	for _, copies := range []int{1, 2} {
		l := newAppendLab(t, 3, 0)
		l.loss = 0.2
		for range copies {
			c := ledger.New(ledger.Config{Birth: labBirth, Space: space, Total: 8 * space})
			c.Grant(l.name(), ledger.Writer{Node: rackaddr.Node(1), Incarnation: 1}, share.Owner{})
			l.copies = append(l.copies, c)
		}
		l.run = 0
		l.open()
		l.writer.cfg.Room = space * 15 / 8
		settle := func() {
			for l.step() && l.writer.Busy() {
			}
		}
		taken := func() (n uint64) {
			for _, c := range l.copies {
				st, _ := c.Stat(l.name())
				n = max(n, st.Used)
			}
			return n
		}
		for l.writer.Room() > 1000 {
			l.writer.add(l.now, ledgerRecord{data: make([]byte, 700)})
		}
		settle()
		if n := taken(); n < space*7/4 || n > space*15/8 {
			t.Fatalf("%d copies: new work has taken %d of %d bytes", copies, n, space)
		}
		for range 4 {
			l.writer.add(l.now, ledgerRecord{data: make([]byte, 500)}) // what makes room
		}
		settle()
		if l.writer.Err() != nil || l.writer.Room() > 0 {
			t.Fatalf("%d copies: %v, room for %d bytes", copies, l.writer.Err(), l.writer.Room())
		}
		l.writer.add(l.now, ledgerRecord{data: make([]byte, 100), base: true})
		settle()
		if n, room := taken(), l.writer.Room(); n > 300 || room < space*7/4 {
			t.Errorf("%d copies: after a base %d bytes are taken, and there is room for %d", copies, n, room)
		}
	}
}

// TestAppender_Full: records that find no room wait for the base before them, which makes
// some; those of a writer that has written none wait until another ledger gives some back. The writer does not fail.
func TestAppender_Full(t *testing.T) {
	l := newAppendLab(t, 4, 0)
	l.loss = 0.2
	c := ledger.New(ledger.Config{Birth: labBirth, Space: 4096, Total: 10000})
	c.Grant(l.name(), ledger.Writer{Node: rackaddr.Node(1), Incarnation: 1}, share.Owner{})
	l.copies, l.run = []*ledger.Store{c}, 0
	l.open()
	last := uint64(0)
	for i := range 200 {
		if i%9 == 8 {
			last = l.writer.add(l.now, ledgerRecord{data: make([]byte, 150), base: true})
			continue
		}
		last = l.writer.add(l.now, ledgerRecord{data: make([]byte, 250)})
	}
	for l.step() && l.writer.Settled() < last {
	}
	if l.writer.Settled() != last {
		t.Fatalf("%d of %d records are settled", l.writer.Settled(), last)
	}
	other := ledger.Writer{Node: rackaddr.Node(2), Incarnation: 1}
	c.Grant(ledger.NameOf(other.Node), other, share.Owner{Port: 2})
	c.Open(ledger.NameOf(other.Node), 1, other)
	taken := uint64(0)
	for c.Append(ledger.NameOf(other.Node), 1, other, 0, dsmpacket.Chunk{Number: 1 + taken, Data: make([]byte, 300)}).Status == fault.OK {
		taken++
	}
	if taken < 3 {
		t.Fatalf("another ledger has %d chunks", taken)
	}
	for range 9 {
		last = l.writer.add(l.now, ledgerRecord{data: make([]byte, 250)})
	}
	until := func(end time.Duration) {
		for l.writer.Settled() < last && l.now < end {
			if l.deliver(); len(l.flight) == 0 {
				l.now = l.writer.Wake()
				l.writer.Tick(l.now)
				continue
			}
			l.now = max(l.now, l.flight[0].at)
			do := l.flight[0].do
			l.flight = l.flight[1:]
			do()
		}
	}
	until(l.now + time.Minute)
	if l.writer.Settled() == last || l.writer.Err() != nil {
		t.Fatalf("without room %d of %d records are settled: %v", l.writer.Settled(), last, l.writer.Err())
	}
	c.Fence(other)
	c.Delete(ledger.NameOf(other.Node))
	until(l.now + time.Minute)
	if l.writer.Settled() != last {
		t.Errorf("with room %d of %d records are settled", l.writer.Settled(), last)
	}
}
