package wal

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

func ids(all []Record) (ids []byte) {
	for _, r := range all {
		ids = append(ids, r.ID[0])
	}
	return ids
}

// A crash takes what was not told is logged, and nothing else.
func TestCrash(t *testing.T) {
	var disk Disk
	m := medium{"memory", func(o Options) (*Log, error) { return OpenMemory(&disk, o) }}
	old := mustOpen(t, m, Options{})
	mustAppend(t, old, one(Record{Kind: KindNode, ID: ID{1}}))
	disk.Crash()
	if err := old.Append(context.Background(), one(Record{Kind: KindNode, ID: ID{2}})); !errors.Is(err, ErrFailed) {
		t.Errorf("Append after the crash: %v", err)
	}
	next := mustOpen(t, m, Options{})
	if got := ids(readAll(t, next)); !slices.Equal(got, []byte{1}) {
		t.Errorf("records %v", got)
	}
	if err := old.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := m.open(Options{}); !errors.Is(err, ErrLocked) {
		t.Errorf("the old log's end unlocked the disk: %v", err)
	}
}

// A loss of power takes the last commits, as wholes, unless they were synced.
func TestLosePower(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var disk Disk
		o := Options{Sync: rapid.Bool().Draw(t, "sync")}
		l, err := OpenMemory(&disk, o)
		if err != nil {
			t.Fatal(err)
		}
		history := [][]byte{nil} // which records are there after each commit
		flushed := 0
		for k := range byte(rapid.IntRange(0, 10).Draw(t, "commits")) {
			var b Batch
			b.Put(Record{Kind: KindNode, ID: ID{k}})
			now := append(slices.Clone(history[k]), k)
			if k > 0 && rapid.Bool().Draw(t, "delete") {
				b.Delete(KindNode, ID{k - 1})
				now = slices.DeleteFunc(now, func(id byte) bool { return id == k-1 })
			}
			if err := l.Append(context.Background(), &b); err != nil {
				t.Fatal(err)
			}
			history = append(history, now)
			if rapid.IntRange(0, 5).Draw(t, "flush") == 0 {
				disk.Flush()
				flushed = int(k) + 1
			}
		}
		last := len(history) - 1
		if o.Sync {
			flushed = last
		}
		keep := rapid.IntRange(0, 12).Draw(t, "keep")
		lost := disk.LosePower(keep)
		if want := max(0, last-flushed-keep); lost != want {
			t.Fatalf("lost %d commits, want %d", lost, want)
		}
		_ = l.Close()
		again, err := OpenMemory(&disk, o)
		if err != nil {
			t.Fatal(err)
		}
		defer again.Close()
		var got []byte
		for r, err := range again.Records() {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, r.ID[0])
		}
		if !slices.Equal(got, history[last-lost]) {
			t.Fatalf("records %v, want %v", got, history[last-lost])
		}
	})
}

// A disk flushes old commits by itself.
func TestUnsyncedIsBounded(t *testing.T) {
	var disk Disk
	l := mustOpen(t, medium{"memory", func(o Options) (*Log, error) { return OpenMemory(&disk, o) }}, Options{})
	for k := range maxUnsynced + 10 {
		mustAppend(t, l, one(Record{Kind: KindNode, ID: ID{byte(k), byte(k >> 8)}}))
	}
	if lost := disk.LosePower(0); lost != maxUnsynced {
		t.Errorf("lost %d", lost)
	}
}

// In a bubble of virtual time the log settles when all else does.
func TestInBubble(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var disk Disk
		l, err := OpenMemory(&disk, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var logged []byte
		for id := range byte(3) {
			if err := l.Submit(one(Record{Kind: KindNode, ID: ID{id}}), func(error) { logged = append(logged, id) }); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if !slices.Equal(logged, []byte{0, 1, 2}) {
			t.Errorf("logged %v", logged)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	})
}
