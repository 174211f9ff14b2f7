// Package disk keeps keys and values in files, for what must survive its process: the
// Gatekeeper's log and the ledgers of memory servers. A Store is a Pebble database (an LSM
// tree with a write-ahead log) with what such files need beside it: a lock, a version, and
// a note of the last acknowledged commit (tail.go), so that a store that has lost one is
// refused, with what an operator can do.
//
// A commit is durable when the operating system has it (page cache): it survives the death
// of the process at any instant, but not the loss of power, which may take the last commits
// and leaves those before them. With Options.Sync it is durable when the disk has it.
package disk

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble"
	"github.com/cockroachdb/pebble/vfs"
)

// The reasons why a store is refused; compare with errors.Is. Each error has the store's
// name before them.
var (
	// ErrLocked: another process, or another Store in this one, has it open.
	ErrLocked = errors.New("in use")
	// ErrCorrupt: what was read is not what was written.
	ErrCorrupt = errors.New("corrupt")
	// ErrVersion: another version of Bifröst wrote it.
	ErrVersion = errors.New("of a version that is not known")
)

// ErrNotFound is what reading a key that is not there fails with.
var ErrNotFound = errors.New("no such key")

// Options says how a store is kept. Name, Version and Away must be set.
type Options struct {
	// Name is what errors call the store, such as "the log".
	Name string
	// Version is the version of how keys and values are written.
	Version uint64
	// Away is what it means to begin with another directory, as a clause that goes on from "move
	// the directory away, ".
	Away string
	// Sync makes a commit durable when the disk has it.
	Sync bool
	// FS is where the files are, for tests; nil stands for the operating system's files.
	FS vfs.FS
	// Boot is the machine's boot id, for tests; "" stands for the present one.
	Boot string
}

func (o *Options) corrupt(format string, args ...any) error {
	return fmt.Errorf("%s is %w: %s", o.Name, ErrCorrupt, fmt.Sprintf(format, args...))
}

// Keys of the store's own. Those of its owner must not begin with "m/".
var (
	own        = []byte("m/")
	afterOwn   = []byte("m0")
	versionKey = []byte("m/version")
	commitKey  = []byte("m/commit") // the last one's number
)

// Sizes of Pebble. Most values are deleted before a memtable is full, so they never reach
// a table on disk.
const (
	memTableSize  = 32 << 20
	maxMemTables  = 4
	pebbleCache   = 8 << 20
	manifestLimit = 4 << 20
)

// Store is a store on disk. Get may be called at any time; the other methods have one
// caller at a time.
type Store struct {
	o       Options
	db      *pebble.DB
	lock    *pebble.Lock
	tail    *tail
	dir     string
	commits uint64 // number of the last commit
}

// Open opens the store in a directory, or makes one. It fails with ErrLocked, ErrVersion or
// ErrCorrupt rather than begin with less than was committed. Its errors are RefusedErrors.
func Open(directory string, o Options) (*Store, error) {
	s, err := openDirectory(directory, o)
	return s, Refuse(err, o.Away)
}

func openDirectory(directory string, o Options) (*Store, error) {
	if o.FS == nil {
		o.FS = vfs.Default
	}
	o.Boot = cmp.Or(o.Boot, thisBoot())
	if err := o.FS.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	lock, err := pebble.LockDirectory(directory, o.FS)
	switch {
	case errors.Is(err, syscall.EAGAIN), err != nil && strings.Contains(err.Error(), "held by current process"):
		return nil, fmt.Errorf("%s is %w: %w", o.Name, ErrLocked, err)
	case err != nil:
		return nil, err
	}
	s := &Store{o: o, lock: lock, dir: directory}
	if err := s.open(); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// open opens the database in the locked directory. What makes Pebble panic, such as a
// write that fails, is an error.
func (s *Store) open() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = s.explain(panicked(r))
			if s.db != nil {
				_ = s.db.Close() // the first error tells more
			}
		}
	}()
	cache := pebble.NewCache(pebbleCache)
	defer cache.Unref()
	lazily := s.o.FS
	if !s.o.Sync {
		lazily = pageCacheFS{s.o.FS}
	}
	s.db, err = pebble.Open(s.dir, &pebble.Options{
		FS: lazily, Lock: s.lock, Cache: cache, Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: memTableSize, MemTableStopWritesThreshold: maxMemTables, MaxManifestFileSize: manifestLimit,
		Levels: []pebble.LevelOptions{{Compression: pebble.NoCompression}},
	})
	if err != nil {
		return s.explain(err)
	}
	err = s.checkVersion()
	if err == nil {
		err = s.checkTail()
	}
	if err != nil {
		return errors.Join(err, s.db.Close())
	}
	return nil
}

// checkTail refuses a store that ends before what was acknowledged.
func (s *Store) checkTail() error {
	switch v, err := s.Get(commitKey); {
	case errors.Is(err, ErrNotFound): // there was no commit, or a former version made it
	case err != nil:
		return err
	case len(v) != 8:
		return s.o.corrupt("the last commit's number has %d bytes", len(v))
	default:
		s.commits = binary.BigEndian.Uint64(v)
	}
	var err error
	s.tail, err = openTail(s.dir, s.commits, &s.o)
	return err
}

// checkVersion reads the store's version, or writes it into an empty one.
func (s *Store) checkVersion() error {
	v, err := s.Get(versionKey)
	switch {
	case errors.Is(err, ErrNotFound):
		for _, bounds := range [][2][]byte{{nil, own}, {afterOwn, nil}} {
			for _, err := range s.Scan(bounds[0], bounds[1]) {
				return cmp.Or(err, s.o.corrupt("there are records, but no version"))
			}
		}
		return s.db.Set(versionKey, binary.BigEndian.AppendUint64(nil, s.o.Version), pebble.Sync)
	case err != nil:
		return err
	case len(v) != 8:
		return s.o.corrupt("the version has %d bytes", len(v))
	}
	if found := binary.BigEndian.Uint64(v); found != s.o.Version {
		return fmt.Errorf("%s is %w: it has version %d, this program knows %d", s.o.Name, ErrVersion, found, s.o.Version)
	}
	return nil
}

// Batch is what a commit changes. A key that is put exactly once before it is deleted is
// deleted with DeleteOnce: then both can go when they meet.
type Batch struct {
	b   changes
	err error
}

// changes is what makes changes: a batch of Pebble, or that of a Memory.
type changes interface {
	Set(key, value []byte, o *pebble.WriteOptions) error
	Delete(key []byte, o *pebble.WriteOptions) error
	SingleDelete(key []byte, o *pebble.WriteOptions) error
	DeleteRange(from, to []byte, o *pebble.WriteOptions) error
}

// Put sets a key.
func (b *Batch) Put(key, value []byte) { b.note(b.b.Set(key, value, nil)) }

// Delete deletes a key; one that is not there is no error.
func (b *Batch) Delete(key []byte) { b.note(b.b.Delete(key, nil)) }

// DeleteOnce deletes a key that was put once since it was last deleted.
func (b *Batch) DeleteOnce(key []byte) { b.note(b.b.SingleDelete(key, nil)) }

// DeleteRange deletes the keys from one on, up to but without another.
func (b *Batch) DeleteRange(from, to []byte) { b.note(b.b.DeleteRange(from, to, nil)) }

func (b *Batch) note(err error) { b.err = cmp.Or(b.err, err) }

// Commit makes the changes of a batch durable, all or none. When it fails, nobody knows
// whether they are, and nothing more may be committed.
func (s *Store) Commit(fill func(*Batch)) (err error) {
	defer func() { // Pebble has no error for a write that fails: it calls quiet.Fatalf, or panics itself
		if r := recover(); r != nil {
			err = panicked(r)
		}
	}()
	batch := s.db.NewBatch()
	defer func() {
		if err == nil {
			err = batch.Close()
		}
	}()
	b := Batch{b: batch}
	fill(&b)
	s.commits++
	b.Put(commitKey, binary.BigEndian.AppendUint64(nil, s.commits))
	if b.err != nil {
		return b.err
	}
	if err := batch.Commit(pebble.Sync); err != nil {
		return err
	}
	return s.tail.note(s.commits)
}

// Get returns the value of a key, which the caller may keep, or ErrNotFound.
func (s *Store) Get(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if err != nil {
		return nil, s.explainRead(err)
	}
	b := slices.Clone(v)
	return b, closer.Close()
}

// Entry is a key and its value.
type Entry struct{ Key, Value []byte }

// Scan yields what has keys from one on, up to but without another, in their order; nil
// stands for no bound. The bytes are good until the next one.
func (s *Store) Scan(from, to []byte) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
		if err != nil {
			yield(Entry{}, s.explainRead(err))
			return
		}
		defer func() { _ = it.Close() }() // its error is it.Error
		for it.First(); it.Valid(); it.Next() {
			v, err := it.ValueAndErr()
			if err != nil {
				yield(Entry{}, s.explainRead(err))
				return
			}
			if !yield(Entry{it.Key(), v}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(Entry{}, s.explainRead(err))
		}
	}
}

// Footprint is how many bytes the store takes, deleted values included.
func (s *Store) Footprint() uint64 { return s.db.Metrics().DiskSpaceUsage() }

// Close also has the disk take all commits, and notes that.
func (s *Store) Close() error {
	err := s.db.Close()
	if err == nil {
		err = s.flush()
	}
	if err == nil {
		err = s.tail.close(s.commits)
	} else {
		err = errors.Join(err, s.tail.file.Close())
	}
	return errors.Join(err, s.lock.Close())
}

// flush syncs the write-ahead logs of a database that is closed.
func (s *Store) flush() error {
	names, err := s.o.FS.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		f, err := s.o.FS.OpenReadWrite(s.o.FS.PathJoin(s.dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// quiet is Pebble's logger: nobody has to read what it does, and what it cannot
// go on from ends the commit, or in the background the process.
type quiet struct{}

func (quiet) Infof(string, ...any) {}

func (quiet) Fatalf(format string, args ...any) {
	err := fmt.Errorf(format, args...) //nolint:err113 // Pebble's words
	for _, a := range args {
		if cause, ok := a.(error); ok {
			err = &fatalError{err.Error(), cause}
		}
	}
	panic(err)
}

// fatalError is what Pebble cannot go on from, with the error that it tells of.
type fatalError struct {
	msg   string
	cause error
}

func (e *fatalError) Error() string { return e.msg }
func (e *fatalError) Unwrap() error { return e.cause }

// panicked is the error of a panic in Pebble.
func panicked(r any) error {
	if err, ok := r.(error); ok {
		return fmt.Errorf("pebble: %w", err)
	}
	return fmt.Errorf("pebble: %v", r)
}

// pageCacheFS leaves it to the operating system when the write-ahead log goes to
// disk. All else is synced, in the background, so that a loss of power leaves a
// database that can be opened.
type pageCacheFS struct{ vfs.FS }

func (fs pageCacheFS) Create(name string) (vfs.File, error) {
	f, err := fs.FS.Create(name)
	return lazy(name, f), err
}

func (fs pageCacheFS) ReuseForWrite(old, name string) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name)
	return lazy(name, f), err
}

func lazy(name string, f vfs.File) vfs.File {
	if f == nil || !strings.HasSuffix(name, ".log") {
		return f
	}
	return lazyFile{f}
}

// lazyFile is a file that is written, but not synced.
type lazyFile struct{ vfs.File }

func (lazyFile) Sync() error                { return nil }
func (lazyFile) SyncData() error            { return nil }
func (lazyFile) SyncTo(int64) (bool, error) { return false, nil }
