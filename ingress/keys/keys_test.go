package keys

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/ingress/gen-go/durable"
)

var limits = Limits{Keys: 4, Bytes: 4*(entrySize+Reserve) + 2000, Lifetime: 100 * time.Millisecond, Instead: outcome("instead")}

func outcome(body string) *durable.Outcome {
	return &durable.Outcome{Status: 200, MediaType: "t", Body: []byte(body)}
}

func entry(key, hash, nonce string, at int64) *durable.Entry {
	return &durable.Entry{Key: []byte(key), Hash: []byte(hash), Nonce: []byte(nonce), Accepted: at}
}

func settled(e *durable.Entry, o *durable.Outcome) *durable.Entry {
	s := *e
	s.Outcome = o
	return &s
}

// TestTable: the life of a key.
func TestTable(t *testing.T) {
	table := New(limits)
	claim := func(e *durable.Entry, want durable.Verdict) *durable.Answer {
		t.Helper()
		a := table.Claim(e)
		if a.Verdict != want {
			t.Errorf("%s with %s at %d: %v, want %v", e.Key, e.Hash, e.Accepted, a.Verdict, want)
		}
		return a
	}
	one := entry("k", "h", "1", 0)
	claim(one, durable.Verdict_FRESH)
	claim(one, durable.Verdict_FRESH) // an execution that is run again
	claim(entry("k", "h", "2", 1), durable.Verdict_RUNNING)
	claim(entry("k", "other", "3", 1), durable.Verdict_OTHER)
	table.Settle(settled(entry("k", "h", "2", 1), outcome("not its own")))
	table.Settle(settled(one, outcome("first")))
	table.Settle(settled(one, outcome("second")))
	if a := claim(entry("k", "h", "4", 99), durable.Verdict_DONE); a.Outcome == nil || string(a.Outcome.Body) != "first" {
		t.Errorf("outcome %v", a.Outcome)
	}
	claim(entry("k", "other", "5", 99), durable.Verdict_OTHER)
	claim(entry("k", "other", "6", 100), durable.Verdict_FRESH) // its time is over
	table.Settle(settled(one, outcome("too late")))
	claim(entry("k", "other", "7", 101), durable.Verdict_RUNNING)
	table.Settle(settled(entry("k", "other", "6", 100), nil)) // never began
	claim(entry("k", "third", "8", 102), durable.Verdict_FRESH)
	for i := range 3 {
		claim(entry(fmt.Sprint(i), "h", "n", 103), durable.Verdict_FRESH)
	}
	claim(entry("one too many", "h", "n", 103), durable.Verdict_FULL)
	big := entry("0", "h", "n", 103)
	table.Settle(settled(big, outcome(string(make([]byte, 3100)))))
	if e := table.Look([]byte("0"), 104); e == nil || string(e.Outcome.Body) != "instead" {
		t.Errorf("an outcome beyond the room: %v", e)
	}
	table.Settle(settled(entry("1", "h", "n", 103), outcome(string(make([]byte, 2500)))))
	if e := table.Look([]byte("1"), 104); e == nil || len(e.Outcome.Body) != 2500 {
		t.Errorf("an outcome that fits: %v", e)
	}
}

// TestTable_Model: whatever happens, a key's outcome is that of the one request which has claimed it, the bounds hold, and snapshots with
// deltas make the same table.
func TestTable_Model(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		table, copied := New(limits), New(limits)
		owners := map[string]string{} // key → nonce of who was told FRESH last
		now := int64(0)
		for n := range rapid.IntRange(1, 60).Draw(t, "steps") {
			now += rapid.Int64Range(0, 20).Draw(t, "time")
			key := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "key")
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0, 1:
				e := entry(key, rapid.SampledFrom([]string{"x", "y"}).Draw(t, "hash"), fmt.Sprint(n), now)
				before := table.Look(e.Key, now)
				a := table.Claim(e)
				if a.Verdict == durable.Verdict_FRESH {
					if before != nil {
						t.Fatalf("key %s is given to %d, and is known", key, n)
					}
					owners[key] = fmt.Sprint(n)
				}
				if a.Verdict == durable.Verdict_DONE && string(a.Outcome.Body) != "instead" && string(a.Outcome.Body[:1]) != owners[key][:1] {
					t.Fatalf("key %s: outcome %q, its owner is %s", key, a.Outcome.Body, owners[key])
				}
			case 2:
				if nonce := owners[key]; nonce != "" {
					table.Settle(settled(entry(key, "", nonce, 0), outcome(nonce+string(make([]byte, rapid.IntRange(0, 4000).Draw(t, "size"))))))
				}
			case 3:
				table.Settle(entry(key, "", owners[key], 0))
			}
			if table.Len() > limits.Keys || table.Bytes() > limits.Bytes {
				t.Fatalf("%d keys, %d bytes", table.Len(), table.Bytes())
			}
			delta, err := table.Delta()
			if err != nil {
				t.Fatal(err)
			}
			if delta != nil {
				if err := copied.Apply(delta); err != nil {
					t.Fatal(err)
				}
			}
			same(t, table, copied)
		}
		snapshot, err := table.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		restored := New(limits)
		if err := restored.Restore(snapshot); err != nil {
			t.Fatal(err)
		}
		same(t, table, restored)
	})
}

// same compares what tables have.
func same(t *rapid.T, a, b *Table) {
	x, y := *a, *b
	x.changed, y.changed = map[string]bool{}, map[string]bool{}
	one, _ := x.Snapshot()
	two, _ := y.Snapshot()
	if !bytes.Equal(one, two) || a.Bytes() != b.Bytes() || a.Len() != b.Len() {
		t.Fatalf("%d keys with %d bytes; the copy has %d with %d", a.Len(), a.Bytes(), b.Len(), b.Bytes())
	}
}

// TestTable_Damaged: what is no snapshot is refused.
func TestTable_Damaged(t *testing.T) {
	if err := New(limits).Restore([]byte{15, 0, 1, 12, 0, 0}); err == nil {
		t.Error("it is taken")
	}
}
