package gatekeeper

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// boxed is an outbox on a log in memory, and the hops of the packets that left.
type boxed struct {
	*outbox
	t    *testing.T
	disk *wal.Disk
	left []hop
	said chan error // by the log
}

func inBox(t *testing.T, o wal.Options, f func(b *boxed)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		b := &boxed{t: t, disk: new(wal.Disk), said: make(chan error, 16)}
		store, err := wal.OpenMemory(b.disk, o)
		if err != nil {
			t.Fatal(err)
		}
		b.outbox = newOutbox(store, func(p packetOut) { b.left = append(b.left, p.hop) }, func(err error) { b.said <- err })
		f(b)
		_ = store.Close()
	})
}

// give puts so many bytes to be logged, 0 for none, and a packet.
func (b *boxed) give(size int, id byte, h hop) {
	b.t.Helper()
	var batch wal.Batch
	if size > 0 {
		batch.Put(wal.Record{Kind: wal.KindMain, ID: wal.ID{id}, Data: make([]byte, size)})
	}
	if err := b.put(time.Now(), &batch, []packetOut{{hop: h}}); err != nil {
		b.t.Fatal(err)
	}
}

func (b *boxed) expect(when string, left ...hop) {
	b.t.Helper()
	if !slices.Equal(b.left, left) {
		b.t.Errorf("%s: %v have left, want %v", when, b.left, left)
	}
}

func (b *boxed) confirmAll() {
	b.t.Helper()
	for {
		synctest.Wait()
		select {
		case err := <-b.said:
			if _, err := b.confirmed(err); err != nil {
				b.t.Fatal(err)
			}
		default:
			return
		}
	}
}

// When the log fails, what it has not confirmed never leaves.
func TestOutbox_Failure(t *testing.T) {
	inBox(t, wal.Options{}, func(b *boxed) {
		b.give(10, 1, 1)
		b.confirmAll()
		b.disk.Crash()
		b.give(10, 2, 2)
		if _, err := b.confirmed(<-b.said); !errors.Is(err, wal.ErrFailed) {
			t.Errorf("got %v", err)
		}
		b.expect("failed", 1)
	})
}

// A packet leaves when all that was put before it is logged, and in its order.
func TestOutbox_Order(t *testing.T) {
	inBox(t, wal.Options{}, func(b *boxed) {
		b.give(0, 0, 1)
		b.expect("nothing to log", 1)
		b.give(10, 1, 2)
		b.give(0, 0, 3)
		b.give(10, 2, 4)
		b.expect("not confirmed", 1)
		b.confirmAll()
		b.expect("confirmed", 1, 2, 3, 4)
		b.give(0, 0, 5)
		b.expect("nothing waits", 1, 2, 3, 4, 5)
	})
}

// A log that fills up says so. When it is full, what is there waits until something is deleted.
func TestOutbox_Full(t *testing.T) {
	inBox(t, wal.Options{Limit: 1000}, func(b *boxed) {
		full := func(when string, want bool) {
			t.Helper()
			if p := b.pressure(); p.nearlyFull() != want {
				t.Errorf("%s: nearly full: %v", when, !want)
			}
		}
		full("empty", false)
		b.give(560, 1, 1)
		b.confirmAll()
		full("one record", true)
		b.give(250, 2, 2)
		b.confirmAll()
		full("two records", true)
		b.give(180, 3, 3)
		b.give(0, 0, 4)
		b.confirmAll()
		b.expect("full", 1, 2)
		full("full", true)
		var batch wal.Batch
		batch.Delete(wal.KindMain, wal.ID{1})
		if err := b.put(time.Now(), &batch, nil); err != nil {
			t.Fatal(err)
		}
		b.confirmAll()
		b.expect("with room", 1, 2, 3, 4)
		full("with room", true)
	})
}
