package gatekeeper

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// table is a model of the switch: what it holds, by key.
type table map[string]string

// write applies a batch as P4Runtime says, in any order, and reports failures.
func (tb table) write(us []update) error {
	var failed p4rtclient.BatchError
	for i, u := range us {
		key := u.Entry.Key()
		_, there := tb[key]
		switch {
		case u.Op == p4rtclient.Insert && there:
			failed.Updates = append(failed.Updates, p4rtclient.UpdateError{Index: i, Code: codes.AlreadyExists})
		case u.Op != p4rtclient.Insert && !there:
			failed.Updates = append(failed.Updates, p4rtclient.UpdateError{Index: i, Code: codes.NotFound})
		case u.Op == p4rtclient.Delete:
			delete(tb, key)
		default:
			tb[key] = fmt.Sprint(u.Entry.Params)
		}
	}
	if failed.Updates != nil {
		return &failed
	}
	return nil
}

func testEntry(key, value int) entry {
	return entry{Table: "t", Match: []match{{Field: "k", Value: p4rtclient.Uint(uint64(key))}}, Params: []param{{Name: "v", Value: p4rtclient.Uint(uint64(value))}}}
}

// TestBatcher: random plans on a switch that is away now and then. Batches never
// mix the kinds, phases follow their order, ordered plans theirs, all end once,
// and the switch has what the last plan on each entry said.
func TestBatcher(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b batcher
		sw, want := table{}, base{}
		type state struct {
			ordered bool
			phases  []phase
			ended   bool
		}
		var plans []*state
		lastOrdered := -1
		submit := func(*rapid.T) {
			s := &state{ordered: rapid.Bool().Draw(t, "ordered")}
			n := len(plans)
			for range rapid.IntRange(0, 3).Draw(t, "phases") {
				var ph phase
				keys := rapid.SliceOfNDistinct(rapid.IntRange(0, 5), 0, 3, rapid.ID).Draw(t, "keys")
				for i, key := range keys {
					if !s.ordered { // these have entries of their own
						key = 100 + n*100 + len(s.phases)*10 + i
					}
					e := testEntry(key, rapid.IntRange(0, 2).Draw(t, "value"))
					if rapid.Bool().Draw(t, "want") {
						ph = append(ph, want.want(e)...)
					} else {
						ph = append(ph, want.unwant(e)...)
					}
				}
				s.phases = append(s.phases, split(ph)...)
			}
			plans = append(plans, s)
			b.submit(&plan{phases: s.phases, ordered: s.ordered, then: func(err error) {
				if err != nil || s.ended {
					t.Fatalf("plan %d: ended %v, error %v", n, s.ended, err)
				}
				s.ended = true
				if s.ordered {
					if n < lastOrdered {
						t.Fatalf("plan %d ended after plan %d", n, lastOrdered)
					}
					lastOrdered = n
				}
			}})
		}
		finish := func() {
			for _, p := range b.done() {
				p.then(p.err)
			}
		}
		write := func(*rapid.T) {
			if b.idle() {
				return
			}
			batch := b.next()
			for _, u := range batch {
				if (u.Op == p4rtclient.Delete) != (batch[0].Op == p4rtclient.Delete) {
					t.Fatalf("a batch of both kinds: %v", batch)
				}
			}
			err := errors.New("the switch is away")
			switch rapid.IntRange(0, 3).Draw(t, "luck") {
			case 0: // away
			case 1: // it has written, but the answer was lost
				_ = sw.write(batch)
			default:
				err = sw.write(batch)
			}
			_ = b.answer(err)
			finish()
		}
		t.Repeat(map[string]func(*rapid.T){"submit": submit, "write": write})
		for !b.idle() {
			_ = b.answer(sw.write(b.next()))
		}
		finish()
		for i, s := range plans {
			if !s.ended {
				t.Fatalf("plan %d has not ended", i)
			}
		}
		if len(sw) != len(want) {
			t.Fatalf("the switch has %v, want %v", sw, want)
		}
		for k, e := range want {
			if sw[k] != fmt.Sprint(e.Params) {
				t.Fatalf("the switch has %s = %s, want %v", k, sw[k], e.Params)
			}
		}
	})
}

// A refusal that is not about presence ends its plan, and no other.
func TestBatcher_Refusal(t *testing.T) {
	var b batcher
	var got []error
	then := func(err error) { got = append(got, err) }
	full := phase{{Op: p4rtclient.Insert, Entry: testEntry(1, 1)}}
	b.submit(&plan{phases: []phase{full, full}, then: then})
	b.submit(&plan{phases: []phase{{{Op: p4rtclient.Insert, Entry: testEntry(2, 1)}}}, then: then})
	b.submit(&plan{then: then}) // nothing to write
	if n := len(b.next()); n != 2 {
		t.Fatalf("a batch of %d updates", n)
	}
	if err := b.answer(&p4rtclient.BatchError{Updates: []p4rtclient.UpdateError{{Index: 0, Code: codes.ResourceExhausted, Message: "full"}}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.done() {
		p.then(p.err)
	}
	if len(got) != 3 || got[0] != nil || got[1] == nil || got[2] != nil || !b.idle() {
		t.Errorf("plans ended with %v", got)
	}
}

// What a plan is to end ends, also after a refusal: a node's identity must not stay since its route is refused.
func TestBatcher_RefusedRevokes(t *testing.T) {
	var b batcher
	grant := phase{{Op: p4rtclient.Insert, Entry: testEntry(1, 1)}}
	revoke := phase{{Op: p4rtclient.Delete, Entry: testEntry(2, 1)}}
	ended := false
	b.submit(&plan{phases: []phase{grant, grant, revoke, grant}, ordered: true, then: func(err error) { ended = err != nil }})
	b.next()
	if err := b.answer(&p4rtclient.BatchError{Updates: []p4rtclient.UpdateError{{Index: 0, Code: codes.ResourceExhausted, Message: "full"}}}); err != nil {
		t.Fatal(err)
	}
	if len(b.done()) > 0 || b.idle() {
		t.Fatal("the plan has ended, and what it was to end is there")
	}
	if batch := b.next(); len(batch) != 1 || batch[0].Op != p4rtclient.Delete {
		t.Fatalf("after a refusal it writes %v", batch)
	}
	if err := b.answer(nil); err != nil {
		t.Fatal(err)
	}
	for _, p := range b.done() {
		p.then(p.err)
	}
	if !ended || !b.idle() {
		t.Error("the plan has not ended with its refusal")
	}
}

// Batches stay within their bound, except for a single larger phase.
func TestBatcher_BatchSize(t *testing.T) {
	var b batcher
	large := make(phase, maxBatch+1)
	for i := range large {
		large[i] = update{Op: p4rtclient.Insert, Entry: testEntry(i, 0)}
	}
	for _, n := range []int{700, 700, maxBatch + 1, 10} {
		b.submit(&plan{phases: []phase{large[:n]}})
	}
	for i, want := range []int{700, 700, maxBatch + 1, 10} {
		if n := len(b.next()); n != want {
			t.Errorf("batch %d has %d updates, want %d", i, n, want)
		}
		if err := b.answer(nil); err != nil {
			t.Fatal(err)
		}
	}
}
