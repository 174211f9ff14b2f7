package log

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

// storeVersion is the version of how records lie in the store.
const storeVersion = 1

// Keys of the store: one that tells its version, and a record's for each
// sequence number.
var (
	versionKey  = []byte("m/version")
	commitKey   = []byte("m/commit") // the last one's number
	firstRecord = []byte("r/")
	afterRecord = []byte("r0")
)

func recordKey(sequence uint64) []byte {
	return binary.BigEndian.AppendUint64(slices.Clone(firstRecord), sequence)
}

// Sizes of Pebble. Most records are deleted before a memtable is full, so they
// never reach a table on disk.
const (
	memTableSize  = 32 << 20
	maxMemTables  = 4
	pebbleCache   = 8 << 20
	manifestLimit = 4 << 20
)

// pebbleStore is a store on disk.
type pebbleStore struct {
	db      *pebble.DB
	lock    *pebble.Lock
	tail    *tail
	fs      vfs.FS // as it is, without laziness
	dir     string
	commits uint64 // number of the last commit
}

// openPebble opens a store, or makes one.
func openPebble(directory string, sync bool) (*pebbleStore, error) {
	return openPebbleOn(vfs.Default, directory, environment{sync: sync, boot: thisBoot()})
}

func openPebbleOn(fs vfs.FS, directory string, env environment) (*pebbleStore, error) {
	if err := fs.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	lock, err := pebble.LockDirectory(directory, fs)
	switch {
	case errors.Is(err, syscall.EAGAIN), err != nil && strings.Contains(err.Error(), "held by current process"):
		return nil, fmt.Errorf("%w: %w", ErrLocked, err)
	case err != nil:
		return nil, err
	}
	s, err := openDB(directory, fs, lock, env)
	if err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return s, nil
}

// openDB opens the database in a locked directory. What makes Pebble panic, such as a
// write that fails, is an error.
func openDB(directory string, fs vfs.FS, lock *pebble.Lock, env environment) (s *pebbleStore, err error) {
	var db *pebble.DB
	defer func() {
		if r := recover(); r != nil {
			s, err = nil, fmt.Errorf("pebble: %v", r)
			if db != nil {
				_ = db.Close() // the first error tells more
			}
		}
	}()
	cache := pebble.NewCache(pebbleCache)
	defer cache.Unref()
	lazily := fs
	if !env.sync {
		lazily = pageCacheFS{fs}
	}
	db, err = pebble.Open(directory, &pebble.Options{
		FS: lazily, Lock: lock, Cache: cache, Logger: quiet{}, FormatMajorVersion: pebble.FormatNewest,
		MemTableSize: memTableSize, MemTableStopWritesThreshold: maxMemTables, MaxManifestFileSize: manifestLimit,
		Levels: []pebble.LevelOptions{{Compression: pebble.NoCompression}},
	})
	if err != nil {
		return nil, explain(err)
	}
	s = &pebbleStore{db: db, lock: lock, fs: fs, dir: directory}
	err = s.checkVersion()
	if err == nil {
		err = s.checkTail(env)
	}
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return s, nil
}

// checkTail refuses a store that ends before what was acknowledged.
func (s *pebbleStore) checkTail(env environment) error {
	switch v, err := s.read(commitKey); {
	case errors.Is(err, pebble.ErrNotFound): // there was no commit, or a former version made it
	case err != nil:
		return explain(err)
	case len(v) != 8:
		return corruptf("the last commit's number has %d bytes", len(v))
	default:
		s.commits = binary.BigEndian.Uint64(v)
	}
	var err error
	s.tail, err = openTail(s.fs, s.dir, s.commits, env)
	return err
}

// checkVersion reads the store's version, or writes it into an empty one.
func (s *pebbleStore) checkVersion() error {
	v, err := s.read(versionKey)
	switch {
	case errors.Is(err, pebble.ErrNotFound):
		for _, err := range s.scan() {
			return cmp.Or(err, corruptf("there are records, but no version"))
		}
		return s.db.Set(versionKey, binary.BigEndian.AppendUint64(nil, storeVersion), pebble.Sync)
	case err != nil:
		return explain(err)
	case len(v) != 8:
		return corruptf("the version has %d bytes", len(v))
	}
	if found := binary.BigEndian.Uint64(v); found != storeVersion {
		return versionError("the store", found, storeVersion)
	}
	return nil
}

// commit implements store. Pebble has no error for a write that fails: it calls
// quiet.Fatalf, or panics itself.
func (s *pebbleStore) commit(c change) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("pebble: %v", r)
		}
	}()
	b := s.db.NewBatch()
	defer func() {
		if err == nil {
			err = b.Close()
		}
	}()
	for _, p := range c.puts {
		if err := b.Set(recordKey(p.sequence), p.data, nil); err != nil {
			return err
		}
	}
	for _, sequence := range c.deletes {
		// Each was put exactly once, so both can go when they meet.
		if err := b.SingleDelete(recordKey(sequence), nil); err != nil {
			return err
		}
	}
	s.commits++
	if err := b.Set(commitKey, binary.BigEndian.AppendUint64(nil, s.commits), nil); err != nil {
		return err
	}
	if err := b.Commit(pebble.Sync); err != nil {
		return err
	}
	return s.tail.note(s.commits)
}

func (s *pebbleStore) get(sequence uint64) ([]byte, error) {
	b, err := s.read(recordKey(sequence))
	return b, explain(err)
}

func (s *pebbleStore) read(key []byte) ([]byte, error) {
	v, closer, err := s.db.Get(key)
	if err != nil {
		return nil, err
	}
	b := slices.Clone(v)
	return b, closer.Close()
}

func (s *pebbleStore) scan() iter.Seq2[put, error] {
	return func(yield func(put, error) bool) {
		it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: firstRecord, UpperBound: afterRecord})
		if err != nil {
			yield(put{}, explain(err))
			return
		}
		defer func() { _ = it.Close() }() // its error is it.Error
		for it.First(); it.Valid(); it.Next() {
			v, err := it.ValueAndErr()
			if err == nil && len(it.Key()) != len(firstRecord)+8 {
				err = corruptf("a record's key is %q", it.Key())
			}
			if err != nil {
				yield(put{}, explain(err))
				return
			}
			if !yield(put{binary.BigEndian.Uint64(it.Key()[len(firstRecord):]), v}, nil) {
				return
			}
		}
		if err := it.Error(); err != nil {
			yield(put{}, explain(err))
		}
	}
}

func (s *pebbleStore) footprint() uint64 { return s.db.Metrics().DiskSpaceUsage() }

// close also has the disk take what was logged, and notes that.
func (s *pebbleStore) close() error {
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
func (s *pebbleStore) flush() error {
	names, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		f, err := s.fs.OpenReadWrite(s.fs.PathJoin(s.dir, name))
		if err != nil {
			return err
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// explain makes Pebble's errors recognisable.
func explain(err error) error {
	switch {
	case err == nil:
		return nil
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	case strings.Contains(err.Error(), "written in format major version"):
		return fmt.Errorf("%w: %w", ErrVersion, err)
	}
	return err
}

// quiet is Pebble's logger: nobody has to read what it does, and what it cannot
// go on from ends the commit, or in the background the process.
type quiet struct{}

func (quiet) Infof(string, ...any) {}

func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

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
