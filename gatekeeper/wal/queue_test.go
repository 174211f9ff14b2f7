package wal

import (
	"context"
	"errors"
	"fmt"
	"testing"
)

// blockedStore commits when it is told to.
type blockedStore struct {
	store
	begun chan struct{}
	may   chan error
}

func (s *blockedStore) commit(c change) error {
	s.begun <- struct{}{}
	if err := <-s.may; err != nil {
		return err
	}
	return s.store.commit(c)
}

func openBlocked(t *testing.T, o Options) (*Log, *blockedStore) {
	inner, err := new(Disk).opened(false)
	if err != nil {
		t.Fatal(err)
	}
	s := &blockedStore{inner, make(chan struct{}), make(chan error, 1)}
	l, err := open(s, o)
	if err != nil {
		t.Fatal(err)
	}
	return l, s
}

// Back-pressure: Submit refuses what the queue cannot hold, Append waits for
// room, and gives up with its context.
func TestBusy(t *testing.T) {
	l, s := openBlocked(t, Options{QueueBatches: 2, QueueBytes: 400})
	r := func(id byte, size int) *Batch {
		return one(Record{Kind: KindNode, ID: ID{id}, Data: make([]byte, size)})
	}
	var logged []error
	note := func(err error) { logged = append(logged, err) }
	for id := range byte(3) { // the first is being committed, two wait
		if err := l.Submit(r(id, 10), note); err != nil {
			t.Fatal(err)
		}
		if id == 0 {
			<-s.begun
		}
	}
	if err := l.Submit(r(9, 10), note); !errors.Is(err, ErrBusy) {
		t.Fatalf("a fourth batch: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := l.Append(ctx, r(9, 10)); !errors.Is(err, context.Canceled) {
		t.Fatalf("Append: %v", err)
	}
	appended := make(chan error)
	go func() { appended <- l.Append(context.Background(), r(3, 10)) }()
	s.may <- nil // the first is logged; the others are taken together
	<-s.begun
	s.may <- nil
	for done := false; !done; {
		select {
		case <-s.begun: // Append's batch, now or with the others
			s.may <- nil
		case err := <-appended:
			if err != nil {
				t.Error(err)
			}
			done = true
		}
	}
	go func() {
		for range s.begun {
			s.may <- nil
		}
	}()
	defer close(s.begun)
	if err := l.Submit(r(5, 5000), note); err != nil { // larger than the queue, but it is empty
		t.Error(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if fmt.Sprint(logged) != fmt.Sprint([]error{nil, nil, nil, nil}) {
		t.Errorf("callbacks: %v", logged)
	}
}

// A write that fails is final: everybody is told, nothing is taken any more.
func TestFailed(t *testing.T) {
	l, s := openBlocked(t, Options{})
	broken := errors.New("no space left")
	results := make(chan error, 3)
	submit := func(id byte) error {
		return l.Submit(one(Record{Kind: KindNode, ID: ID{id}}), func(err error) { results <- err })
	}
	if err := submit(1); err != nil {
		t.Fatal(err)
	}
	<-s.begun
	if err := errors.Join(submit(2), submit(3)); err != nil {
		t.Fatal(err)
	}
	s.may <- broken
	for range 3 {
		if err := <-results; !errors.Is(err, ErrFailed) || !errors.Is(err, broken) {
			t.Errorf("callback: %v", err)
		}
	}
	if err := submit(4); !errors.Is(err, ErrFailed) {
		t.Errorf("Submit: %v", err)
	}
	if _, _, err := l.Get(KindNode, ID{1}); !errors.Is(err, ErrFailed) {
		t.Errorf("Get: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// Get finds what waits to be logged; Records does not.
func TestPending(t *testing.T) {
	l, s := openBlocked(t, Options{})
	if err := l.Submit(one(Record{Kind: KindNode, ID: ID{1}, Data: []byte("p")}), nil); err != nil {
		t.Fatal(err)
	}
	<-s.begun
	r, found, err := l.Get(KindNode, ID{1})
	if err != nil || !found || string(r.Data) != "p" || r.Sequence != 1 {
		t.Errorf("Get: %+v, %t, %v", r, found, err)
	}
	if all := readAll(t, l); len(all) != 0 {
		t.Errorf("Records: %+v", all)
	}
	s.may <- nil
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// What is put and deleted before it is logged is never written.
func TestNeverWritten(t *testing.T) {
	l, s := openBlocked(t, Options{})
	if err := l.Submit(one(Record{Kind: KindNode, ID: ID{1}}), nil); err != nil {
		t.Fatal(err)
	}
	<-s.begun
	var del Batch
	del.Delete(KindNode, ID{2})
	if err := errors.Join(l.Submit(one(Record{Kind: KindNode, ID: ID{2}}), nil), l.Submit(&del, nil)); err != nil {
		t.Fatal(err)
	}
	s.may <- nil
	if err := l.Close(); err != nil { // there is no second commit to wait for
		t.Fatal(err)
	}
	if s := l.Stats(); s.Batches != 3 || s.Records != 1 {
		t.Errorf("stats %+v", s)
	}
}
