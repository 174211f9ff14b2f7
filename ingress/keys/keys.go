// Package keys is the table of idempotency keys of an ingress: which request has which key, and what it has come to. It is pure.
//
//	          Claim                    Settle
//	(unknown) ─────▶ runs ───────────────────────────▶ done
//	    ▲              │ its call has never begun        │
//	    └──────────────┴──────────── its time is over ◀──┘
//
// The table has the keys of so many requests at most, and so many bytes. What a call that runs may need for its outcome is part of that
// from the beginning, so an outcome always fits: one that is larger than what was kept for it is replaced by Limits.Instead if there is no
// more room.
package keys

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
)

// Limits bound a table.
type Limits struct {
	// Keys is how many keys there are at most, and Bytes how much all of them take.
	Keys, Bytes int
	// Lifetime is for how long a key is known, from when its request came.
	Lifetime time.Duration
	// Instead is what is kept in the place of an outcome that does not fit. It must be no larger than Reserve.
	Instead *durable.Outcome
}

const (
	// Reserve is how many bytes of an outcome fit in any case.
	Reserve = 1 << 10
	// entrySize is what an entry takes beside its key and its outcome, about.
	entrySize = 256
)

// Table has the keys. Its methods must not be called concurrently.
type Table struct {
	limits  Limits
	entries map[string]*list.Element // of *durable.Entry
	order   list.List                // by when their requests came, about
	bytes   int
	changed map[string]bool // since the last Delta or Snapshot
}

// New returns an empty table.
func New(l Limits) *Table {
	return &Table{limits: l, entries: map[string]*list.Element{}, changed: map[string]bool{}}
}

// Len is how many keys there are, and Bytes how much they take.
func (t *Table) Len() int { return len(t.entries) }

// Bytes is how many bytes all keys and outcomes take, of those that Limits allow.
func (t *Table) Bytes() int { return t.bytes }

// sizeOf is what an entry takes.
func sizeOf(e *durable.Entry) int {
	outcome := Reserve
	if e.Outcome != nil {
		outcome = len(e.Outcome.Body) + len(e.Outcome.MediaType)
	}
	return entrySize + len(e.Key) + outcome
}

// Look returns a key's entry, nil if it is not known at a time. The entry must not be changed, and does not change.
func (t *Table) Look(key []byte, now int64) *durable.Entry {
	at := t.entries[string(key)]
	if at == nil || t.over(at.Value.(*durable.Entry), now) {
		return nil
	}
	return at.Value.(*durable.Entry)
}

// over reports whether an entry's time is over.
func (t *Table) over(e *durable.Entry, now int64) bool {
	return now-e.Accepted >= t.limits.Lifetime.Milliseconds()
}

// Verdict is what an entry means for a request with its key.
func Verdict(e *durable.Entry, hash []byte) durable.Verdict {
	switch {
	case !bytes.Equal(e.Hash, hash):
		return durable.Verdict_OTHER
	case e.Outcome == nil:
		return durable.Verdict_RUNNING
	}
	return durable.Verdict_DONE
}

// Claim takes a request with a key: the entry is what is to be kept of it, without an outcome. The request is the key's
// if the answer says so (FRESH), and also when it asks again.
func (t *Table) Claim(e *durable.Entry) *durable.Answer {
	t.expire(e.Accepted)
	if was := t.Look(e.Key, e.Accepted); was != nil {
		if bytes.Equal(was.Nonce, e.Nonce) && was.Outcome == nil {
			return &durable.Answer{Verdict: durable.Verdict_FRESH}
		}
		v := Verdict(was, e.Hash)
		if v != durable.Verdict_DONE {
			return &durable.Answer{Verdict: v}
		}
		return &durable.Answer{Verdict: v, Outcome: was.Outcome}
	}
	if len(t.entries) >= t.limits.Keys || t.bytes+sizeOf(e) > t.limits.Bytes {
		return &durable.Answer{Verdict: durable.Verdict_FULL}
	}
	t.put(e)
	return &durable.Answer{Verdict: durable.Verdict_FRESH}
}

// Settle takes what has become of a request. Without an outcome its call has never begun, and the key is free again. What is not about
// the request that has the key is ignored.
func (t *Table) Settle(e *durable.Entry) {
	at := t.entries[string(e.Key)]
	if at == nil {
		return
	}
	was := at.Value.(*durable.Entry)
	switch {
	case !bytes.Equal(was.Nonce, e.Nonce) || was.Outcome != nil:
		return
	case e.Outcome == nil:
		t.remove(at)
		return
	}
	done := *was
	done.Outcome = e.Outcome
	if more := sizeOf(&done) - sizeOf(was); more > 0 && t.bytes+more > t.limits.Bytes {
		done.Outcome = t.limits.Instead
	}
	t.bytes += sizeOf(&done) - sizeOf(was)
	at.Value = &done
	t.changed[string(e.Key)] = true
}

// expire forgets what is over.
func (t *Table) expire(now int64) {
	for at := t.order.Front(); at != nil && t.over(at.Value.(*durable.Entry), now); at = t.order.Front() {
		t.remove(at)
	}
}

func (t *Table) put(e *durable.Entry) {
	if at := t.entries[string(e.Key)]; at != nil {
		t.remove(at)
	}
	t.entries[string(e.Key)] = t.order.PushBack(e)
	t.bytes += sizeOf(e)
	t.changed[string(e.Key)] = true
}

func (t *Table) remove(at *list.Element) {
	e := t.order.Remove(at).(*durable.Entry)
	delete(t.entries, string(e.Key))
	t.bytes -= sizeOf(e)
	t.changed[string(e.Key)] = true
}

// Snapshot returns all that the table has, for [Table.Restore].
func (t *Table) Snapshot() ([]byte, error) {
	c := durable.NewChange()
	for at := t.order.Front(); at != nil; at = at.Next() {
		c.Entries = append(c.Entries, at.Value.(*durable.Entry))
	}
	clear(t.changed)
	return write(c)
}

// Delta returns what has changed since the last Delta, Snapshot, Restore or Apply; nothing if nothing has.
func (t *Table) Delta() ([]byte, error) {
	if len(t.changed) == 0 {
		return nil, nil
	}
	c := durable.NewChange()
	for key := range t.changed {
		if at := t.entries[key]; at != nil {
			c.Entries = append(c.Entries, at.Value.(*durable.Entry))
		} else {
			c.Gone = append(c.Gone, []byte(key))
		}
	}
	slices.SortFunc(c.Entries, func(a, b *durable.Entry) int { return bytes.Compare(a.Key, b.Key) })
	slices.SortFunc(c.Gone, bytes.Compare)
	clear(t.changed)
	return write(c)
}

// Restore replaces all that the table has.
func (t *Table) Restore(snapshot []byte) error {
	*t = *New(t.limits)
	return t.Apply(snapshot)
}

// Apply repeats what a Delta tells.
func (t *Table) Apply(delta []byte) error {
	c := durable.NewChange()
	if err := thrift.NewTDeserializer().Read(context.Background(), c, delta); err != nil {
		return fmt.Errorf("the table of keys: %w", err)
	}
	for _, key := range c.Gone {
		if at := t.entries[string(key)]; at != nil {
			t.remove(at)
		}
	}
	slices.SortStableFunc(c.Entries, func(a, b *durable.Entry) int { return cmp.Compare(a.Accepted, b.Accepted) })
	for _, e := range c.Entries {
		if at := t.entries[string(e.Key)]; at != nil && e.Accepted == at.Value.(*durable.Entry).Accepted {
			t.bytes += sizeOf(e) - sizeOf(at.Value.(*durable.Entry))
			at.Value = e // in its place
			continue
		}
		t.put(e)
	}
	clear(t.changed)
	return nil
}

// write is Thrift's binary protocol.
func write(c *durable.Change) ([]byte, error) {
	s := thrift.NewTSerializer()
	s.Protocol = thrift.NewTBinaryProtocolConf(s.Transport, &thrift.TConfiguration{})
	return s.Write(context.Background(), c)
}
