package v1model_test

import (
	"errors"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// small is a program with a bit of everything, short enough to fuzz.
const small = `{"__meta__":{"version":[2,23]},
"header_types":[
 {"name":"m_t","fields":[["ingress_port",9],["egress_spec",9],["egress_port",9],["instance_type",32],["packet_length",32],["x",5,true]]},
 {"name":"h_t","fields":[["a",8],["v","*"]],"max_length":9}],
"headers":[{"name":"standard_metadata","id":0,"header_type":"m_t","metadata":true},
 {"name":"h","id":1,"header_type":"h_t"},{"name":"s[0]","id":2,"header_type":"h_t"},{"name":"u.h","id":3,"header_type":"h_t"}],
"header_stacks":[{"name":"s","header_type":"h_t","header_ids":[2]}],
"header_union_types":[{"name":"u_t","headers":[["h","h_t"]]}],
"header_unions":[{"name":"u","id":0,"union_type":"u_t","header_ids":[3]}],
"header_union_stacks":[{"name":"us","union_type":"u_t","header_union_ids":[0]}],
"errors":[["NoError",0]],"parse_vsets":[{"name":"set","compressed_bitwidth":8,"max_size":4}],
"parsers":[{"name":"parser","init_state":"start","parse_states":[{"name":"start","parser_ops":[
  {"op":"extract_VL","parameters":[{"type":"stack","value":"s"},{"type":"expression","value":{"type":"hexstr","value":"0x8"}}]},
  {"op":"set","parameters":[{"type":"field","value":["standard_metadata","x"]},{"type":"lookahead","value":[0,8]}]},
  {"op":"verify","parameters":[{"type":"bool","value":true},{"type":"hexstr","value":"0x1"}]}],
 "transition_key":[{"type":"stack_field","value":["s","a"]}],
 "transitions":[{"type":"hexstr","value":"0x01","mask":"0xff","next_state":"start"},{"type":"parse_vset","value":"set","next_state":null},{"type":"default","next_state":null}]}]}],
"deparsers":[{"name":"deparser","order":["h"]}],
"counter_arrays":[{"name":"c","size":2}],"register_arrays":[{"name":"r","size":2,"bitwidth":70}],
"meter_arrays":[{"name":"mt","size":2,"type":"bytes","rate_count":2}],
"calculations":[{"name":"calc","algo":"crc16","input":[{"type":"field","value":["h","a"]},{"type":"hexstr","value":"0x5","bitwidth":4},{"type":"payload","value":null}]}],
"checksums":[{"name":"k","target":["h","a"],"type":"generic","calculation":"calc","verify":true,"update":true,"if_cond":{"type":"expression","value":{"op":"valid","left":null,"right":{"type":"header","value":"h"}}}}],
"learn_lists":[{"id":1,"name":"d","elements":[{"type":"field","value":["h","a"]}]}],
"field_lists":[{"id":1,"name":"f","elements":[{"type":"field","value":["standard_metadata","x"]}]}],
"actions":[{"name":"set","id":0,"runtime_data":[{"name":"p","bitwidth":8}],"primitives":[
 {"op":"assign","parameters":[{"type":"field","value":["h","a"]},{"type":"expression","value":{"type":"expression","value":{"op":"?","cond":{"type":"bool","value":true},"left":{"type":"local","value":0},"right":{"type":"hexstr","value":"-0x1"}}}}]},
 {"op":"register_write","parameters":[{"type":"register_array","value":"r"},{"type":"hexstr","value":"0x0"},{"type":"field","value":["h","a"]}]},
 {"op":"push","parameters":[{"type":"header_stack","value":"s"},{"type":"hexstr","value":"0x1"}]}]},
 {"name":"end","id":1,"runtime_data":[],"primitives":[{"op":"exit","parameters":[]}]}],
"pipelines":[{"name":"ingress","init_table":"t","tables":[{"name":"t","match_type":"range","type":"simple","max_size":4,
  "key":[{"match_type":"exact","target":["h","a"],"mask":"0x0f"},{"match_type":"range","target":["standard_metadata","x"]}],
  "action_ids":[0,1],"next_tables":{"set":"n","end":null},"default_entry":{"action_id":1,"action_data":[]},
  "entries":[{"match_key":[{"match_type":"exact","key":"0x01"},{"match_type":"range","start":"0x01","end":"0x02"}],"priority":1,"action_entry":{"action_id":0,"action_data":["0x07"]}}]}],
 "conditionals":[{"name":"n","expression":{"type":"expression","value":{"op":"<","left":{"type":"field","value":["h","a"]},"right":{"type":"hexstr","value":"0x3"}}},"true_next":null,"false_next":null}]},
 {"name":"egress","init_table":null}]}`

// FuzzLoad: whatever the bytes, Load returns a program or an *Error.
func FuzzLoad(f *testing.F) {
	f.Add([]byte(small))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := v1model.Load(data)
		var typed *v1model.Error
		if err != nil && !errors.As(err, &typed) {
			t.Fatalf("untyped error %v", err)
		}
		if err == nil && (p.Parser == nil || p.Deparser == nil || p.Ingress == nil || p.Egress == nil) {
			t.Fatal("a program without its parts")
		}
	})
}

func TestLoadSmall(t *testing.T) {
	p := load(t, []byte(small))
	if len(p.Tables) != 1 || len(p.Tables[0].Entries) != 1 || len(p.ValueSets) != 1 {
		t.Errorf("loaded %+v", p)
	}
}
