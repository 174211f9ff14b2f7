package v1model

import "encoding/json"

// The JSON as p4c writes it. What is polymorphic stays raw until its type is
// known.
type rawProgram struct {
	Meta struct {
		Version []int `json:"version"`
	} `json:"__meta__"`
	Source string `json:"program"`

	HeaderTypes  []rawHeaderType `json:"header_types"`
	Headers      []rawHeader     `json:"headers"`
	Stacks       []rawStack      `json:"header_stacks"`
	UnionTypes   []rawUnionType  `json:"header_union_types"`
	Unions       []rawUnion      `json:"header_unions"`
	UnionStacks  []rawUnionStack `json:"header_union_stacks"`
	FieldAliases []rawAlias      `json:"field_aliases"`

	Errors []rawCode `json:"errors"`
	Enums  []struct {
		Name    string    `json:"name"`
		Entries []rawCode `json:"entries"`
	} `json:"enums"`

	Parsers   []rawParser   `json:"parsers"`
	ValueSets []rawValueSet `json:"parse_vsets"`
	Deparsers []rawDeparser `json:"deparsers"`

	Meters       []rawArray       `json:"meter_arrays"`
	Counters     []rawArray       `json:"counter_arrays"`
	Registers    []rawArray       `json:"register_arrays"`
	Calculations []rawCalculation `json:"calculations"`
	Checksums    []rawChecksum    `json:"checksums"`
	LearnLists   []rawList        `json:"learn_lists"`
	FieldLists   []rawList        `json:"field_lists"`
	Actions      []rawAction      `json:"actions"`
	Pipelines    []rawPipeline    `json:"pipelines"`

	Externs []struct {
		Name string `json:"name"`
		Type string `json:"type"`
	} `json:"extern_instances"`
}

// rawValue is the format's "type value object".
type rawValue struct {
	Type     string          `json:"type"`
	Value    json.RawMessage `json:"value"`
	Bitwidth int             `json:"bitwidth"`
}

type rawHeaderType struct {
	Name      string              `json:"name"`
	Fields    [][]json.RawMessage `json:"fields"`
	MaxLength int                 `json:"max_length"` // bytes
	LengthExp json.RawMessage     `json:"length_exp"`
}

type rawHeader struct {
	Name     string `json:"name"`
	ID       int    `json:"id"`
	Type     string `json:"header_type"`
	Metadata bool   `json:"metadata"`
}

type rawStack struct {
	Name    string `json:"name"`
	Type    string `json:"header_type"`
	Headers []int  `json:"header_ids"`
}

type rawUnionType struct {
	Name    string     `json:"name"`
	Headers [][]string `json:"headers"`
}

type rawUnion struct {
	Name    string `json:"name"`
	ID      int    `json:"id"`
	Type    string `json:"union_type"`
	Headers []int  `json:"header_ids"`
}

type rawUnionStack struct {
	Name   string `json:"name"`
	Type   string `json:"union_type"`
	Unions []int  `json:"header_union_ids"`
}

type rawParser struct {
	Name   string     `json:"name"`
	Init   *string    `json:"init_state"`
	States []rawState `json:"parse_states"`
}

type rawState struct {
	Name string `json:"name"`
	Ops  []struct {
		Op     string            `json:"op"`
		Params []json.RawMessage `json:"parameters"`
	} `json:"parser_ops"`
	Key         []rawValue      `json:"transition_key"`
	Transitions []rawTransition `json:"transitions"`
}

type rawTransition struct {
	Type  string  `json:"type"`
	Value *string `json:"value"`
	Mask  *string `json:"mask"`
	Next  *string `json:"next_state"`
}

type rawValueSet struct {
	Name  string `json:"name"`
	Width int    `json:"compressed_bitwidth"`
	Size  int    `json:"max_size"`
}

type rawDeparser struct {
	Name  string         `json:"name"`
	Order []string       `json:"order"`
	Ops   []rawPrimitive `json:"primitives"`
}

// rawArray is a counter, meter or register array.
type rawArray struct {
	Name    string   `json:"name"`
	Size    int      `json:"size"`
	Direct  bool     `json:"is_direct"`
	Binding string   `json:"binding"`
	Type    string   `json:"type"`
	Rates   int      `json:"rate_count"`
	Width   int      `json:"bitwidth"`
	Result  []string `json:"result_target"`
}

type rawCalculation struct {
	Name  string     `json:"name"`
	Algo  string     `json:"algo"`
	Input []rawValue `json:"input"`
}

type rawChecksum struct {
	Name        string          `json:"name"`
	Target      []string        `json:"target"`
	Type        string          `json:"type"`
	Calculation string          `json:"calculation"`
	Verify      *bool           `json:"verify"`
	Update      *bool           `json:"update"`
	Cond        json.RawMessage `json:"if_cond"`
}

type rawList struct {
	ID       int        `json:"id"`
	Name     string     `json:"name"`
	Elements []rawValue `json:"elements"`
}

type rawAction struct {
	Name   string `json:"name"`
	ID     int    `json:"id"`
	Params []struct {
		Name  string `json:"name"`
		Width int    `json:"bitwidth"`
	} `json:"runtime_data"`
	Body []rawPrimitive `json:"primitives"`
}

type rawPrimitive struct {
	Op     string     `json:"op"`
	Params []rawValue `json:"parameters"`
	Source struct {
		Fragment string `json:"source_fragment"`
	} `json:"source_info"`
}

// isNull tells whether a value is missing or null.
func isNull(m json.RawMessage) bool { return len(m) == 0 || string(m) == "null" }
