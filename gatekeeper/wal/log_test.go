package wal

import (
	"context"
	"errors"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/disk"
	"github.com/cockroachdb/pebble/vfs"
	"pgregory.net/rapid"
)

// medium is something to open logs on, again and again.
type medium struct {
	name string
	open func(Options) (*Log, error)
}

// media returns a fresh medium of each sort.
func media(t testing.TB) []medium {
	dir := filepath.Join(t.TempDir(), "log")
	disk := new(Disk)
	return []medium{
		{"pebble", func(o Options) (*Log, error) { return Open(dir, o) }},
		{"memory", func(o Options) (*Log, error) { return OpenMemory(disk, o) }},
	}
}

func onEach(t *testing.T, test func(t *testing.T, m medium)) {
	for _, m := range media(t) {
		t.Run(m.name, func(t *testing.T) { test(t, m) })
	}
}

func mustOpen(t testing.TB, m medium, o Options) *Log {
	t.Helper()
	l, err := m.open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustAppend(t testing.TB, l *Log, b *Batch) {
	t.Helper()
	if err := l.Append(context.Background(), b); err != nil {
		t.Fatal(err)
	}
}

func one(r Record) *Batch {
	var b Batch
	b.Put(r)
	return &b
}

func readAll(t testing.TB, l *Log) (all []Record) {
	t.Helper()
	for r, err := range l.Records() {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, r)
	}
	return all
}

// A log is what a slice of records is, whatever is put, deleted and opened
// again.
func TestModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		fs, memory := vfs.NewMem(), new(Disk)
		checkModel(rt, medium{"pebble", func(o Options) (*Log, error) {
			s, err := openPebble("log", disk.Options{FS: fs})
			if err != nil {
				return nil, err
			}
			return open(s, o)
		}})
		checkModel(rt, medium{"memory", func(o Options) (*Log, error) { return OpenMemory(memory, o) }})
	})
}

func checkModel(t *rapid.T, m medium) {
	l, err := m.open(Options{})
	if err != nil {
		t.Fatal(err)
	}
	var model []Record
	for range rapid.IntRange(1, 15).Draw(t, "steps") {
		var b Batch
		for range rapid.IntRange(0, 4).Draw(t, "changes") {
			r := drawRecord(t)
			r.ID = ID{15: r.ID[15] % 4}
			r.Kind = KindMain + 3*Kind(rapid.IntRange(0, 1).Draw(t, "kind")) // main or node
			model = slices.DeleteFunc(model, func(o Record) bool { return o.Key() == r.Key() })
			if rapid.Bool().Draw(t, "delete") {
				b.Delete(r.Kind, r.ID)
			} else {
				b.Put(r)
				model = append(model, r)
			}
		}
		if err := l.Append(context.Background(), &b); err != nil {
			t.Fatal(err)
		}
		if rapid.IntRange(0, 5).Draw(t, "reopen") == 0 {
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if l, err = m.open(Options{}); err != nil {
				t.Fatal(err)
			}
		}
		compare(t, l, model)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

func compare(t *rapid.T, l *Log, model []Record) {
	var bytes uint64
	k := 0
	last := uint64(0)
	for r, err := range l.Records() {
		if err != nil {
			t.Fatal(err)
		}
		if r.Sequence <= last || k >= len(model) {
			t.Fatalf("%d. record has sequence %d after %d, want %d records", k+1, r.Sequence, last, len(model))
		}
		last = r.Sequence
		want := model[k]
		want.Sequence = r.Sequence
		if !reflect.DeepEqual(r, want) {
			t.Fatalf("%d. record is %+v, want %+v", k+1, r, want)
		}
		got, found, err := l.Get(r.Kind, r.ID)
		if err != nil || !found || !reflect.DeepEqual(got, r) {
			t.Fatalf("Get: %+v, %t, %v, want %+v", got, found, err, r)
		}
		bytes += uint64(r.size())
		k++
	}
	if s := l.Stats(); k != len(model) || s.Records != k || s.Bytes != bytes {
		t.Fatalf("%d records, stats %+v, want %d of %d bytes", k, s, len(model), bytes)
	}
	if _, found, err := l.Get(KindRack, ID{}); found || err != nil {
		t.Fatalf("found what is not there: %v", err)
	}
}

// Callbacks come once each, in the order of Submit, and what they confirm is
// there; many batches share a commit.
func TestGroupCommit(t *testing.T) {
	onEach(t, func(t *testing.T, m medium) {
		l := mustOpen(t, m, Options{})
		const writers, each = 32, 50
		var mu sync.Mutex
		order := map[int][]int{}
		var wg sync.WaitGroup
		for w := range writers {
			wg.Go(func() {
				var pending sync.WaitGroup
				for k := range each {
					pending.Add(1)
					err := l.Submit(one(Record{Kind: KindNode, ID: ID{byte(w), byte(k)}, Data: []byte("call")}), func(err error) {
						defer pending.Done()
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							t.Error(err)
						}
						order[w] = append(order[w], k)
					})
					if err != nil {
						t.Error(err)
						pending.Done()
					}
				}
				pending.Wait()
			})
		}
		wg.Wait()
		for w, got := range order {
			if !slices.IsSorted(got) || len(got) != each {
				t.Errorf("writer %d was called back for %v", w, got)
			}
		}
		s := l.Stats()
		if s.Batches != writers*each || s.Records != writers*each || s.Queued != 0 {
			t.Errorf("stats %+v", s)
		}
		if s.Commits >= s.Batches {
			t.Errorf("%d commits for %d batches: nothing was shared", s.Commits, s.Batches)
		}
	})
}

// Full: what would exceed the limit is refused and leaves no trace; what makes
// room is taken.
func TestFull(t *testing.T) {
	onEach(t, func(t *testing.T, m medium) {
		l := mustOpen(t, m, Options{Limit: 1000})
		big := func(id byte, size int) Record {
			return Record{Kind: KindNode, ID: ID{id}, Data: make([]byte, size)}
		}
		mustAppend(t, l, one(big(1, 500)))
		before := l.Stats()
		if err := l.Submit(one(big(2, 500)), nil); !errors.Is(err, ErrFull) {
			t.Fatalf("exceeds the limit: %v", err)
		}
		if l.Stats() != before {
			t.Errorf("the refused batch left %+v, was %+v", l.Stats(), before)
		}
		mustAppend(t, l, one(big(1, 900))) // takes the place of the first
		var swap Batch
		swap.Put(big(2, 900))
		swap.Delete(KindNode, ID{1})
		mustAppend(t, l, &swap)
		var empty Batch
		empty.Delete(KindNode, ID{2})
		mustAppend(t, l, &empty)
		if s := l.Stats(); s.Bytes != 0 || s.Records != 0 {
			t.Errorf("at the end %+v", s)
		}
		huge := Batch{size: MaxBatch + 1}
		if err := l.Submit(&huge, nil); !errors.Is(err, ErrTooLarge) {
			t.Errorf("too large: %v", err)
		}
	})
}

// The limit counts what is there already when a log is opened.
func TestFullAfterReopen(t *testing.T) {
	onEach(t, func(t *testing.T, m medium) {
		l := mustOpen(t, m, Options{})
		mustAppend(t, l, one(Record{Kind: KindNode, Data: make([]byte, 500)}))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		l = mustOpen(t, m, Options{Limit: 600})
		if err := l.Submit(one(Record{Kind: KindExport, Data: make([]byte, 100)}), nil); !errors.Is(err, ErrFull) {
			t.Errorf("got %v", err)
		}
	})
}

func TestLockedAndClosed(t *testing.T) {
	onEach(t, func(t *testing.T, m medium) {
		l := mustOpen(t, m, Options{})
		if _, err := m.open(Options{}); !errors.Is(err, ErrLocked) {
			t.Errorf("opened twice: %v", err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := l.Close(); !errors.Is(err, ErrClosed) {
			t.Errorf("closed twice: %v", err)
		}
		if err := l.Submit(one(Record{Kind: KindNode}), nil); !errors.Is(err, ErrClosed) {
			t.Errorf("Submit: %v", err)
		}
		if _, _, err := l.Get(KindNode, ID{}); !errors.Is(err, ErrClosed) {
			t.Errorf("Get: %v", err)
		}
		for _, err := range l.Records() {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("Records: %v", err)
			}
		}
		mustOpen(t, m, Options{})
	})
}
