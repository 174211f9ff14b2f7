package disk

import (
	"errors"
	"testing"
)

// TestMemory: what a store in memory has committed is there when its process has crashed, and nothing else. A batch changes what one of
// Pebble would.
func TestMemory(t *testing.T) {
	m := new(Memory)
	open := func() *MemoryStore {
		t.Helper()
		s, err := OpenMemory(m)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	if _, err := OpenMemory(m); !errors.Is(err, ErrLocked) {
		t.Errorf("opened twice: %v", err)
	}
	err := s.Commit(func(b *Batch) {
		for _, k := range []string{"a", "b1", "b2", "c", "d"} {
			b.Put([]byte(k), []byte("value of "+k))
		}
		b.DeleteRange([]byte("b"), []byte("c"))
		b.Delete([]byte("d"))
	})
	if err != nil {
		t.Fatal(err)
	}
	m.Crash()
	if err := s.Commit(func(b *Batch) { b.Delete([]byte("a")) }); err == nil {
		t.Error("a process that has crashed commits")
	}
	s = open()
	var keys string
	for e, err := range s.Scan(nil, nil) {
		if err != nil {
			t.Fatal(err)
		}
		keys += string(e.Key)
	}
	if v, err := s.Get([]byte("c")); keys != "ac" || string(v) != "value of c" || err != nil {
		t.Errorf("keys %q, %q, %v", keys, v, err)
	}
	if _, err := s.Get([]byte("d")); !errors.Is(err, ErrNotFound) {
		t.Errorf("a key that was deleted: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	open()
}
