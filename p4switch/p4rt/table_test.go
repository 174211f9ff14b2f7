package p4rt

import (
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
)

const (
	forward = `action { action { action_id: 0x01000003 params { param_id: 1 value: "\x05" } params { param_id: 2 value: "\xaa\xbb" } } }`
	mark    = `action { action { action_id: 0x01000004 params { param_id: 1 value: "\x05" } } }`
	exact1  = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } ` + forward + `}`
	acl1    = `table_entry { table_id: 0x02000003 priority: 1 match { field_id: 1 exact { value: "\x06" } } ` + mark + `}`
	lpm1    = `table_entry { table_id: 0x02000002 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } ` + forward + `}`

	clone5     = `packet_replication_engine_entry { clone_session_entry { session_id: 5 replicas { port: "\x03" instance: 1 } packet_length_bytes: 100 } }`
	multicast5 = `packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 5 replicas { port: "\x03" instance: 1 } replicas { port: "\x03" instance: 2 } metadata: "m" } }`
)

func TestSection9_1_TableEntry_InsertReadDelete(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(exact1))
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		if n := len(b.fakes.last(t).entries); n != 1 {
			t.Fatalf("%d entries in the data plane", n)
		}
		c.fails(codes.AlreadyExists, c.insert(exact1))
		// Only the key counts in a DELETE.
		c.must(c.del(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } action { action { action_id: 77 } } idle_timeout_ns: -1 }`))
		c.expect(`table_entry { table_id: 0x02000001 }`)
		c.fails(codes.NotFound, c.del(exact1))
		c.fails(codes.NotFound, c.modify(exact1))
		if n := len(b.fakes.last(t).entries); n != 0 {
			t.Fatalf("%d entries in the data plane", n)
		}
	})
}

func TestSection9_1_TableEntry_ModifyReplacesAllButTheKey(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } ` + forward + `
			controller_metadata: 5 metadata: "cookie" idle_timeout_ns: 99 }`))
		next := `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } action { action { action_id: 0x01000002 } } metadata: "other" }`
		c.must(c.modify(next))
		c.expect(`table_entry { table_id: 0x02000001 }`, next)
		for _, e := range b.fakes.last(t).entries {
			if e.Action.Name != "ingress.drop" || e.IdleTimeoutNs != 0 {
				t.Errorf("the data plane has %+v", e)
			}
		}
		// Without an action nothing but the direct resources is touched.
		c.must(c.modify(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } metadata: "ignored" }`))
		c.expect(`table_entry { table_id: 0x02000001 }`, next)
	})
}

// Section 9.1.1 and 8.3: what a match must be like.
func TestSection9_1_1_MatchFormat(t *testing.T) {
	const acl = `table_entry { table_id: 0x02000003 action { action { action_id: 0x01000002 } } `
	const proto = `match { field_id: 1 exact { value: "\x06" } } `
	for _, tc := range []struct {
		name, entity string
		code         codes.Code
	}{
		{"all but exact left out", acl + `priority: 1 ` + proto + `}`, codes.OK},
		{"every kind", acl + `priority: 1 ` + proto + `match { field_id: 2 ternary { value: "\x01\x00" mask: "\x0f\x00" } }
			match { field_id: 3 range { low: "\x10" high: "\x20" } } match { field_id: 4 optional { value: "\x00" } }
			match { field_id: 5 lpm { value: "\xfd\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" prefix_len: 8 } } }`, codes.OK},
		{"exact left out", acl + `priority: 1 }`, codes.InvalidArgument},
		{"unknown field", acl + `priority: 1 ` + proto + `match { field_id: 9 exact { value: "\x06" } } }`, codes.InvalidArgument},
		{"field twice", acl + `priority: 1 ` + proto + proto + `}`, codes.InvalidArgument},
		{"field without value", acl + `priority: 1 match { field_id: 1 } }`, codes.InvalidArgument},
		{"wrong kind", acl + `priority: 1 match { field_id: 1 ternary { value: "\x06" mask: "\xff" } } }`, codes.InvalidArgument},
		{"empty byte string", acl + `priority: 1 match { field_id: 1 exact {} } }`, codes.InvalidArgument},
		{"too wide", acl + `priority: 1 match { field_id: 1 exact { value: "\x01\x00" } } }`, codes.InvalidArgument},
		{"ternary too wide by a bit", acl + `priority: 1 ` + proto + `match { field_id: 2 ternary { value: "\x10\x00" mask: "\x10\x00" } } }`, codes.InvalidArgument},
		{"ternary mask zero", acl + `priority: 1 ` + proto + `match { field_id: 2 ternary { value: "\x00" mask: "\x00" } } }`, codes.InvalidArgument},
		{"ternary bits outside the mask", acl + `priority: 1 ` + proto + `match { field_id: 2 ternary { value: "\x03" mask: "\x01" } } }`, codes.InvalidArgument},
		{"range upside down", acl + `priority: 1 ` + proto + `match { field_id: 3 range { low: "\x02" high: "\x01" } } }`, codes.InvalidArgument},
		{"range of everything", acl + `priority: 1 ` + proto + `match { field_id: 3 range { low: "\x00" high: "\xff\xff" } } }`, codes.InvalidArgument},
		{"prefix length 0", acl + `priority: 1 ` + proto + `match { field_id: 5 lpm { value: "\x00" } } }`, codes.InvalidArgument},
		{"prefix too long", acl + `priority: 1 ` + proto + `match { field_id: 5 lpm { value: "\x01" prefix_len: 129 } } }`, codes.InvalidArgument},
		{"prefix negative", acl + `priority: 1 ` + proto + `match { field_id: 5 lpm { value: "\x01" prefix_len: -1 } } }`, codes.InvalidArgument},
		{"bits behind the prefix", acl + `priority: 1 ` + proto + `match { field_id: 5 lpm { value: "\x01" prefix_len: 127 } } }`, codes.InvalidArgument},
		{"no priority", acl + proto + `}`, codes.InvalidArgument},
		{"negative priority", acl + `priority: -1 ` + proto + `}`, codes.InvalidArgument},
		{"priority where there is none", `table_entry { table_id: 0x02000001 priority: 1 match { field_id: 1 exact { value: "\x01" } } ` + forward + `}`, codes.InvalidArgument},
		{"unknown table", `table_entry { table_id: 99 }`, codes.InvalidArgument},
		{"table 0", `table_entry {}`, codes.InvalidArgument},
		{"keyless table", `table_entry { table_id: 0x02000004 ` + mark + `}`, codes.InvalidArgument},
		{"is_const", `table_entry { table_id: 0x02000001 is_const: true match { field_id: 1 exact { value: "\x01" } } ` + forward + `}`, codes.InvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			configured(t, func(_ *bench, c *controller) {
				if tc.code == codes.OK {
					c.must(c.insert(tc.entity))
					c.expect(`table_entry { table_id: 0x02000003 }`, tc.entity)
					return
				}
				c.fails(tc.code, c.insert(tc.entity))
				c.expect(`table_entry { table_id: 0x02000003 }`)
			})
		})
	}
}

func TestSection8_3_ReadWriteSymmetry_CanonicalByteStrings(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.must(c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x00\x00\x01" } }
			action { action { action_id: 0x01000003 params { param_id: 1 value: "\x00\x00\x05" } params { param_id: 2 value: "\x00\xaa\xbb" } } } }`))
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		c.fails(codes.AlreadyExists, c.insert(exact1)) // it is the same key
		c.must(c.insert(multicast5), c.insert(`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 6 replicas { port: "\x00\x03" } } }`))
		c.expect(`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 6 } }`,
			`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 6 replicas { port: "\x03" } } }`)
	})
}

func TestSection9_1_2_ActionSpecification(t *testing.T) {
	const key = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } `
	for _, tc := range []struct {
		name, action string
		code         codes.Code
	}{
		{"none", ``, codes.InvalidArgument},
		{"empty", `action {}`, codes.InvalidArgument},
		{"not in the P4Info", `action { action { action_id: 99 } }`, codes.InvalidArgument},
		{"not the table's", mark, codes.InvalidArgument},
		{"default only", `action { action { action_id: 0x01000001 } }`, codes.PermissionDenied},
		{"parameter missing", `action { action { action_id: 0x01000003 params { param_id: 1 value: "\x05" } } }`, codes.InvalidArgument},
		{"parameter unknown", `action { action { action_id: 0x01000002 params { param_id: 1 value: "\x05" } } }`, codes.InvalidArgument},
		{"parameter twice", `action { action { action_id: 0x01000003 params { param_id: 1 value: "\x05" } params { param_id: 1 value: "\x05" } params { param_id: 2 value: "\x05" } } }`, codes.InvalidArgument},
		{"parameter empty", `action { action { action_id: 0x01000003 params { param_id: 1 } params { param_id: 2 value: "\x05" } } }`, codes.InvalidArgument},
		{"parameter too wide", `action { action { action_id: 0x01000003 params { param_id: 1 value: "\x02\x00" } params { param_id: 2 value: "\x05" } } }`, codes.InvalidArgument},
		{"member for a direct table", `action { action_profile_member_id: 1 }`, codes.InvalidArgument},
		{"group for a direct table", `action { action_profile_group_id: 1 }`, codes.InvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			configured(t, func(_ *bench, c *controller) {
				c.fails(tc.code, c.insert(key+tc.action+`}`))
				c.expect(`table_entry { table_id: 0x02000001 }`)
			})
		})
	}
}

func TestSection9_1_TableEntry_FullTableStaysIntact(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		at := func(port string) string {
			return `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "` + port + `" } } ` + forward + `}`
		}
		c.must(c.insert(at(`\x01`)), c.insert(at(`\x02`)), c.insert(at(`\x03`)), c.insert(at(`\x04`)))
		c.fails(codes.ResourceExhausted, c.insert(at(`\x05`)))
		c.expect(`table_entry { table_id: 0x02000001 }`, at(`\x01`), at(`\x02`), at(`\x03`), at(`\x04`))
		c.must(c.del(at(`\x02`)))
		// The data plane may have less room than the program asks for.
		f := b.fakes.last(t)
		f.mu.Lock()
		f.room = 3
		f.mu.Unlock()
		c.fails(codes.ResourceExhausted, c.insert(at(`\x05`)))
		c.expect(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x05" } } }`)
	})
}

func TestSection9_1_3_DefaultEntry(t *testing.T) {
	const initial = `table_entry { table_id: 0x02000001 is_default_action: true action { action { action_id: 0x01000001 } } }`
	const read = `table_entry { table_id: 0x02000001 is_default_action: true }`
	configured(t, func(b *bench, c *controller) {
		c.expect(read, initial)
		next := `table_entry { table_id: 0x02000001 is_default_action: true ` + forward + ` metadata: "m" controller_metadata: 4 }`
		c.must(c.modify(next))
		c.expect(read, next)
		if a := b.fakes.last(t).defaults["ingress.exact"]; a.Name != "ingress.forward" {
			t.Errorf("the data plane has %v", a)
		}
		c.must(c.modify(`table_entry { table_id: 0x02000001 is_default_action: true }`)) // reset
		c.expect(read, initial)
		if _, ok := b.fakes.last(t).defaults["ingress.exact"]; ok {
			t.Error("the data plane has not been reset")
		}
		// The datapath knows what P4Info does not tell.
		c.expect(`table_entry { table_id: 0x02000004 is_default_action: true }`,
			`table_entry { table_id: 0x02000004 is_default_action: true action { action { action_id: 0x01000004 params { param_id: 1 value: "\x07" } } } }`)
		for _, bad := range []struct {
			u    *p4v1.Update
			code codes.Code
		}{
			{c.insert(next), codes.InvalidArgument},
			{c.del(next), codes.InvalidArgument},
			{c.modify(`table_entry { table_id: 0x02000001 is_default_action: true priority: 1 ` + forward + `}`), codes.InvalidArgument},
			{c.modify(`table_entry { table_id: 0x02000001 is_default_action: true match { field_id: 1 exact { value: "\x01" } } ` + forward + `}`), codes.InvalidArgument},
			{c.modify(`table_entry { table_id: 0x02000001 is_default_action: true idle_timeout_ns: 1 ` + forward + `}`), codes.InvalidArgument},
			{c.modify(`table_entry { table_id: 0x02000001 is_default_action: true action { action { action_id: 0x01000002 } } }`), codes.PermissionDenied}, // TABLE_ONLY
			{c.modify(`table_entry { table_id: 0x02000002 is_default_action: true ` + forward + `}`), codes.PermissionDenied},                              // const
			{c.modify(`table_entry { table_id: 0x02000002 is_default_action: true }`), codes.PermissionDenied},
			{c.modify(`table_entry { table_id: 0x02000006 is_default_action: true ` + forward + `}`), codes.PermissionDenied}, // indirect
		} {
			c.fails(bad.code, bad.u)
		}
		c.expect(read, initial)
	})
}

func TestSection9_1_4_ConstantTables(t *testing.T) {
	const first = `table_entry { table_id: 0x02000005 is_const: true priority: 2 match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } } action { action { action_id: 0x01000004 params { param_id: 1 value: "\x10" } } } }`
	const second = `table_entry { table_id: 0x02000005 is_const: true priority: 1 action { action { action_id: 0x01000004 params { param_id: 1 value: "\x00" } } } }`
	const key = `table_entry { table_id: 0x02000005 priority: 2 match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } } `
	configured(t, func(_ *bench, c *controller) {
		c.expect(`table_entry { table_id: 0x02000005 }`, first, second)
		c.fails(codes.PermissionDenied, c.insert(`table_entry { table_id: 0x02000005 priority: 9 `+mark+`}`))
		c.fails(codes.PermissionDenied, c.del(key+`}`))
		c.fails(codes.PermissionDenied, c.modify(key+mark+`}`))
		c.must(c.modify(key + `counter_data { packet_count: 7 } }`)) // a direct resource
		c.expect(key+`counter_data {} }`, `table_entry { table_id: 0x02000005 is_const: true priority: 2 match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } }
			action { action { action_id: 0x01000004 params { param_id: 1 value: "\x10" } } } counter_data { packet_count: 7 } }`)
		c.expect(`table_entry { table_id: 0x02000005 }`, first, second)
	})
}

func TestSection9_1_6_WildcardReads(t *testing.T) {
	const a = `table_entry { table_id: 0x02000003 priority: 11 match { field_id: 1 exact { value: "\x06" } } action { action { action_id: 0x01000002 } } metadata: "x" controller_metadata: 3 }`
	const bb = `table_entry { table_id: 0x02000003 priority: 12 match { field_id: 1 exact { value: "\x06" } } ` + mark + `}`
	const cc = `table_entry { table_id: 0x02000003 priority: 11 match { field_id: 1 exact { value: "\x07" } } ` + mark + `}`
	configured(t, func(_ *bench, c *controller) {
		c.must(c.insert(a), c.insert(bb), c.insert(cc), c.insert(exact1))
		c.expect(`table_entry { table_id: 0x02000003 }`, a, bb, cc)
		c.expect(`table_entry { table_id: 0x02000003 priority: 11 }`, a, cc)
		c.expect(`table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: "\x06" } } }`, a, bb)
		c.expect(`table_entry { table_id: 0x02000003 priority: 12 match { field_id: 1 exact { value: "\x06" } } }`, bb)
		c.expect(`table_entry { table_id: 0x02000003 action { action { action_id: 0x01000004 } } }`, bb, cc)
		c.expect(`table_entry { table_id: 0x02000003 metadata: "x" }`, a)
		c.expect(`table_entry { table_id: 0x02000003 controller_metadata: 3 }`, a)
		c.expect(`table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: "\x08" } } }`)
		got, err := c.read(entity(t, `table_entry {}`))
		if err != nil || len(got) != 6 { // ours, and the two of the constant table
			t.Errorf("%d entries in all tables, %v", len(got), err)
		}
		for _, bad := range []string{
			`table_entry { priority: 11 }`, `table_entry { table_id: 99 }`,
			`table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: "\x06\x00" } } }`,
			`table_entry { table_id: 0x02000002 time_since_last_hit {} }`,
		} {
			_, err := c.read(entity(t, bad))
			if got := codesOf(t, err); len(got) != 1 || got[0] != codes.InvalidArgument {
				t.Errorf("read %s: %v %v", bad, err, got)
			}
		}
	})
}

func TestSection9_1_7_DirectResources(t *testing.T) {
	const key = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } `
	const rate = `cir: 1 cburst: 2 pir: 3 pburst: 4`
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(key + forward + ` meter_config { ` + rate + ` } counter_data { byte_count: 10 packet_count: 1 } }`))
		c.expect(key+`}`, exact1) // not asked for
		c.expect(key+`meter_config {} counter_data {} }`, key+forward+` meter_config { `+rate+` } counter_data { byte_count: 10 packet_count: 1 } }`)
		c.expect(`direct_counter_entry { `+key+`} }`, `direct_counter_entry { `+key+`} data { byte_count: 10 packet_count: 1 } }`)
		c.expect(`direct_meter_entry { table_entry { table_id: 0x02000001 } }`, `direct_meter_entry { `+key+`} config { `+rate+` } }`)

		c.must(c.modify(key + forward + `}`)) // resets the meter, leaves the counter
		c.expect(key+`meter_config {} counter_data {} }`, key+forward+` counter_data { byte_count: 10 packet_count: 1 } }`)
		if n := len(b.fakes.last(t).meters); n != 0 {
			t.Errorf("%d meters in the data plane", n)
		}
		c.must(c.modify(`direct_meter_entry { ` + key + `} config { ` + rate + ` } }`))
		c.must(c.modify(`direct_counter_entry { ` + key + `} data { packet_count: 5 } }`))
		c.must(c.modify(`direct_counter_entry { ` + key + `} }`)) // no data, no change
		c.expect(key+`meter_config {} counter_data {} }`, key+forward+` meter_config { `+rate+` } counter_data { packet_count: 5 } }`)
		c.must(c.modify(`direct_meter_entry { ` + key + `} }`))
		c.expect(key+`meter_config {} }`, exact1)

		const dflt = `table_entry { table_id: 0x02000001 is_default_action: true `
		c.must(c.modify(`direct_counter_entry { ` + dflt + `} data { packet_count: 8 } }`))
		c.expect(`direct_counter_entry { `+dflt+`} }`, `direct_counter_entry { `+dflt+`} data { packet_count: 8 } }`)
		c.must(c.modify(dflt + `}`))
		c.expect(`direct_counter_entry { `+dflt+`} }`, `direct_counter_entry { `+dflt+`} data {} }`)
	})
}

func TestSection9_1_7_DirectResources_Errors(t *testing.T) {
	const key = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } `
	const other = `table_entry { table_id: 0x02000002 match { field_id: 1 lpm { value: "\x0a\x00\x00\x00" prefix_len: 8 } } `
	configured(t, func(_ *bench, c *controller) {
		for _, bad := range []struct {
			u    *p4v1.Update
			code codes.Code
		}{
			{c.insert(other + forward + ` counter_data {} }`), codes.InvalidArgument},
			{c.insert(other + forward + ` meter_config {} }`), codes.InvalidArgument},
			{c.insert(other + forward + ` meter_counter_data {} }`), codes.InvalidArgument},
			{c.insert(key + forward + ` meter_counter_data { green { packet_count: 1 } } }`), codes.InvalidArgument},
			{c.insert(key + forward + ` counter_data { byte_count: -1 } }`), codes.InvalidArgument},
			{c.insert(key + forward + ` meter_config { cir: -1 } }`), codes.InvalidArgument},
			{c.insert(key + forward + ` meter_config { eburst: 1 } }`), codes.InvalidArgument},
			{c.insert(key + forward + ` time_since_last_hit {} }`), codes.InvalidArgument},
			{c.insert(key + forward + ` idle_timeout_ns: -1 }`), codes.InvalidArgument},
			{c.insert(other + forward + ` idle_timeout_ns: 1 }`), codes.InvalidArgument},
			{c.modify(`direct_counter_entry { ` + key + `} data {} }`), codes.NotFound},
			{c.modify(`direct_meter_entry { ` + key + `} }`), codes.NotFound},
			{c.insert(`direct_counter_entry { ` + key + `} data {} }`), codes.InvalidArgument},
			{c.del(`direct_meter_entry { ` + key + `} }`), codes.InvalidArgument},
		} {
			c.fails(bad.code, bad.u)
		}
		c.must(c.insert(lpm1))
		c.fails(codes.InvalidArgument, c.modify(`direct_counter_entry { `+other+`} data {} }`))
		_, err := c.read(entity(t, `direct_counter_entry { `+key+`} }`))
		if got := codesOf(t, err); len(got) != 1 || got[0] != codes.NotFound {
			t.Errorf("reading the counter of no entry: %v", err)
		}
		c.expect(`table_entry { table_id: 0x02000001 }`)
	})
}

func TestSection9_1_8_IdleTimeout(t *testing.T) {
	const e = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } ` + forward + ` idle_timeout_ns: 1000 metadata: "m" controller_metadata: 2 }`
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(e))
		c.expect(`table_entry { table_id: 0x02000001 }`, e)
		got, err := c.read(entity(t, `table_entry { table_id: 0x02000001 time_since_last_hit {} }`))
		if err != nil || len(got) != 1 || got[0].GetTableEntry().GetTimeSinceLastHit().GetElapsedNs() != 42 {
			t.Errorf("got %v, %v", got, err)
		}
		f := b.fakes.last(t)
		for _, d := range f.entries {
			f.sink.Idle(d)
			d.Match = []datapath.Match{{Value: []byte{0, 9}}}
			f.sink.Idle(d) // no such entry any more
		}
		n := c.next().GetIdleTimeoutNotification()
		if len(n.GetTableEntry()) != 1 || n.GetTimestamp() == 0 || string(n.GetTableEntry()[0].GetMetadata()) != "m" || n.GetTableEntry()[0].GetIdleTimeoutNs() != 1000 {
			t.Errorf("got %v", n)
		}
		c.silent()
	})
}
