//go:build linux

package ebpf

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
)

// profiled updates the profiles and tables of tables.p4, on both executors alike.
type profiled struct {
	*rand.Rand
	*pair
	taken int
}

// update makes an update of a member, a group or an entry, which both executors take or refuse.
func (r *profiled) update(t *testing.T, replay string) {
	t.Helper()
	table := []string{"I.chosen", "I.shared"}[r.IntN(2)]
	profile := r.Prog.Table(table).Profile.Name
	op, id := []datapath.Op{datapath.Insert, datapath.Insert, datapath.Modify, datapath.Delete}[r.IntN(4)], 1+r.Uint32N(5)
	var update func(datapath.Datapath) error
	switch r.IntN(3) {
	case 0:
		a := datapath.Action{Name: []string{"I.set", "I.add", "I.miss", "NoAction"}[r.IntN(4)], Params: [][]byte{{byte(r.IntN(256))}}}
		if a.Name == "NoAction" {
			a.Params = nil
		}
		update = func(x datapath.Datapath) error { return x.Member(op, profile, id, a) }
	case 1:
		members := map[uint32]int{}
		for range r.IntN(4) {
			members[1+r.Uint32N(5)] = r.IntN(4)
		}
		update = func(x datapath.Datapath) error { return x.Group(op, profile, id, members) }
	default:
		e := datapath.Entry{Table: table, Match: []datapath.Match{{Value: []byte{byte(r.IntN(4))}}}}
		switch r.IntN(5) {
		case 0, 1:
			e.Member = &id
		case 2, 3:
			e.Group = &id
		default:
			e.Action = &datapath.Action{Name: "I.set", Params: [][]byte{{1}}}
		}
		update = func(x datapath.Datapath) error { return x.Apply(op, e) }
	}
	kernel, golang := update(r.kernel), update(r.Golang)
	if (kernel == nil) != (golang == nil) {
		t.Fatalf("op %d of id %d in %s: kernel %v, Go %v\nreplay: %s", op, id, table, kernel, golang, replay)
	}
	if kernel == nil {
		r.taken++
	}
}

// packet is one that meets such entries.
func (r *profiled) packet() []byte {
	frame := randomFrame(r.Rand, 60)
	frame[0], frame[1] = byte(9+r.IntN(2)), byte(r.IntN(4))
	return frame
}

// Members, groups and entries that name them: both executors take and refuse the same
// updates, and packets meet the same members.
func TestDifferential_Profiles(t *testing.T) {
	r := &profiled{Rand: rand.New(rand.NewPCG(*seed, 10)), pair: newPair(t, load(t, "../interp/testdata/tables.json"), 0)}
	replay := fmt.Sprintf("go test ./p4switch/ebpf -run TestDifferential_Profiles -seed %d", *seed)
	for range 200 * max(*rounds/5, 2) {
		r.update(t, replay)
		for range 5 {
			r.Check(t, 1, r.packet(), replay)
		}
	}
	if r.taken < 50 {
		t.Errorf("only %d updates were taken", r.taken)
	}
	if err := r.kernel.Group(datapath.Insert, "absent", 1, nil); err == nil {
		t.Error("a group of a profile that is absent")
	}
}
