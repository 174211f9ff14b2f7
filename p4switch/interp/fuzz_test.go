package interp

import (
	"encoding/json"
	"io"
	"log/slog"
	"maps"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

var fuzzPrograms = []string{"stacks", "tables", "copies", "state", "sets", "loop"}

// fuzzConfig is quiet, and always in the same moment.
func fuzzConfig() Config {
	return Config{
		CPUPort: 3, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Now: func() time.Time { return time.Unix(1000, 0) }, Random: func() uint64 { return 1 << 60 },
	}
}

// FuzzProcess: no frame makes any of the programs panic or hang.
func FuzzProcess(f *testing.F) {
	var switches []*Executor
	first, err := v1model.Load(sample.JSON)
	if err != nil {
		f.Fatal(err)
	}
	programs := []*v1model.Program{first}
	for _, name := range fuzzPrograms {
		programs = append(programs, loadFile(f, name))
	}
	for _, p := range programs {
		x, err := New(p, fuzzConfig())
		if err != nil {
			f.Fatal(err)
		}
		if err := x.Multicast(7, []datapath.Replica{{Port: 1}, {Port: 2, Instance: 3}}); err != nil {
			f.Fatal(err)
		}
		if err := x.Clone(5, []datapath.Replica{{Port: 3}}, 5); err != nil {
			f.Fatal(err)
		}
		switches = append(switches, x)
	}
	f.Add(uint8(0), uint16(510), []byte{0, 1, 0, 0, 2, 0, 0, 0, 0, 9, 2, 0, 0, 0, 0, 1, 0x86, 0xdd, 0x60})
	f.Add(uint8(1), uint16(1), []byte{1, 1, 2, 4, 7, 0xee})
	f.Add(uint8(3), uint16(1), []byte{1, 1, 0, 0, 0xaa})
	f.Fuzz(func(t *testing.T, which uint8, port uint16, frame []byte) {
		x := switches[int(which)%len(switches)]
		x.Process(datapath.Port(port), frame, func(p datapath.Port, b []byte) {
			if p > 511 || len(b) > len(frame)+1000 {
				t.Errorf("%d bytes at port %d", len(b), p)
			}
		})
	})
}

// FuzzProgram: a program with parts exchanged is refused or runs.
func FuzzProgram(f *testing.F) {
	var trees []any
	for _, name := range fuzzPrograms {
		data, err := os.ReadFile("testdata/" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		var tree any
		if err := json.Unmarshal(data, &tree); err != nil {
			f.Fatal(err)
		}
		trees = append(trees, strip(tree))
	}
	f.Add([]byte{0, 1, 2, 3}, []byte{1, 1, 2, 4, 7})
	f.Add([]byte{3, 200, 7, 1, 90, 14, 60}, []byte{20, 1, 2, 4, 7, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9})
	f.Fuzz(func(t *testing.T, edits, frame []byte) {
		if len(edits) == 0 {
			return
		}
		tree := trees[int(edits[0])%len(trees)]
		for rest := edits[1:]; len(rest) >= 3; rest = rest[3:] {
			tree = exchange(tree, int(rest[0])<<8|int(rest[1]), rest[2])
		}
		data, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		prog, err := v1model.Load(data)
		if err != nil {
			return
		}
		x, err := New(prog, fuzzConfig())
		if err != nil {
			return
		}
		x.Process(1, frame, nil)
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
}

// strip drops what only names places in the source.
func strip(v any) any {
	switch v := v.(type) {
	case map[string]any:
		delete(v, "source_info")
		for k, x := range v {
			v[k] = strip(x)
		}
	case []any:
		for i, x := range v {
			v[i] = strip(x)
		}
	}
	return v
}

// exchange copies a tree with its nth node replaced.
func exchange(v any, n int, how byte) any {
	var walk func(v any) any
	walk = func(v any) any {
		n--
		if n == 0 {
			return replacement(v, how)
		}
		switch v := v.(type) {
		case map[string]any:
			c := make(map[string]any, len(v))
			for _, k := range slices.Sorted(maps.Keys(v)) {
				c[k] = walk(v[k])
			}
			return c
		case []any:
			c := make([]any, len(v))
			for i, x := range v {
				c[i] = walk(x)
			}
			return c
		}
		return v
	}
	return walk(v)
}

// replacement is another value, of the same type as v for most ways.
func replacement(v any, how byte) any {
	switch v := v.(type) {
	case float64:
		return []any{v + 1, v - 1, 0, v * 64, nil}[how%5]
	case string:
		words := []any{
			"h", "0x0", "0x1", "-0x1", "0xffffffffffffffffff", "field", "header", "hexstr", "expression", "r",
			"+", "-", "<<", ">>", "two_comp_mod", "sat_cast", "usat_cast", "?", "==", "<", "valid", "d2b", "$valid$",
			"lpm", "ternary", "range", "exact", "assign", "assign_header", "push", "pop", "labels", "items", nil,
		}
		return words[int(how)%len(words)]
	case bool:
		return !v
	case []any:
		if len(v) == 0 || how%4 == 0 {
			return []any{}
		}
		i := int(how/4) % len(v)
		return append(append([]any{}, v[i:]...), v[:i+1]...)
	}
	return nil
}
