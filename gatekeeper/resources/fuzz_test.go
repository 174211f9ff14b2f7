package resources

import (
	"bytes"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// FuzzLoad: what Load accepts can go on, and is what Save writes.
func FuzzLoad(f *testing.F) {
	now := time.Unix(1000, 0).UTC()
	f.Add([]byte(`{"format":1}`))
	f.Add(busyState(f, now))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Load(DefaultConfig(), exports{}, data, now)
		if err != nil {
			return
		}
		saved, err := r.Save()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Load(DefaultConfig(), exports{}, saved, now)
		if err != nil {
			t.Fatalf("%s\nsaved: %v", saved, err)
		}
		if twice, err := again.Save(); err != nil || !bytes.Equal(twice, saved) {
			t.Fatalf("saved as\n%s\nthen as\n%s (%v)", saved, twice, err)
		}
		again.Resume(now)
		for _, n := range again.Nodes("") {
			again.Leave(n.Address, n.Incarnation, true, "", now)
			again.Ended(n.Address, n.Incarnation, true, now)
		}
		again.Tick(now.Add(time.Hour))
	})
}

// busyState is the saved state of a rack with something of everything.
func busyState(f testing.TB, now time.Time) []byte {
	r, err := New(DefaultConfig(), exports{})
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range []string{"c1", "c2", "m1"} {
		kind := Compute
		if name == "m1" {
			kind = Memory
		}
		if _, err := r.Hello(Hello{Blade: name, Kind: kind, Capacity: 3}, now); err != nil {
			f.Fatal(err)
		}
	}
	_, err = r.Deploy(Spec{Name: "app", Programs: []Program{{
		Name: "p", Args: []string{"p"}, Env: map[string]string{"A": "b"}, Nodes: 1, Spares: 1, Word: Word{Policy: "tainted", MaxFailures: new(3)},
		Services: []ServiceSpec{{Name: "S", Methods: []MethodSpec{{Name: "m", Word: Word{Policy: "none"}}}}},
	}}}, now)
	if err != nil {
		f.Fatal(err)
	}
	_, _, err = r.Join("c1", "app/p/1", Node{Address: rackaddr.Node(1), Incarnation: 1}, now)
	if err != nil {
		f.Fatal(err)
	}
	if err := r.SetPolicy("S", "m", Word{Policy: "recover", MaxFailures: new(7)}); err != nil {
		f.Fatal(err)
	}
	data, err := r.Save()
	if err != nil {
		f.Fatal(err)
	}
	return data
}
