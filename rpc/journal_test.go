package rpc

import (
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/trailer"
)

// All that a re-run does fails when its node has ended, so it does not do what it did before. That is no
// nondeterminism: its next run goes on.
func TestJournal_NodeEnded(t *testing.T) {
	const op = "call B.act"
	outcomes := trailer.Append(nil, []trailer.Section{{Type: trailer.Outcome, Branch: 1, Index: 1, Data: outcome{}.encode()}, {Type: trailer.Time, Branch: 1, Index: 2, Data: make([]byte, 8)}})
	for _, c := range []struct {
		what  string
		ended Code // what it fails as when its node has ended
		do    func(j *journal, o *operation) error
	}{
		{"the answer that it had does not come", Unavailable, func(_ *journal, o *operation) error {
			o.known = new(trailer.Section)
			return o.decided(fault.New(Unavailable, op, "the node has lost its identity"))
		}},
		{"it does something else", Unavailable, func(j *journal, _ *operation) error {
			if _, err := j.recall(op, position{1, 1}, trailer.Random); err != nil {
				return err
			}
			return nil
		}},
		{"it does not go on", OK, func(j *journal, _ *operation) error {
			if err := j.close(Application); err != nil {
				return err
			}
			return nil
		}},
	} {
		for _, ended := range []bool{false, true} {
			life := newLifetime("main0")
			j, err := newJournal(outcomes, life)
			if err != nil {
				t.Fatal(err)
			}
			if ended {
				life.end(fault.New(Unavailable, "node main0", "the node has lost its identity"))
			}
			err = c.do(j, &operation{op: op, b: &opSequence{e: &execution{journal: j}}})
			want := Nondeterminism
			if ended {
				want = c.ended
			}
			if got := CodeOf(err); got != want {
				t.Errorf("%s, the node has ended: %v: %v, want %v", c.what, ended, err, want)
			}
			if failed := j.failure() != nil; failed == ended {
				t.Errorf("%s, the node has ended: %v: has diverged: %v", c.what, ended, failed)
			}
		}
	}
}
