package memory

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"sync"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/memory/ledger"
	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/share"
)

// A server may keep its ledgers in a directory. What a batch of requests changes is
// committed before the answers to them leave; requests that come meanwhile are carried out
// in memory and committed together.
//
//	requests ─▶ ledger.Store (in memory) ─▶ queue ─▶ commit ─▶ answers
//	                                     changes, answers
//
// Keys and values, big endian:
//
//	l/ name (16) m                 run (4), sealed (1), writer and granted (node 16, incarnation 4), first chunk (8), owner (port 4, user 4)
//	l/ name (16) c number (8)      1 if the chunk continues (1), data
//	b                              birth number (8), number of the rack (8), 0 before a rack has them

// ledgerVersion is the version of these.
const ledgerVersion = 3

var (
	birthKey     = []byte("b")
	firstLedger  = []byte("l/")
	afterLedgers = []byte("l0")
)

// LedgerDisk is a directory with ledgers.
type LedgerDisk struct {
	store keyValues
	birth uint64 // 0 while there are none
	rack  uint64 // whose they are: control.Welcome.Began; 0 if that is not known
	read  []ledgerRecord
	taken bool // by a server

	directory string
	saved     *SavedRegions // nil: there are none
	regions   *os.File      // RestoreRegions writes it; nil before
}

// keyValues is what keeps them: a disk.Store, or in tests a disk.MemoryStore.
type keyValues interface {
	Get(key []byte) ([]byte, error)
	Scan(from, to []byte) iter.Seq2[disk.Entry, error]
	Commit(fill func(*disk.Batch)) error
	Close() error
}

// ledgerRecord is a ledger as it was read.
type ledgerRecord struct {
	name   ledger.Name
	meta   ledger.Meta
	chunks []dsmpacket.Chunk
}

// OpenLedgerDisk opens a directory, or makes one, and reads what it has. With sync, what is
// answered survives a loss of power; without it, the death of the process. The error wraps
// disk.ErrLocked, disk.ErrVersion or disk.ErrCorrupt, and says what to do. Whoever gets it
// must Close it.
func OpenLedgerDisk(directory string, sync bool) (*LedgerDisk, error) {
	return openLedgerDisk(directory, disk.Options{Sync: sync})
}

func openLedgerDisk(directory string, o disk.Options) (*LedgerDisk, error) {
	o.Name, o.Version, o.Away = "the store of ledgers", ledgerVersion, ledgersAway
	s, err := disk.Open(directory, o)
	if err != nil {
		return nil, fmt.Errorf("ledgers %s: %w", directory, err)
	}
	d := &LedgerDisk{store: s, directory: directory}
	if err := errors.Join(d.readAll(), d.readSaved()); err != nil {
		return nil, fmt.Errorf("ledgers %s: %w", directory, errors.Join(disk.Refuse(err, ledgersAway), s.Close()))
	}
	return d, nil
}

// MemoryLedgerDisk is OpenLedgerDisk with a disk in memory, for tests. It has no regions of a backup.
func MemoryLedgerDisk(m *disk.Memory) (*LedgerDisk, error) {
	s, err := disk.OpenMemory(m)
	if err != nil {
		return nil, err
	}
	d := &LedgerDisk{store: s}
	if err := d.readAll(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return d, nil
}

// ledgersAway is what it means to move the directory away.
const ledgersAway = "if the memory machine has another copy, or its ledgers may be lost"

// Begin returns the birth number of the ledgers. If there are none yet, they begin with the given one, which is on disk when Begin
// returns: whoever serves the disk may announce the number, and whoever starts on the disk next has the same. Begin is to
// be called before a server has the disk.
func (d *LedgerDisk) Begin(birth uint64) (uint64, error) {
	if d.birth != 0 {
		return d.birth, nil
	}
	if err := d.store.Commit(func(b *disk.Batch) { write(b, []ledgerJob{{anew: true}}, birth, 0) }); err != nil {
		return 0, unwritable(err)
	}
	d.birth = birth
	return birth, nil
}

// Rack is the number of the rack whose ledgers they are, 0 if that is not known.
func (d *LedgerDisk) Rack() uint64 { return d.rack }

// Close has the disk take all that was answered.
func (d *LedgerDisk) Close() error { return errors.Join(d.closeRegions(), d.store.Close()) }

// readAll reads all ledgers.
func (d *LedgerDisk) readAll() error {
	switch v, err := d.store.Get(birthKey); {
	case errors.Is(err, disk.ErrNotFound):
	case err != nil:
		return err
	case len(v) != 16 || binary.BigEndian.Uint64(v) == 0:
		return corruptLedger("the birth number is %x", v)
	default:
		d.birth, d.rack = binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])
	}
	for e, err := range d.store.Scan(firstLedger, afterLedgers) {
		if err != nil {
			return err
		}
		if err := d.entry(e); err != nil {
			return err
		}
	}
	for i := range d.read {
		if d.read[i].meta.First == 0 {
			return corruptLedger("ledger %x has chunks, and no state", d.read[i].name)
		}
	}
	if d.birth == 0 && len(d.read) > 0 {
		return corruptLedger("there are ledgers, and no birth number")
	}
	return nil
}

// entry takes a key and its value. A ledger's chunks come before its state, in order.
func (d *LedgerDisk) entry(e disk.Entry) error {
	name, number, chunk, ok := parseLedgerKey(e.Key)
	if !ok {
		return corruptLedger("a key is %q", e.Key)
	}
	if n := len(d.read); n == 0 || d.read[n-1].name != name {
		d.read = append(d.read, ledgerRecord{name: name})
	}
	r := &d.read[len(d.read)-1]
	if chunk {
		if len(e.Value) == 0 || e.Value[0] > 1 {
			return corruptLedger("chunk %d of ledger %x is %.20x", number, name, e.Value)
		}
		r.chunks = append(r.chunks, dsmpacket.Chunk{Number: number, Continues: e.Value[0] == 1, Data: bytes.Clone(e.Value[1:])})
		return nil
	}
	meta, err := parseMeta(e.Value)
	if err != nil {
		return fmt.Errorf("ledger %x: %w", name, err)
	}
	r.meta = meta
	return nil
}

func corruptLedger(format string, args ...any) error {
	return fmt.Errorf("the store of ledgers is %w: %s", disk.ErrCorrupt, fmt.Sprintf(format, args...))
}

// restore returns a store with what was read.
func restore(cfg ledger.Config, read []ledgerRecord) (*ledger.Store, error) {
	s := ledger.New(cfg)
	for _, r := range read {
		if err := s.Load(r.name, r.meta, r.chunks); err != nil {
			return nil, disk.Refuse(fmt.Errorf("%w: %w", corruptLedger("a ledger is not whole"), err), ledgersAway)
		}
	}
	return s, nil
}

func metaKey(name ledger.Name) []byte { return append(ledgerPrefix(name), 'm') }

func chunkKey(name ledger.Name, number uint64) []byte {
	return binary.BigEndian.AppendUint64(append(ledgerPrefix(name), 'c'), number)
}

func ledgerPrefix(name ledger.Name) []byte {
	return append(append(make([]byte, 0, len(firstLedger)+len(name)+9), firstLedger...), name[:]...)
}

// parseLedgerKey reads a key; chunk tells those of chunks from those of states.
func parseLedgerKey(key []byte) (name ledger.Name, number uint64, chunk, ok bool) {
	rest, ok := bytes.CutPrefix(key, firstLedger)
	if !ok || len(rest) <= len(name) {
		return name, 0, false, false
	}
	rest = rest[copy(name[:], rest):]
	switch {
	case len(rest) == 1 && rest[0] == 'm':
		return name, 0, false, true
	case len(rest) == 9 && rest[0] == 'c':
		return name, binary.BigEndian.Uint64(rest[1:]), true, true
	}
	return name, 0, false, false
}

// metaValue is a state as it is written.
type metaValue struct {
	Run        uint32
	Sealed     bool
	Writer     [16]byte // zero for nobody
	WriterInc  uint32
	Granted    [16]byte
	GrantedInc uint32
	First      uint64
	Port, User uint32 // of the owner
}

func appendMeta(b []byte, m *ledger.Meta) []byte {
	v := metaValue{Run: m.Run, Sealed: m.Sealed, WriterInc: m.Writer.Incarnation, GrantedInc: m.Granted.Incarnation, First: m.First, Port: m.Owner.Port, User: m.Owner.User}
	if m.Writer.Node.IsValid() {
		v.Writer = m.Writer.Node.As16()
	}
	if m.Granted.Node.IsValid() {
		v.Granted = m.Granted.Node.As16()
	}
	b, err := binary.Append(b, binary.BigEndian, v)
	if err != nil {
		panic(err) // metaValue has a fixed size
	}
	return b
}

func parseMeta(b []byte) (m ledger.Meta, err error) {
	var v metaValue
	if n, err := binary.Decode(b, binary.BigEndian, &v); err != nil || n != len(b) || b[4] > 1 || v.First == 0 {
		return m, corruptLedger("the state is %x", b)
	}
	m = ledger.Meta{Run: v.Run, Sealed: v.Sealed, First: v.First, Owner: share.Owner{Port: v.Port, User: v.User}}
	m.Writer, m.Granted = metaWriter(v.Writer, v.WriterInc), metaWriter(v.Granted, v.GrantedInc)
	return m, nil
}

func metaWriter(node [16]byte, incarnation uint32) (w ledger.Writer) {
	w.Incarnation = incarnation
	if node != ([16]byte{}) {
		w.Node = netip.AddrFrom16(node)
	}
	return w
}

// ledgerJob is what a batch of requests, or a command, has to be committed.
type ledgerJob struct {
	anew    bool // all that was there before is gone
	changes []ledger.Change
	answers *answers // to be sent then; nil for none
}

// committer writes changes of ledgers to disk, in order. Methods may be called
// concurrently.
type committer struct {
	disk *LedgerDisk
	wake chan struct{} // has room for one token

	turn chan struct{} // holds a token while somebody commits

	mu     sync.Mutex
	jobs   []ledgerJob
	queued int    // bytes of jobs
	birth  uint64 // of the newest job
	rack   uint64
	err    error // it can write nothing any more
}

// maxQueued is how many bytes of changes may wait to be committed; then requests are
// dropped, and come again.
const maxQueued = 64 << 20

func newCommitter(d *LedgerDisk) *committer {
	return &committer{disk: d, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), birth: d.birth, rack: d.rack}
}

// full reports whether requests have to wait.
func (c *committer) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.queued > maxQueued || c.err != nil
}

// add takes a job. The caller has the server's mutex, so that jobs come in order.
func (c *committer) add(j ledgerJob, birth, rack uint64) {
	c.mu.Lock()
	c.jobs = append(c.jobs, j)
	for _, k := range j.changes {
		c.queued += 64
		if k.Put != nil {
			c.queued += len(k.Put.Data)
		}
	}
	c.birth, c.rack = birth, rack
	c.mu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default: // it is awake
	}
}

// run commits until stop is closed.
func (c *committer) run(stop <-chan struct{}) error {
	for {
		select {
		case <-stop:
			return c.commit()
		case <-c.wake:
			if err := c.commit(); err != nil {
				return err
			}
		}
	}
}

// commit makes all that was added before durable, and sends the answers. An error is
// final.
func (c *committer) commit() error {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	c.mu.Lock()
	jobs, birth, rack, err := c.jobs, c.birth, c.rack, c.err
	c.jobs, c.queued = nil, 0
	c.mu.Unlock()
	if err == nil && changes(jobs) {
		if err = c.disk.store.Commit(func(b *disk.Batch) { write(b, jobs, birth, rack) }); err != nil {
			err = unwritable(err)
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}
	for _, j := range jobs {
		if err == nil && j.answers != nil {
			j.answers.send()
		}
	}
	return err
}

func unwritable(err error) error { return fmt.Errorf("the ledgers cannot be written: %w", err) }

// changes reports whether jobs have something to be written.
func changes(jobs []ledgerJob) bool {
	for _, j := range jobs {
		if j.anew || len(j.changes) > 0 {
			return true
		}
	}
	return false
}

// write puts jobs into a batch.
func write(b *disk.Batch, jobs []ledgerJob, birth, rack uint64) {
	for _, j := range jobs {
		if j.anew {
			b.DeleteRange(firstLedger, afterLedgers)
			b.Put(birthKey, binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, birth), rack))
		}
		for _, c := range j.changes {
			switch {
			case c.Put != nil:
				flags := byte(0)
				if c.Put.Continues {
					flags = 1
				}
				b.Put(chunkKey(c.Name, c.Put.Number), append([]byte{flags}, c.Put.Data...))
			case c.Drop != nil:
				b.DeleteRange(chunkKey(c.Name, c.Drop.First), chunkKey(c.Name, c.Drop.Next))
			case c.Meta != nil:
				b.Put(metaKey(c.Name), appendMeta(nil, c.Meta))
			case c.Gone:
				b.Delete(metaKey(c.Name))
			}
		}
	}
}
