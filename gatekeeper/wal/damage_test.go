package wal

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/disk/disktest"
	"github.com/cockroachdb/pebble/vfs"
)

// crashedLog returns the directory of a log whose Gatekeeper was killed when so many
// records had been logged.
func crashedLog(t testing.TB, records int, o Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "log")
	l, err := Open(dir, o)
	if err != nil {
		t.Fatal(err)
	}
	for k := range records {
		mustAppend(t, l, one(Record{Kind: KindNode, ID: ID{1, byte(k >> 8), byte(k)}, Data: make([]byte, 100+k)}))
	}
	crashed := copyOf(t, dir)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return crashed
}

// copyOf copies a log's files.
func copyOf(t testing.TB, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// files are the names of a log's files that have content, without the lock.
func files(t testing.TB, dir, pattern string) (names []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		if info, err := os.Stat(name); err == nil && info.Size() > 0 && !strings.HasSuffix(name, "LOCK") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// flip flips a bit of a file.
func flip(t testing.TB, name string, bit int64) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	b[bit/8] ^= 1 << (bit % 8)
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// wholeOrRefused opens a damaged log: it either has all that was logged, or is refused
// with an error that says so.
func wholeOrRefused(t testing.TB, what, dir string, records int) (refused bool) {
	t.Helper()
	l, err := Open(dir, Options{})
	switch {
	case errors.Is(err, ErrCorrupt), errors.Is(err, ErrVersion):
		if !strings.Contains(err.Error(), "or move the directory away, which begins a new rack") {
			t.Errorf("%s: refused without a remedy: %v", what, err)
		}
		return true
	case err != nil:
		t.Errorf("%s: refused without a reason: %v", what, err)
		return true
	}
	if n := l.Stats().Records; n != records {
		t.Errorf("%s: %d of %d records are left, and no error", what, n, records)
	}
	if err := l.Close(); err != nil {
		t.Errorf("%s: %v", what, err)
	}
	return false
}

// A bit that has flipped anywhere in the log's files, or a file that was cut, never takes
// acknowledged records with it unnoticed.
func TestDamage(t *testing.T) {
	for mode, o := range map[string]Options{"page cache": {}, "sync": {Sync: true}} {
		t.Run(mode, func(t *testing.T) {
			const records = 120
			dir := crashedLog(t, records, o)
			if wholeOrRefused(t, "not damaged", copyOf(t, dir), records) {
				t.Fatal("a log that is whole is refused")
			}
			rng, refused := rand.New(rand.NewPCG(1, 7)), 0
			cases := 40
			for n := range cases {
				at := copyOf(t, dir)
				names := files(t, at, "*.log")
				if n%4 == 3 {
					names = files(t, at, "*")
				}
				name := names[rng.IntN(len(names))]
				info, err := os.Stat(name)
				if err != nil {
					t.Fatal(err)
				}
				what := fmt.Sprintf("%s of %d bytes", filepath.Base(name), info.Size())
				if n%4 == 2 {
					size := rng.Int64N(info.Size())
					what = fmt.Sprintf("%s cut to %d", what, size)
					if err := os.Truncate(name, size); err != nil {
						t.Fatal(err)
					}
				} else {
					bit := rng.Int64N(8 * info.Size())
					what = fmt.Sprintf("bit %d of %s", bit, what)
					flip(t, name, bit)
				}
				if wholeOrRefused(t, what, at, records) {
					refused++
				}
			}
			if refused < cases/2 {
				t.Errorf("%d of %d damaged logs were refused: is anything damaged?", refused, cases)
			}
		})
	}
}

// A log that lacks a file, or has only one of them, is whole or refused, with the reason and a
// remedy that helps.
func TestMissingFile(t *testing.T) {
	const records = 20
	dir := crashedLog(t, records, Options{})
	all, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil || len(all) < 6 {
		t.Fatalf("files %q, %v", all, err)
	}
	refused := map[string]bool{}
	for _, name := range all {
		name := filepath.Base(name)
		kind, _, _ := strings.Cut(strings.TrimSuffix(name, ".log"), "-")
		at := copyOf(t, dir)
		if err := os.Remove(filepath.Join(at, name)); err != nil {
			t.Fatal(err)
		}
		refused[kind] = wholeOrRefused(t, "without "+name, at, records)
		at = copyOf(t, dir)
		for _, other := range all {
			if other := filepath.Base(other); other != name && other != disk.TailName {
				if err := os.Remove(filepath.Join(at, other)); err != nil {
					t.Fatal(err)
				}
			}
		}
		wholeOrRefused(t, "nothing but "+name, at, records)
	}
	if !refused["MANIFEST"] || !refused["marker.manifest.000001.MANIFEST"] || refused["CURRENT"] {
		t.Errorf("refused without: %v", refused)
	}
}

// What keeps a log from being opened that is no damage says so, with a remedy.
func TestNotOpened_Remedy(t *testing.T) {
	dir := closedLog(t)
	l, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrLocked) || !strings.Contains(err.Error(), "end the process that has it open") {
		t.Errorf("opened twice: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for failure, want := range map[error]string{
		syscall.EACCES: "must belong to the user", syscall.ENOSPC: "make room", syscall.EIO: "or restore the directory from a copy",
	} {
		_, err := openPebble(dir, disk.Options{FS: brokenFS{vfs.Default, failure}})
		if !errors.Is(err, failure) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: %v", failure, err)
		}
	}
}

// brokenFS cannot open what is there.
type brokenFS struct {
	vfs.FS
	err error
}

func (fs brokenFS) Open(name string, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, &os.PathError{Op: "open", Path: name, Err: fs.err}
}

// A record whose writing was cut off was never acknowledged: the log begins without it.
func TestTornTail(t *testing.T) {
	dir := crashedLog(t, 20, Options{})
	wal := files(t, dir, "*.log")
	f, err := os.OpenFile(wal[len(wal)-1], os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte("\x12\x34\x56\x78\x00\x40\x05 the first bytes of a record")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if wholeOrRefused(t, "torn", dir, 20) {
		t.Error("refused")
	}
}

// A log that was shortened says how to go on with what is left.
func TestShortened_Remedy(t *testing.T) {
	dir := crashedLog(t, 20, Options{})
	wal := files(t, dir, "*.log")
	if err := os.Truncate(wal[len(wal)-1], 3000); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, Options{})
	if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), filepath.Join(dir, disk.TailName)) {
		t.Fatalf("the error names no remedy: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, disk.TailName)); err != nil {
		t.Fatal(err)
	}
	l, err := Open(dir, Options{})
	if err != nil {
		t.Fatalf("the remedy does not help: %v", err)
	}
	mustAppend(t, l, one(Record{Kind: KindExport}))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
}

// A loss of power may take the last records of a log that is not synced, and leave the
// note of them. It may take none of one that is, nor of one that was closed before.
func TestPowerLoss_Tail(t *testing.T) {
	for _, c := range []struct {
		name         string
		sync, closed bool
		refused      bool
	}{{"page cache", false, false, false}, {"sync", true, false, true}, {"closed", false, true, true}} {
		t.Run(c.name, func(t *testing.T) {
			dir := crashedLog(t, 20, Options{Sync: c.sync})
			if c.closed {
				l, err := Open(dir, Options{})
				if err != nil {
					t.Fatal(err)
				}
				for k := range 20 {
					mustAppend(t, l, one(Record{Kind: KindExport, ID: ID{byte(k)}, Data: make([]byte, 1000)}))
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			wal := files(t, dir, "*.log")
			if err := os.Truncate(wal[len(wal)-1], 1500); err != nil {
				t.Fatal(err)
			}
			s, err := openPebble(dir, disk.Options{Sync: c.sync, Boot: "the next one"})
			if got := errors.Is(err, ErrCorrupt); got != c.refused || err != nil && !got {
				t.Errorf("refused: %v (%v), want %v", got, err, c.refused)
			}
			if err == nil {
				_ = s.close()
			}
		})
	}
}

// fullFS has room for so many more bytes.
type fullFS struct {
	vfs.FS
	room *atomic.Int64
}

func (fs fullFS) Create(name string) (vfs.File, error) {
	if fs.room.Load() <= 0 {
		return nil, disktest.ErrFull
	}
	f, err := fs.FS.Create(name)
	return fullFile{f, fs.room}, err
}

type fullFile struct {
	vfs.File
	room *atomic.Int64
}

func (f fullFile) Write(b []byte) (int, error) {
	if f.room.Add(-int64(len(b))) < 0 {
		return 0, disktest.ErrFull
	}
	return f.File.Write(b)
}

// A Gatekeeper that starts on a full disk gets an error, however much room there was. (In
// a process of its own, as it is: what Pebble leaves behind in a panic ends with that.)
func TestStartOnFullDisk(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+fullDisk)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// fullDisk is the childEnv that runs startOnFullDisk.
const fullDisk = "full disk"

func startOnFullDisk() (all error) {
	for _, existing := range []bool{false, true} {
		for _, room := range []int64{0, 1, 20, 100, 200, 400, 1000} {
			mem := vfs.NewMem()
			if existing {
				if err := logOne(mem); err != nil {
					return err
				}
			}
			left := new(atomic.Int64)
			left.Store(room)
			s, err := openPebble("log", disk.Options{FS: fullFS{mem, left}})
			if err == nil { // there was room to begin
				_ = s.close()
			} else if !strings.Contains(err.Error(), disktest.ErrFull.Error()) {
				all = errors.Join(all, fmt.Errorf("room %d, existing %v: %w", room, existing, err))
			}
		}
	}
	return all
}

// logOne makes a log with one record.
func logOne(fs vfs.FS) error {
	s, err := openPebble("log", disk.Options{FS: fs})
	if err != nil {
		return err
	}
	l, err := open(s, Options{})
	if err != nil {
		return err
	}
	return errors.Join(l.Append(context.Background(), one(Record{Kind: KindNode, Data: []byte("logged")})), l.Close())
}
