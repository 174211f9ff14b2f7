package gatekeeper

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
)

// logOf39691cf unpacks and opens a log that commit 39691cf wrote, of the first edition: a
// rack of five blades with the app kv, after two calls, whose Gatekeeper was killed.
func logOf39691cf(t *testing.T) *wal.Log {
	t.Helper()
	f, err := os.Open("testdata/log-39691cf.tar.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir, files := t.TempDir(), tar.NewReader(z)
	for {
		h, err := files.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		b, err := io.ReadAll(files)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(h.Name)), b, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := wal.Open(dir, wal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// TestRestore_FirstEdition: a log of the first edition is refused as what it is, not as
// corrupt, with what an operator can do; also when it has no calls. The Gatekeeper took it
// for the log of a rack without exports before. So is a log of a later format. Nothing is written to either.
func TestRestore_FirstEdition(t *testing.T) {
	l := logOf39691cf(t)
	refused := func(what, remedy string) {
		t.Helper()
		before := l.Stats().Records
		err := newController(Config{Store: l, Logger: slog.New(slog.DiscardHandler)}).restore(l)
		if !errors.Is(err, wal.ErrVersion) || errors.Is(err, wal.ErrCorrupt) || !strings.Contains(err.Error(), remedy) {
			t.Errorf("%s: %v", what, err)
		}
		if after := l.Stats().Records; after != before {
			t.Errorf("%s: %d records, then %d", what, before, after)
		}
	}
	refused("with calls", "begins a new rack")
	var calls, later wal.Batch
	for r, err := range l.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if r.Kind == wal.KindCall || r.Kind == wal.KindReply {
			calls.Delete(r.Kind, r.ID)
		}
	}
	if calls.Len() == 0 {
		t.Error("the log has no calls")
	}
	if err := l.Append(context.Background(), &calls); err != nil {
		t.Fatal(err)
	}
	refused("without calls", "begins a new rack")
	later.Put(wal.Record{Kind: wal.KindRack, Data: []byte(`{"format":3,"run":1}`)})
	if err := l.Append(context.Background(), &later); err != nil {
		t.Fatal(err)
	}
	refused("of a later edition", "format 3")
}
