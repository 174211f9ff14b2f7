package v1model

import (
	"encoding/json"
	"fmt"
)

type rawPipeline struct {
	Name     string       `json:"name"`
	Init     *string      `json:"init_table"`
	Tables   []rawTable   `json:"tables"`
	Profiles []rawProfile `json:"action_profiles"`

	Conditions []struct {
		Name   string   `json:"name"`
		Expr   rawValue `json:"expression"`
		True   *string  `json:"true_next"`
		False  *string  `json:"false_next"`
		Source struct {
			Fragment string `json:"source_fragment"`
		} `json:"source_info"`
	} `json:"conditionals"`

	Calls []struct {
		Name   string  `json:"name"`
		Action int     `json:"action_id"`
		Next   *string `json:"next_node"`
	} `json:"action_calls"`
}

type rawProfile struct {
	Name     string `json:"name"`
	MaxSize  int    `json:"max_size"`
	Selector *struct {
		Algo  string     `json:"algo"`
		Input []rawValue `json:"input"`
	} `json:"selector"`
}

type rawTable struct {
	Name      string   `json:"name"`
	MatchType string   `json:"match_type"`
	Type      string   `json:"type"`
	Profile   string   `json:"action_profile"`
	MaxSize   int      `json:"max_size"`
	Counters  bool     `json:"with_counters"`
	Timeout   bool     `json:"support_timeout"`
	Meter     *string  `json:"direct_meters"`
	Key       []rawKey `json:"key"`
	Actions   []int    `json:"action_ids"`

	Next     map[string]*string `json:"next_tables"`
	BaseNext *string            `json:"base_default_next"`

	Default *struct {
		Action     int      `json:"action_id"`
		Const      bool     `json:"action_const"`
		Data       []string `json:"action_data"`
		EntryConst bool     `json:"action_entry_const"`
	} `json:"default_entry"`
	Entries []rawEntry `json:"entries"`
}

type rawKey struct {
	Kind   string            `json:"match_type"`
	Name   string            `json:"name"`
	Target []json.RawMessage `json:"target"`
	Mask   *string           `json:"mask"`
}

type rawEntry struct {
	Match []struct {
		Kind      string          `json:"match_type"`
		Key       json.RawMessage `json:"key"`
		Mask      string          `json:"mask"`
		Start     string          `json:"start"`
		End       string          `json:"end"`
		PrefixLen int             `json:"prefix_length"`
	} `json:"match_key"`
	Priority int `json:"priority"`
	Action   struct {
		ID   int      `json:"action_id"`
		Data []string `json:"action_data"`
	} `json:"action_entry"`
}

// rawCode is a ["name", code] pair.
type rawCode NamedCode

func (c *rawCode) UnmarshalJSON(data []byte) error {
	return pair(data, &c.Name, &c.Code)
}

// rawAlias is ["architecture's name", ["header", "field"]].
type rawAlias struct {
	Name   string
	Target []string
}

func (a *rawAlias) UnmarshalJSON(data []byte) error {
	return pair(data, &a.Name, &a.Target)
}

func pair(data []byte, a, b any) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(data, &parts); err != nil {
		return err
	}
	if len(parts) != 2 {
		return fmt.Errorf("a pair with %d elements", len(parts))
	}
	if err := json.Unmarshal(parts[0], a); err != nil {
		return err
	}
	return json.Unmarshal(parts[1], b)
}
