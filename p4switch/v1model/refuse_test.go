package v1model_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// edit changes the value at a path in JSON: names and indexes with slashes.
// In a list, a name finds the element that has it.
func edit(t *testing.T, data []byte, path string, value any) []byte {
	t.Helper()
	var root any
	if err := json.Unmarshal(data, &root); err != nil {
		t.Fatal(err)
	}
	keys := strings.Split(path, "/")
	at := root
	for _, k := range keys[:len(keys)-1] {
		at = step(t, at, k)
	}
	last := keys[len(keys)-1]
	switch at := at.(type) {
	case map[string]any:
		if value == nil && last != "value" {
			delete(at, last)
		} else {
			at[last] = value
		}
	case []any:
		i, err := strconv.Atoi(last)
		if err != nil || i >= len(at) {
			t.Fatalf("no element %s in %s", last, path)
		}
		at[i] = value
	}
	out, err := json.Marshal(root)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func step(t *testing.T, at any, key string) any {
	t.Helper()
	switch at := at.(type) {
	case map[string]any:
		return at[key]
	case []any:
		if i, err := strconv.Atoi(key); err == nil && i < len(at) {
			return at[i]
		}
		for _, e := range at {
			if m, ok := e.(map[string]any); ok && m["name"] == key {
				return m
			}
		}
	}
	t.Fatalf("no %q in the program", key)
	return nil
}

func TestRefuses(t *testing.T) {
	field := func(h, f string) any { return map[string]any{"type": "field", "value": []string{h, f}} }
	op := func(op string, l, r any) any {
		return map[string]any{"type": "expression", "value": map[string]any{"op": op, "left": l, "right": r}}
	}
	deep := field("h", "a")
	for range 300 {
		deep = op("+", deep, deep0)
	}
	for _, c := range []struct {
		program, path string
		value         any
		reason        error
		says          string
	}{
		{"tables", "__meta__/version", []int{3, 0}, v1model.ErrUnsupported, "format version 3.0"},
		{"tables", "__meta__/version", []int{2, 99}, v1model.ErrUnsupported, "format version 2.99"},
		{"tables", "parsers", []any{}, v1model.ErrUnsupported, "0 parsers"},
		{"tables", "extern_instances", []any{map[string]string{"name": "x", "type": "sponge"}}, v1model.ErrUnsupported, `extern "x" of type "sponge"`},
		{"tables", "header_types/in_t/fields/0/1", 7, v1model.ErrMalformed, "whole bytes"},
		{"tables", "header_types/in_t/fields/0/1", -8, v1model.ErrMalformed, "width -8"},
		{"tables", "header_types/in_t/fields/0/1", 1 << 20, v1model.ErrUnsupported, "field of 1048576 bits"},
		{"tables", "header_types/in_t/fields/0", []any{"which", 8, false, true}, v1model.ErrUnsupported, "saturating field"},
		{"tables", "header_types/in_t/length_exp", field("h", "a"), v1model.ErrUnsupported, "length_exp"},
		{"tables", "headers/h/header_type", "nothing", v1model.ErrMalformed, `header "h": malformed program: no header type nothing`},
		{"tables", "headers/h/id", 77, v1model.ErrMalformed, "id 77"},
		{"tables", "headers/result/name", "h", v1model.ErrMalformed, "two headers h"},
		{"stacks", "header_stacks/labels/header_ids/0", 99, v1model.ErrMalformed, "no header with the id 99"},
		{"stacks", "header_stacks/labels/header_type", "small_t", v1model.ErrMalformed, `is a "label_t"`},
		{"stacks", "header_unions/0/header_ids/1", 2, v1model.ErrMalformed, "member"},
		{"stacks", "parsers/0/init_state", "nowhere", v1model.ErrMalformed, "no state nowhere"},
		{"stacks", "parsers/0/parse_states/start/parser_ops/0/op", "teleport", v1model.ErrUnsupported, `parser operation "teleport"`},
		{"stacks", "parsers/0/parse_states/start/transitions/0/value", "0x123456", v1model.ErrMalformed, "does not fit"},
		{"stacks", "parsers/0/parse_states/start/transitions/0/next_state", "gone", v1model.ErrMalformed, "no state gone"},
		{"stacks", "parsers/0/parse_states/options/parser_ops/0/op", "extract", v1model.ErrMalformed, "2 parameters instead of 1"},
		{"tables", "actions/I.set/primitives/0/op", "frobnicate", v1model.ErrUnsupported, `primitive "frobnicate"`},
		{"tables", "actions/I.set/primitives/0/parameters", []any{}, v1model.ErrMalformed, "0 parameters instead of 2"},
		{"tables", "actions/I.set/primitives/0/parameters/0", field("h", "zz"), v1model.ErrMalformed, `no field "zz"`},
		{"tables", "actions/I.set/primitives/0/parameters/0", map[string]any{"type": "hexstr", "value": "0x1"}, v1model.ErrMalformed, "cannot be written"},
		{"tables", "actions/I.set/primitives/0/parameters/0", field("h", "$valid$"), v1model.ErrMalformed, "assignment to a header's validity"},
		{"tables", "actions/I.set/primitives/0/parameters/1", op("<=>", field("h", "a"), field("h", "a")), v1model.ErrUnsupported, `operator "<=>"`},
		{"tables", "actions/I.set/primitives/0/parameters/1", deep, v1model.ErrUnsupported, "nested deeper"},
		{"tables", "actions/I.set/primitives/0/parameters/1", map[string]any{"type": "hexstr", "value": "0xzz"}, v1model.ErrMalformed, "not a hexadecimal number"},
		{"tables", "actions/I.set/primitives/0/parameters/1", map[string]any{"type": "runtime_data", "value": 9}, v1model.ErrMalformed, "parameter 9"},
		{"tables", "actions/I.set/primitives/0", map[string]any{"op": "_jump", "parameters": []any{map[string]any{"type": "hexstr", "value": "0x99"}}}, v1model.ErrMalformed, "jump from statement 0 to 153"},
		{"state", "calculations/0/algo", "md5", v1model.ErrUnsupported, `hash algorithm "md5"`},
		{"state", "register_arrays/0/size", 1 << 30, v1model.ErrUnsupported, "cells"},
		{"state", "register_arrays/0/bitwidth", 0, v1model.ErrMalformed, "width 0"},
		{"state", "counter_arrays/0/size", -1, v1model.ErrMalformed, "size -1"},
		{"state", "meter_arrays/0/rate_count", 1, v1model.ErrUnsupported, "meter with 1 rates"},
		{"state", "checksums/0/type", "ipv4", v1model.ErrUnsupported, `checksum of type "ipv4"`},
		{"tables", "pipelines/ingress/tables/I.longest/key/0/match_type", "fuzzy", v1model.ErrUnsupported, `match kind "fuzzy"`},
		{"tables", "pipelines/ingress/tables/I.longest/match_type", "exact", v1model.ErrMalformed, "matched otherwise than its table"},
		{"tables", "pipelines/ingress/tables/I.longest/type", "magic", v1model.ErrUnsupported, `table of type "magic"`},
		{"tables", "pipelines/ingress/tables/I.longest/default_entry/action_data", []string{"0x1"}, v1model.ErrMalformed, "1 arguments"},
		{"tables", "pipelines/ingress/tables/I.program/entries/0/match_key/0/key", "0x1234", v1model.ErrMalformed, "does not fit 1 bytes"},
		{"tables", "pipelines/ingress/tables/I.program/entries/0/match_key/1/end", "0x0000", v1model.ErrMalformed, "empty range"},
		{"tables", "pipelines/ingress/conditionals/0/true_next", "nowhere", v1model.ErrMalformed, "no table, condition or call"},
		{"tables", "pipelines/ingress/name", "midgress", v1model.ErrUnsupported, `pipeline "midgress"`},
		{"copies", "learn_lists/0/elements/0", map[string]any{"type": "header", "value": "o"}, v1model.ErrUnsupported, "not a number"},
		{"copies", "deparsers", []any{}, v1model.ErrUnsupported, "0 deparsers"},
		{"copies", "headers/standard_metadata/name", "other", v1model.ErrMalformed, "standard_metadata"},
	} {
		t.Run(fmt.Sprintf("%s/%s", c.program, c.says), func(t *testing.T) {
			_, err := v1model.Load(edit(t, program(t, c.program), c.path, c.value))
			var typed *v1model.Error
			if !errors.As(err, &typed) || !errors.Is(err, c.reason) {
				t.Fatalf("loading gave %v, not an *Error for %v", err, c.reason)
			}
			if !strings.Contains(err.Error(), c.says) {
				t.Errorf("%q does not say %q", err, c.says)
			}
		})
	}
}

var deep0 = map[string]any{"type": "hexstr", "value": "0x1"}

// A pipeline that leads back to itself would never end.
func TestRefusesCycle(t *testing.T) {
	data := program(t, "tables")
	p := load(t, data)
	first, ok := p.Ingress.Start.(*v1model.Table)
	if !ok {
		t.Fatalf("ingress begins with a %T", p.Ingress.Start)
	}
	c := p.Ingress.Conditions[0]
	_, err := v1model.Load(edit(t, data, "pipelines/ingress/conditionals/"+c.Name+"/true_next", first.Name))
	if !errors.Is(err, v1model.ErrMalformed) || !strings.Contains(err.Error(), "leads back to itself") {
		t.Error(err)
	}
}

func TestErrorSaysWhere(t *testing.T) {
	data := edit(t, program(t, "tables"), "actions/I.set/primitives/0/op", "frobnicate")
	_, err := v1model.Load(data)
	if want := `statement 0 (frobnicate): unsupported feature: primitive "frobnicate"`; !strings.HasSuffix(fmt.Sprint(err), want) ||
		!strings.HasPrefix(fmt.Sprint(err), `action "`) {
		t.Errorf("%v does not name the action and end with %q", err, want)
	}
}
