//go:build linux

package ebpf

import (
	"encoding/json"
	"fmt"
	mapsutil "maps"
	"os"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// TestManyMaps: a program may have more tables with counters than there could be maps for if each had one of its own, and each entry still counts for itself.
func TestManyMaps(t *testing.T) {
	const tables = 26 // two maps each; the kernel takes 64
	data, err := os.ReadFile("testdata/acl.json")
	if err != nil {
		t.Fatal(err)
	}
	var program map[string]any
	if err := json.Unmarshal(data, &program); err != nil {
		t.Fatal(err)
	}
	name := func(n int) string { return fmt.Sprintf("I.acl%d", n) }
	ingress := program["pipelines"].([]any)[0].(map[string]any)
	var all []any
	var counters []any
	for _, c := range ingress["tables"].([]any) {
		one := c.(map[string]any)
		if one["name"] != "I.acl" {
			all = append(all, c)
			one["next_tables"], one["base_default_next"] = map[string]any{one["actions"].([]any)[0].(string): name(0)}, name(0)
			continue
		}
		for n := range tables {
			var next any
			if n+1 < tables {
				next = name(n + 1)
			}
			again := mapsutil.Clone(one)
			mapsutil.Copy(again, map[string]any{
				"name": name(n), "id": 100 + n, "max_size": 16 + 10_000*(n%2), "next_tables": map[string]any{"I.take": next}, "base_default_next": next,
			})
			all = append(all, again)
			counters = append(counters, map[string]any{"name": "I.hits" + name(n), "id": n, "is_direct": true, "binding": name(n)})
		}
	}
	ingress["tables"], program["counter_arrays"] = all, counters
	if data, err = json.Marshal(program); err != nil {
		t.Fatal(err)
	}
	prog, err := v1model.Load(data)
	if err != nil {
		t.Fatal(err)
	}
	p := newPair(t, prog, 0)
	var entries []datapath.Entry
	for n := range tables {
		for i := range 3 {
			e := datapath.Entry{Table: name(n), Priority: int32(i + 1), Action: &datapath.Action{Name: "I.take", Params: [][]byte{{0, byte(n)}}}}
			for k, bytes := range []int{4, 4, 2, 2, 1} {
				m := datapath.Match{Wildcard: true}
				if k == 0 {
					m = datapath.Match{Value: make([]byte, bytes)}
					m.Value[3] = byte(i)
				}
				e.Match = append(e.Match, m)
			}
			if !p.Update(t, datapath.Insert, e) {
				t.Fatal(e)
			}
			entries = append(entries, e)
		}
	}
	for i := range 40 {
		frame := make([]byte, 60+i)
		frame[3] = byte(i % 4) // the last meets no entry
		p.Check(t, 1, frame, "")
	}
	for n := range tables {
		entries = append(entries, datapath.Entry{Table: name(n)}) // what met none
	}
	if !p.Update(t, datapath.Delete, entries[4]) || !p.Update(t, datapath.Insert, entries[4]) { // counts anew
		t.Fatal("an entry does not come again")
	}
	p.Counters(t, entries, "")
	for _, e := range entries[:3] {
		if c, err := p.kernel.EntryCounts(e); err != nil || c.Packets != 10 {
			t.Errorf("%+v: %+v %v", e, c, err)
		}
	}
}
