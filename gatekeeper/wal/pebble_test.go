package wal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/bifrost-rack/bifrost/internal/disk/disktest"
	"github.com/cockroachdb/pebble"
)

// A disk that does not take a write fails the log, not the process.
func TestDiskFull(t *testing.T) {
	fs := disktest.New()
	s, err := openPebble("log", disk.Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	l, err := open(s, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mustAppend(t, l, one(Record{Kind: KindNode, Data: []byte("logged")}))
	fs.Full.Store(true)
	err = l.Append(context.Background(), one(Record{Kind: KindExport}))
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), disktest.ErrFull.Error()) {
		t.Fatalf("Append: %v", err)
	}
	if err := l.Submit(one(Record{Kind: KindExport}), nil); !errors.Is(err, ErrFailed) {
		t.Errorf("Submit: %v", err)
	}
	if err := l.Close(); err == nil || !strings.Contains(err.Error(), disktest.ErrFull.Error()) {
		t.Errorf("Close: %v", err)
	}
}

// quiet is a Pebble logger that says nothing.
type quiet struct{}

func (quiet) Infof(string, ...any)              {}
func (quiet) Fatalf(format string, args ...any) { panic(fmt.Sprintf(format, args...)) }

// versionKey is where a store has its version.
var versionKey = []byte("m/version")

// raw changes a closed log's database behind its back.
func raw(t *testing.T, dir string, change func(db *pebble.DB) error) {
	t.Helper()
	db, err := pebble.Open(dir, &pebble.Options{FormatMajorVersion: pebble.FormatNewest, Logger: quiet{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(change(db), db.Close()); err != nil {
		t.Fatal(err)
	}
}

// closedLog is the directory of a log with a few records.
func closedLog(t *testing.T) string {
	dir := filepath.Join(t.TempDir(), "log")
	l, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for id := range byte(3) {
		mustAppend(t, l, one(Record{Kind: KindNode, ID: ID{id}, Data: make([]byte, 1000)}))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

// What is not what was written is refused, and said to be so.
func TestRefused(t *testing.T) {
	set := func(key []byte, value []byte) func(*pebble.DB) error {
		return func(db *pebble.DB) error { return db.Set(key, value, pebble.Sync) }
	}
	newer := binary.BigEndian.AppendUint64(nil, storeVersion+1)
	moved := Record{Kind: KindNode, ID: ID{9}, Sequence: 8}
	twin := Record{Kind: KindNode, ID: ID{1}, Sequence: 7}
	for name, c := range map[string]struct {
		change func(*pebble.DB) error
		want   error
	}{
		"newer store":       {set(versionKey, newer), ErrVersion},
		"version cut":       {set(versionKey, []byte{1}), ErrCorrupt},
		"no version":        {func(db *pebble.DB) error { return db.Delete(versionKey, pebble.Sync) }, ErrCorrupt},
		"record cut":        {set(recordKey(2), []byte("rubbish")), ErrCorrupt},
		"record elsewhere":  {set(recordKey(7), moved.append(nil)), ErrCorrupt},
		"two for one key":   {set(recordKey(7), twin.append(nil)), ErrCorrupt},
		"key of wrong size": {set([]byte("r/x"), nil), ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			dir := closedLog(t)
			raw(t, dir, c.change)
			if l, err := Open(dir, Options{}); !errors.Is(err, c.want) {
				if err == nil {
					_ = l.Close()
				}
				t.Errorf("got %v, want %v", err, c.want)
			}
		})
	}
}

// A bit that flips on disk does not go unnoticed. (Close leaves the records in
// the write-ahead log, where the end of what is whole is the end of the log; so
// they are moved into a table first.)
func TestBitRot(t *testing.T) {
	dir := closedLog(t)
	raw(t, dir, func(db *pebble.DB) error { return db.Flush() })
	tables, err := filepath.Glob(filepath.Join(dir, "*.sst"))
	if err != nil || len(tables) == 0 {
		t.Fatalf("no tables: %v", err)
	}
	for _, name := range tables {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b[500] ^= 1
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if l, err := Open(dir, Options{}); !errors.Is(err, ErrCorrupt) {
		if err == nil {
			_ = l.Close()
		}
		t.Errorf("got %v", err)
	}
}

// A database of a later Pebble is told from a broken one.
func TestNewerPebble(t *testing.T) {
	dir := closedLog(t)
	markers, err := filepath.Glob(filepath.Join(dir, "marker.format-version.*"))
	if err != nil || len(markers) != 1 {
		t.Fatalf("markers %v, %v", markers, err)
	}
	name := markers[0]
	if err := os.Rename(name, name[:strings.LastIndex(name, ".")]+".999"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir, Options{}); !errors.Is(err, ErrVersion) {
		t.Errorf("got %v", err)
	}
}

// A directory that cannot be is an ordinary error.
func TestNoDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(file, "log"), Options{})
	if err == nil || errors.Is(err, ErrLocked) || errors.Is(err, ErrCorrupt) {
		t.Errorf("got %v", err)
	}
}
