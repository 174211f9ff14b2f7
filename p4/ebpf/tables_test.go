//go:build linux

package ebpf

import (
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

func home(i int) datapath.Entry {
	return datapath.Entry{
		Table: "BifrostIngress.dsm_home", Match: []datapath.Match{{Value: []byte{0, 0, 0, 0, byte(i >> 8), byte(i)}}},
		Action: &datapath.Action{Name: "BifrostIngress.to_hop", Params: [][]byte{{0, 1}}},
	}
}

// A full table refuses the next entry and stays as it was.
func TestApply_FullTable(t *testing.T) {
	x := start(t, nil)
	size := x.prog.Table("BifrostIngress.dsm_home").MaxSize
	for i := range size {
		if err := x.Apply(datapath.Insert, home(i)); err != nil {
			t.Fatalf("entry %d of %d: %v", i, size, err)
		}
	}
	if err := x.Apply(datapath.Insert, home(size)); !errors.Is(err, datapath.ErrFull) {
		t.Fatalf("one too many: %v", err)
	}
	if err := x.Apply(datapath.Modify, home(0)); err != nil {
		t.Errorf("modify in a full table: %v", err)
	}
	if err := x.SetDefault("BifrostIngress.dsm_home", nil); err != nil {
		t.Errorf("the default of a full table: %v", err)
	}
	for i := range size {
		if err := x.Apply(datapath.Delete, home(i)); err != nil {
			t.Fatalf("entry %d is gone: %v", i, err)
		}
	}
}

func TestApply_Refuses(t *testing.T) {
	x := start(t, nil, known())
	bad := func(change func(*datapath.Entry)) datapath.Entry {
		e := route()
		change(&e)
		return e
	}
	for name, tc := range map[string]struct {
		op    datapath.Op
		entry datapath.Entry
		want  error // nil: any
	}{
		"twice":           {datapath.Insert, known(), datapath.ErrExists},
		"not there":       {datapath.Delete, route(), datapath.ErrNotFound},
		"not to modify":   {datapath.Modify, route(), datapath.ErrNotFound},
		"table":           {datapath.Insert, bad(func(e *datapath.Entry) { e.Table = "x" }), datapath.ErrNotFound},
		"action":          {datapath.Insert, bad(func(e *datapath.Entry) { e.Action = &datapath.Action{Name: "x"} }), datapath.ErrNotFound},
		"no action":       {datapath.Insert, bad(func(e *datapath.Entry) { e.Action = nil }), datapath.ErrUnsupported},
		"idle timeout":    {datapath.Insert, bad(func(e *datapath.Entry) { e.IdleTimeoutNs = 1 }), datapath.ErrUnsupported},
		"few fields":      {datapath.Insert, bad(func(e *datapath.Entry) { e.Match = nil }), nil},
		"short value":     {datapath.Insert, bad(func(e *datapath.Entry) { e.Match[0].Value = []byte{1} }), nil},
		"long prefix":     {datapath.Insert, bad(func(e *datapath.Entry) { e.Match[0].PrefixLen = 129 }), nil},
		"few parameters":  {datapath.Insert, bad(func(e *datapath.Entry) { e.Action.Params = nil }), nil},
		"short parameter": {datapath.Insert, bad(func(e *datapath.Entry) { e.Action.Params = [][]byte{{1}} }), nil},
	} {
		if err := x.Apply(tc.op, tc.entry); err == nil || tc.want != nil && !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Nothing can be done to an executor that is closed, and closing twice is fine.
func TestClose(t *testing.T) {
	x := start(t, nil)
	for range 2 {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.AttachPort(1, "lo", false); err == nil {
		t.Error("attached to a closed executor")
	}
	if err := x.Apply(datapath.Insert, route()); err == nil {
		t.Error("inserted into a closed executor")
	}
}

// FuzzPunted reads any frame from the CPU port's device.
func FuzzPunted(f *testing.F) {
	f.Add([]byte("0123456789ab\x88\xa8\xb1\x04rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, ok := punted(b); ok && len(got) > len(b)-4 {
			t.Errorf("%x became longer: %x", b, got)
		}
	})
}
