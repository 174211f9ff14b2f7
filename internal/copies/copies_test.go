package copies

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
)

// said is one answer of a history.
type said struct {
	mirror dsmpacket.Mirror
	value  int
}

// TestAnswers: whatever the order of the answers, all have answered when each copy of the newest set has in that set, and what
// counts is what each has said last.
func TestAnswers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		members := rapid.SliceOfN(rapid.Uint8Range(1, dsmpacket.MaxMembers), 4, 4).Draw(t, "members") // by epoch
		var a Answers[int]
		var history []said
		newest := -1
		for value := range rapid.IntRange(1, 30).Draw(t, "answers") {
			epoch := rapid.IntRange(0, len(members)-1).Draw(t, "epoch")
			m := dsmpacket.Mirror{Epoch: uint32(epoch), Members: members[epoch], Copy: rapid.Uint8Range(0, members[epoch]-1).Draw(t, "copy")}
			if rapid.IntRange(0, 9).Draw(t, "of no copy") == 0 {
				m = dsmpacket.Mirror{Epoch: m.Epoch}
			}
			old, newer := m.Members == 0 || epoch < newest, m.Members != 0 && epoch > newest
			if a.Old(m) != old && a.Known() {
				t.Fatalf("%+v: old %t, want %t", m, a.Old(m), old)
			}
			at, gotNewer := a.From(m)
			if (at == nil) != old || gotNewer != newer {
				t.Fatalf("%+v after epoch %d: counts %t, newer %t", m, newest, at != nil, gotNewer)
			}
			if at != nil {
				newest, *at = epoch, value
			}
			history = append(history, said{m, value})
			want := last(history, newest)
			if got := slices.Collect(a.Said()); !slices.Equal(got, want) {
				t.Fatalf("said %v, want %v of %+v", got, want, history)
			}
			if all := newest >= 0 && len(want) == int(members[newest]); a.All() != all || a.Single() != (newest >= 0 && members[newest] == 1) {
				t.Fatalf("all %t, single %t, %+v", a.All(), a.Single(), history)
			}
			if rapid.IntRange(0, 9).Draw(t, "again") == 0 {
				a.Again()
				history = nil
				if a.All() || len(slices.Collect(a.Said())) > 0 || a.Known() != (newest >= 0) {
					t.Fatalf("after Again: %+v", a)
				}
			}
		}
	})
}

// last is what the copies of an epoch have said last, in the order of the copies.
func last(history []said, epoch int) (values []int) {
	for number := range uint8(dsmpacket.MaxMembers) {
		for _, s := range slices.Backward(history) {
			if s.mirror.Members > 0 && int(s.mirror.Epoch) == epoch && s.mirror.Copy == number {
				values = append(values, s.value)
				break
			}
		}
	}
	return values
}

// TestAnswers_KeepsWhatWasSaid: a copy that answers once more finds what it has said, unless there is a newer set.
func TestAnswers_KeepsWhatWasSaid(t *testing.T) {
	var a Answers[int]
	first := dsmpacket.Mirror{Epoch: 1, Members: 2, Copy: 1}
	at, _ := a.From(first)
	*at = 7
	if at, _ = a.From(first); *at != 7 {
		t.Errorf("the copy has said %d, want 7", *at)
	}
	if at, _ = a.From(dsmpacket.Mirror{Epoch: 2, Members: 2, Copy: 1}); *at != 0 {
		t.Errorf("in a newer set the copy has said %d", *at)
	}
}
