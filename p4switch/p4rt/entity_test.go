package p4rt

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

const (
	member1 = `action_profile_member { action_profile_id: 0x11000001 member_id: 1 action { action_id: 0x01000004 params { param_id: 1 value: "\x01" } } }`
	member2 = `action_profile_member { action_profile_id: 0x11000001 member_id: 2 action { action_id: 0x01000004 params { param_id: 1 value: "\x02" } } }`
	group1  = `action_profile_group { action_profile_id: 0x11000001 group_id: 1 max_size: 4 members { member_id: 1 weight: 1 } members { member_id: 2 weight: 2 } }`

	selectedKey = `table_entry { table_id: 0x02000006 match { field_id: 1 exact { value: "\x01" } } `
	profiledKey = `table_entry { table_id: 0x02000007 match { field_id: 1 exact { value: "\x01" } } `
)

// refusal is an update that has to fail.
type refusal struct {
	u    *p4v1.Update
	code codes.Code
}

func (c *controller) refuses(rs ...refusal) {
	c.t.Helper()
	for _, r := range rs {
		c.fails(r.code, r.u)
	}
}

func TestSection9_2_1_ActionProfileMembers(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.must(c.insert(member1), c.insert(member2))
		c.expect(`action_profile_member {}`, member1, member2)
		c.expect(`action_profile_member { action_profile_id: 0x11000001 member_id: 2 }`, member2)
		c.expect(`action_profile_member { action_profile_id: 0x11000002 }`)
		changed := `action_profile_member { action_profile_id: 0x11000001 member_id: 2 action { action_id: 0x01000003 params { param_id: 1 value: "\x01" } params { param_id: 2 value: "\x01" } } }`
		c.must(c.modify(changed))
		c.expect(`action_profile_member { action_profile_id: 0x11000001 member_id: 2 }`, changed)

		profile := func(id, action string) string {
			return `action_profile_member { action_profile_id: 0x11000002 member_id: ` + id + ` ` + action + `}`
		}
		const action = `action { action_id: 0x01000004 params { param_id: 1 value: "\x01" } } `
		c.must(c.insert(profile("1", action)), c.insert(profile("2", action)))
		c.refuses(
			refusal{c.insert(profile("3", action)), codes.ResourceExhausted}, // its size is 2
			refusal{c.insert(member1), codes.AlreadyExists},
			refusal{c.modify(`action_profile_member { action_profile_id: 0x11000001 member_id: 9 ` + action + `}`), codes.NotFound},
			refusal{c.del(`action_profile_member { action_profile_id: 0x11000001 member_id: 9 }`), codes.NotFound},
			refusal{c.insert(`action_profile_member { action_profile_id: 0x11000001 member_id: 9 }`), codes.InvalidArgument},
			refusal{c.modify(`action_profile_member { action_profile_id: 0x11000001 member_id: 1 }`), codes.InvalidArgument},
			refusal{c.insert(`action_profile_member { action_profile_id: 0x11000001 ` + action + `}`), codes.InvalidArgument},
			refusal{c.insert(`action_profile_member { action_profile_id: 7 member_id: 9 ` + action + `}`), codes.InvalidArgument},
			refusal{c.insert(`action_profile_member { action_profile_id: 0x11000001 member_id: 9 action { action_id: 0x01000002 } }`), codes.InvalidArgument},
		)
		c.must(c.insert(profiledKey + `action { action_profile_member_id: 1 } }`))
		c.refuses(
			refusal{c.del(profile("1", "")), codes.FailedPrecondition}, // in use
			refusal{c.modify(profiledKey + `action { action_profile_member_id: 9 } }`), codes.NotFound},
			refusal{c.modify(profiledKey + `action { action_profile_member_id: 0 } }`), codes.InvalidArgument},
			refusal{c.modify(profiledKey + `action { action_profile_group_id: 1 } }`), codes.InvalidArgument},
			refusal{c.modify(profiledKey + `action { ` + action + ` } }`), codes.InvalidArgument},
			refusal{c.modify(profiledKey + `action { action_profile_action_set {} } }`), codes.InvalidArgument},
		)
		c.must(c.modify(profiledKey + `action { action_profile_member_id: 2 } }`))
		c.must(c.del(profile("1", "")))
		c.must(c.del(profiledKey + `}`))
		c.must(c.del(profile("2", "")))
	})
}

func TestSection9_2_2_ActionProfileGroups(t *testing.T) {
	group := func(body string) string {
		return `action_profile_group { action_profile_id: 0x11000001 ` + body + `}`
	}
	configured(t, func(b *bench, c *controller) {
		c.refuses(refusal{c.insert(group1), codes.NotFound}) // no such members
		c.must(c.insert(member1), c.insert(member2))
		c.must(c.insert(group1))
		c.expect(`action_profile_group {}`, group1)
		c.expect(group(`group_id: 1`), group1)
		if w := b.fakes.last(t).groups["ingress.selector1"]; w[1] != 1 || w[2] != 2 {
			t.Errorf("the data plane has %v", w)
		}
		c.refuses(
			refusal{c.insert(group1), codes.AlreadyExists},
			refusal{c.insert(group(``)), codes.InvalidArgument},
			refusal{c.modify(group(`group_id: 9`)), codes.NotFound},
			refusal{c.del(group(`group_id: 9`)), codes.NotFound},
			refusal{c.modify(group(`group_id: 1 max_size: 5`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 max_size: 9`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 max_size: -1`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 members { member_id: 1 }`)), codes.InvalidArgument}, // weight 0
			refusal{c.insert(group(`group_id: 2 members { member_id: 1 weight: -1 }`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 members { member_id: 1 weight: 1 } members { member_id: 1 weight: 1 }`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 members { member_id: 9 weight: 1 }`)), codes.NotFound},
			refusal{c.insert(group(`group_id: 2 members { member_id: 1 weight: 1 watch_port: "\x01" }`)), codes.InvalidArgument},
			refusal{c.insert(group(`group_id: 2 members { member_id: 1 weight: 9 }`)), codes.ResourceExhausted},
			refusal{c.insert(group(`group_id: 2 max_size: 2 members { member_id: 1 weight: 3 }`)), codes.ResourceExhausted},
			refusal{c.insert(`action_profile_group { action_profile_id: 0x11000002 group_id: 1 }`), codes.InvalidArgument}, // no selector
			refusal{c.del(member1), codes.FailedPrecondition},                                                              // in a group
		)
		// All groups together may weigh 16.
		c.must(c.insert(group(`group_id: 2 members { member_id: 1 weight: 8 }`)))
		c.refuses(refusal{c.insert(group(`group_id: 3 members { member_id: 1 weight: 6 }`)), codes.ResourceExhausted})
		c.must(c.insert(group(`group_id: 3 members { member_id: 1 weight: 5 }`)))
		c.must(c.del(group(`group_id: 2`)), c.del(group(`group_id: 3`)))

		c.must(c.insert(selectedKey + `action { action_profile_group_id: 1 } }`))
		c.refuses(
			refusal{c.del(group(`group_id: 1`)), codes.FailedPrecondition},
			refusal{c.modify(selectedKey + `action { action_profile_group_id: 9 } }`), codes.NotFound},
			refusal{c.modify(selectedKey + `action { action_profile_action_set {} } }`), codes.InvalidArgument}, // mixed
		)
		c.must(c.modify(group(`group_id: 1 max_size: 4`))) // empty
		c.must(c.del(member1))
		c.must(c.modify(selectedKey + `action { action_profile_member_id: 2 } }`))
		c.must(c.del(group(`group_id: 1`)))
	})
}

func TestSection9_2_3_OneShotActionSets(t *testing.T) {
	set := func(body string) string {
		return selectedKey + `action { action_profile_action_set { ` + body + ` } } }`
	}
	one := func(value, rest string) string {
		return `action_profile_actions { action { action_id: 0x01000004 params { param_id: 1 value: "` + value + `" } } ` + rest + `} `
	}
	configured(t, func(b *bench, c *controller) {
		f := b.fakes.last(t)
		// The same action twice stays twice.
		first := set(one(`\x01`, `weight: 2`) + one(`\x01`, `weight: 2`) + one(`\x02`, `weight: 1`))
		c.must(c.insert(first))
		c.expect(`table_entry { table_id: 0x02000006 }`, first)
		c.expect(`action_profile_member {}`)
		c.expect(`action_profile_group {}`)
		if len(f.members) != 3 || len(f.groups) != 1 {
			t.Fatalf("the data plane has %v, %v", f.members, f.groups)
		}
		second := set(one(`\x03`, `weight: 8`))
		c.must(c.modify(second))
		c.expect(`table_entry { table_id: 0x02000006 }`, second)
		if len(f.members) != 1 || len(f.groups) != 1 {
			t.Fatalf("after MODIFY the data plane has %v, %v", f.members, f.groups)
		}
		c.refuses(
			refusal{c.insert(member1), codes.InvalidArgument}, // mixed
			refusal{c.insert(group1), codes.InvalidArgument},
			refusal{c.modify(selectedKey + `action { action_profile_member_id: 1 } }`), codes.InvalidArgument},
			refusal{c.modify(set(one(`\x01`, ``))), codes.InvalidArgument}, // weight 0
			refusal{c.modify(set(one(`\x01`, `weight: 9`))), codes.InvalidArgument},
			refusal{c.modify(set(one(`\x01\x00`, `weight: 1`))), codes.InvalidArgument},
			refusal{c.modify(set(one(`\x01`, `weight: 1 watch_port: "\x01"`))), codes.InvalidArgument},
			refusal{c.modify(set(`action_selection_mode: RANDOM`)), codes.Unimplemented},
			refusal{c.modify(set(`size_semantics: SUM_OF_MEMBERS`)), codes.Unimplemented},
			refusal{c.modify(set(`action_profile_actions { action { action_id: 0x01000002 } weight: 1 }`)), codes.InvalidArgument},
		)
		c.expect(`table_entry { table_id: 0x02000006 }`, second)
		c.must(c.modify(set(one(`\x01`, `weight: 1`) + `size_semantics: SUM_OF_WEIGHTS`)))
		c.must(c.del(selectedKey + `}`))
		if len(f.members) != 0 || len(f.groups) != 0 {
			t.Fatalf("after DELETE the data plane has %v, %v", f.members, f.groups)
		}
		c.must(c.insert(member1)) // the other way is free again
	})
}

func TestSection9_3_2_CounterEntry(t *testing.T) {
	cell := func(i, data string) string {
		return `counter_entry { counter_id: 0x12000001 index { index: ` + i + ` } ` + data + `}`
	}
	configured(t, func(_ *bench, c *controller) {
		c.must(c.modify(cell("2", `data { byte_count: 7 packet_count: 1 } `)))
		c.must(c.modify(cell("1", ``))) // no data, no change
		c.expect(cell("2", ``), cell("2", `data { byte_count: 7 packet_count: 1 } `))
		c.expect(`counter_entry {}`, cell("0", `data {}`), cell("1", `data {}`), cell("2", `data { byte_count: 7 packet_count: 1 } `), cell("3", `data {}`))
		c.must(c.modify(`counter_entry { counter_id: 0x12000001 data { packet_count: 3 } }`)) // all of them
		c.expect(cell("0", ``), cell("0", `data { packet_count: 3 } `))
		c.refuses(
			refusal{c.insert(cell("0", `data {}`)), codes.InvalidArgument},
			refusal{c.del(cell("0", ``)), codes.InvalidArgument},
			refusal{c.modify(cell("-1", `data {}`)), codes.InvalidArgument},
			refusal{c.modify(cell("4", `data {}`)), codes.OutOfRange},
			refusal{c.modify(cell("0", `data { byte_count: -1 }`)), codes.InvalidArgument},
			refusal{c.modify(`counter_entry { counter_id: 5 data {} }`), codes.InvalidArgument},
		)
		for q, code := range map[string]codes.Code{
			cell("4", ``): codes.OutOfRange, cell("-1", ``): codes.InvalidArgument,
			`counter_entry { index { index: 1 } }`: codes.InvalidArgument, `counter_entry { counter_id: 5 }`: codes.InvalidArgument,
		} {
			_, err := c.read(entity(t, q))
			if got := codesOf(t, err); len(got) != 1 || got[0] != code {
				t.Errorf("read %s: %v, want %v", q, got, code)
			}
		}
	})
}

func TestSection9_4_MeterEntry(t *testing.T) {
	cell := func(id, i, rest string) string {
		return `meter_entry { meter_id: ` + id + ` index { index: ` + i + ` } ` + rest + `}`
	}
	const two, three = `0x14000002`, `0x14000003`
	const rate = `config { cir: 1 cburst: 2 pir: 3 pburst: 4 } `
	configured(t, func(b *bench, c *controller) {
		m := func(i, rest string) string { return cell(`0x14000001`, i, rest) }
		c.expect(m("1", ``), m("1", ``)) // green for all
		c.must(c.modify(m("1", rate)))
		c.expect(`meter_entry { meter_id: 0x14000001 }`, m("0", ``), m("1", rate), m("2", ``))
		if got := b.fakes.last(t).meters["ingress.meter1"]; got != (datapath.MeterConfig{CIR: 1, CBurst: 2, PIR: 3, PBurst: 4}) {
			t.Errorf("the data plane has %v", got)
		}
		c.must(c.modify(`meter_entry { meter_id: 0x14000001 }`)) // back to the default, all
		c.expect(`meter_entry { meter_id: 0x14000001 }`, m("0", ``), m("1", ``), m("2", ``))
		single := `config { cir: 1 cburst: 2 pir: 1 pburst: 2 } `
		c.must(c.modify(cell(two, "0", single)), c.modify(cell(three, "0", single)))
		c.refuses(
			refusal{c.insert(m("0", rate)), codes.InvalidArgument},
			refusal{c.del(m("0", ``)), codes.InvalidArgument},
			refusal{c.modify(m("-1", rate)), codes.InvalidArgument},
			refusal{c.modify(m("3", rate)), codes.OutOfRange},
			refusal{c.modify(m("0", `config { cir: 5 pir: 4 }`)), codes.InvalidArgument},
			refusal{c.modify(m("0", `config { eburst: 4 }`)), codes.InvalidArgument},
			refusal{c.modify(m("0", `counter_data { red { packet_count: 1 } }`)), codes.InvalidArgument},
			refusal{c.modify(cell(two, "0", rate)), codes.InvalidArgument},
			refusal{c.modify(cell(two, "0", `config { cir: 1 pir: 1 eburst: 1 }`)), codes.InvalidArgument},
			refusal{c.modify(cell(three, "0", rate)), codes.InvalidArgument},
			refusal{c.modify(cell(three, "0", `config { cir: 1 pir: 1 eburst: 1 }`)), codes.Unimplemented},
			refusal{c.modify(cell("5", "0", rate)), codes.InvalidArgument},
		)
	})
}

// What meters have counted by colour is read where it is asked for, and can only be cleared. A new rate leaves it, and so does a pipeline that is reconciled.
func TestSection9_4_MeterCounterData(t *testing.T) {
	const (
		cell   = `meter_entry { meter_id: 0x14000001 index { index: 1 } `
		entry  = `table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } `
		direct = `direct_meter_entry { ` + entry + `} `
		rate   = `config { cir: 1 cburst: 2 pir: 3 pburst: 4 } `
		some   = `green { packet_count: 1 byte_count: 10 } yellow { packet_count: 2 byte_count: 20 } red { packet_count: 3 byte_count: 30 } `
		none   = `green {} yellow {} red {} `
	)
	counted := datapath.MeterCounts{Green: datapath.Counts{Packets: 1, Bytes: 10}, Yellow: datapath.Counts{Packets: 2, Bytes: 20}, Red: datapath.Counts{Packets: 3, Bytes: 30}}
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(entry + forward + ` meter_counter_data {} }`))
		pass := func() {
			f, p := b.fakes.last(t), b.srv.live.Load()
			_, e, err := p.entryOf(entity(t, entry+`}`).GetTableEntry())
			for _, m := range []datapath.MeterCell{{Name: "ingress.meter", Index: 1}, {Entry: &e.dp}} {
				err = errors.Join(err, f.SetMeterCounts(m, counted))
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		reads := func(want string) {
			t.Helper()
			c.expect(cell+`counter_data {} }`, cell+rate+`counter_data { `+want+`} }`)
			c.expect(direct+`counter_data {} }`, direct+rate+`counter_data { `+want+`} }`)
			c.expect(entry+`meter_counter_data {} }`, entry+forward+` meter_counter_data { `+want+`} }`)
		}
		pass()
		c.must(c.modify(cell+rate+`}`), c.modify(direct+rate+`}`))
		reads(some)
		c.expect(cell+`}`, cell+rate+`}`) // not asked for
		c.expect(direct+`}`, direct+rate+`}`)
		c.expect(entry+`}`, exact1)
		if err := c.config(reconcile, config(t, 5)); err != nil {
			t.Fatal(err)
		}
		reads(some)
		c.refuses(
			refusal{c.modify(cell + rate + `counter_data { green { byte_count: 1 } } }`), codes.InvalidArgument},
			refusal{c.modify(direct + rate + `counter_data { yellow { packet_count: 1 } } }`), codes.InvalidArgument},
			refusal{c.modify(entry + forward + ` meter_counter_data { red { byte_count: -1 } } }`), codes.InvalidArgument},
		)
		reads(some)
		c.must(c.modify(cell+rate+`counter_data {} }`), c.modify(direct+rate+`counter_data { `+none+`} }`))
		reads(none)
		pass()
		c.must(c.modify(cell+rate+`counter_data { `+none+`} }`), c.modify(entry+forward+` meter_config { cir: 1 cburst: 2 pir: 3 pburst: 4 } meter_counter_data {} }`))
		reads(none)
	})
}

func TestSection9_5_1_MulticastGroups(t *testing.T) {
	group := func(body string) string {
		return `packet_replication_engine_entry { multicast_group_entry { ` + body + ` } }`
	}
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(multicast5))
		c.must(c.insert(group(`multicast_group_id: 6 replicas { egress_port: 7 instance: 65535 }`))) // the deprecated form
		c.expect(group(``), multicast5, group(`multicast_group_id: 6 replicas { egress_port: 7 instance: 65535 }`))
		c.expect(group(`multicast_group_id: 6`), group(`multicast_group_id: 6 replicas { egress_port: 7 instance: 65535 }`))
		if got := b.fakes.last(t).multicast[5]; !slices.Equal(got, []datapath.Replica{{Port: 3, Instance: 1}, {Port: 3, Instance: 2}}) {
			t.Errorf("the data plane has %v", got)
		}
		c.must(c.modify(group(`multicast_group_id: 5 replicas { port: "\x01\xfe" } metadata: "n"`)))
		c.expect(group(`multicast_group_id: 5`), group(`multicast_group_id: 5 replicas { port: "\x01\xfe" } metadata: "n"`))
		c.refuses(
			refusal{c.insert(multicast5), codes.AlreadyExists},
			refusal{c.insert(group(``)), codes.InvalidArgument},
			refusal{c.insert(group(`multicast_group_id: 65536`)), codes.InvalidArgument},
			refusal{c.modify(group(`multicast_group_id: 9`)), codes.NotFound},
			refusal{c.del(group(`multicast_group_id: 9`)), codes.NotFound},
			refusal{c.insert(group(`multicast_group_id: 9 replicas {}`)), codes.InvalidArgument},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { port: "" }`)), codes.OutOfRange},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { port: "\x02\x00" }`)), codes.OutOfRange},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { egress_port: 512 }`)), codes.OutOfRange},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { port: "\x01" instance: 65536 }`)), codes.InvalidArgument},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { port: "\x01" } replicas { port: "\x01" }`)), codes.InvalidArgument},
			refusal{c.insert(group(`multicast_group_id: 9 replicas { port: "\x01" backup_replicas { port: "\x02" } }`)), codes.Unimplemented},
			refusal{c.insert(`packet_replication_engine_entry {}`), codes.InvalidArgument},
		)
		c.must(c.del(group(`multicast_group_id: 5`)), c.del(group(`multicast_group_id: 6`)))
		c.expect(group(``))
		if got := b.fakes.last(t).multicast[5]; got != nil {
			t.Errorf("the data plane has %v", got)
		}
	})
}

func TestSection9_5_2_CloneSessions(t *testing.T) {
	session := func(body string) string {
		return `packet_replication_engine_entry { clone_session_entry { ` + body + ` } }`
	}
	configured(t, func(_ *bench, c *controller) {
		c.must(c.insert(clone5))
		c.expect(session(``), clone5)
		c.must(c.modify(session(`session_id: 5 replicas { port: "\x04" }`)))
		c.expect(session(`session_id: 5`), session(`session_id: 5 replicas { port: "\x04" }`))
		c.refuses(
			refusal{c.insert(clone5), codes.AlreadyExists},
			refusal{c.insert(session(`replicas { port: "\x04" }`)), codes.InvalidArgument},
			refusal{c.insert(session(`session_id: 32768`)), codes.InvalidArgument},
			refusal{c.insert(session(`session_id: 6 class_of_service: 1`)), codes.InvalidArgument},
			refusal{c.insert(session(`session_id: 6 packet_length_bytes: -1`)), codes.InvalidArgument},
			refusal{c.modify(session(`session_id: 6`)), codes.NotFound},
		)
		c.must(c.del(session(`session_id: 5 class_of_service: 9`))) // only the key counts
		c.expect(session(``))
	})
}

func TestSection9_6_ValueSets(t *testing.T) {
	set := func(values ...string) string {
		s := `value_set_entry { value_set_id: 0x03000001 `
		for _, v := range values {
			s += `members { match { field_id: 1 exact { value: "` + v + `" } } } `
		}
		return s + `}`
	}
	configured(t, func(b *bench, c *controller) {
		c.expect(`value_set_entry {}`, set())
		c.must(c.modify(set(`\x08\x00`, `\x06`)))
		c.expect(`value_set_entry { value_set_id: 0x03000001 }`, set(`\x08\x00`, `\x06`))
		if got := b.fakes.last(t).sets["parser.types"]; len(got) != 2 || !slices.Equal(got[1][0].Value, []byte{0, 6}) {
			t.Errorf("the data plane has %v", got)
		}
		c.refuses(
			refusal{c.insert(set(`\x01`)), codes.InvalidArgument},
			refusal{c.del(set()), codes.InvalidArgument},
			refusal{c.modify(set(`\x01`, `\x02`, `\x03`)), codes.ResourceExhausted},
			refusal{c.modify(set(`\x01`, `\x00\x01`)), codes.AlreadyExists},
			refusal{c.modify(set(`\x01\x00\x00`)), codes.InvalidArgument},
			refusal{c.modify(`value_set_entry { value_set_id: 9 }`), codes.InvalidArgument},
		)
		c.expect(`value_set_entry {}`, set(`\x08\x00`, `\x06`))
		c.must(c.modify(set()))
		c.expect(`value_set_entry {}`, set())
	})
}

func TestSection9_7_Registers(t *testing.T) {
	cell := func(id, i, data string) string {
		return `register_entry { register_id: ` + id + ` index { index: ` + i + ` } ` + data + `}`
	}
	reg := func(i, data string) string { return cell(`0x16000001`, i, data) }
	const zero = `data { bitstring: "\x00" } `
	configured(t, func(_ *bench, c *controller) {
		c.must(c.modify(reg("1", `data { bitstring: "\x00\x0a\xbc" } `)))
		c.expect(`register_entry { register_id: 0x16000001 }`, reg("0", zero), reg("1", `data { bitstring: "\x0a\xbc" } `), reg("2", zero), reg("3", zero))
		c.must(c.modify(`register_entry { register_id: 0x16000001 ` + `data { bitstring: "\x01" } ` + `}`))
		c.expect(reg("3", ``), reg("3", `data { bitstring: "\x01" } `))
		// Signed cells: the specification's table of encodings.
		signed := func(data string) string { return cell(`0x16000002`, "0", data) }
		c.must(c.modify(signed(`data { bitstring: "\xfd\x1d" } `)))
		c.expect(signed(``), signed(`data { bitstring: "\xfd\x1d" } `))
		c.must(c.modify(signed(`data { bitstring: "\xff\xff\x9d" } `)))
		c.expect(signed(``), signed(`data { bitstring: "\x9d" } `))
		c.refuses(
			refusal{c.modify(reg("0", `data { bitstring: "\x10\x00" } `)), codes.InvalidArgument},
			refusal{c.modify(reg("0", `data { bitstring: "" } `)), codes.InvalidArgument},
			refusal{c.modify(reg("0", `data { bool: true } `)), codes.InvalidArgument},
			refusal{c.modify(reg("0", ``)), codes.InvalidArgument},
			refusal{c.modify(signed(`data { bitstring: "\x8d\x1d" } `)), codes.InvalidArgument},
			refusal{c.modify(reg("-1", zero)), codes.InvalidArgument},
			refusal{c.modify(reg("4", zero)), codes.OutOfRange},
			refusal{c.insert(reg("0", zero)), codes.InvalidArgument},
			refusal{c.modify(cell("9", "0", zero)), codes.InvalidArgument},
		)
	})
}

// An array that is too large to be read at once is read by index.
func TestSection9_7_Registers_TooManyForOneRead(t *testing.T) {
	withPrimary(t, func(_ *bench, c *controller) {
		info := testInfo(t)
		info.Registers[0].Size = maxReadCells + 1
		c.commit(info)
		_, err := c.read(entity(t, `register_entry { register_id: 0x16000001 }`))
		if got := codesOf(t, err); len(got) != 1 || got[0] != codes.ResourceExhausted {
			t.Errorf("got %v", err)
		}
		c.expect(`register_entry { register_id: 0x16000001 index { index: 9 } }`, `register_entry { register_id: 0x16000001 index { index: 9 } data { bitstring: "\x00" } }`)
	})
}

func TestSection9_8_DigestEntry(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.refuses(refusal{c.modify(digestConfig), codes.NotFound}, refusal{c.del(digestConfig), codes.NotFound})
		c.must(c.insert(digestConfig))
		c.expect(`digest_entry {}`, digestConfig)
		c.refuses(
			refusal{c.insert(digestConfig), codes.AlreadyExists},
			refusal{c.insert(`digest_entry { digest_id: 9 }`), codes.InvalidArgument},
			refusal{c.modify(`digest_entry { digest_id: 0x17000001 config { max_list_size: -1 } }`), codes.InvalidArgument},
		)
		next := `digest_entry { digest_id: 0x17000001 config { max_list_size: 7 } }`
		c.must(c.modify(next))
		c.expect(`digest_entry { digest_id: 0x17000001 }`, next)
		c.must(c.del(`digest_entry { digest_id: 0x17000001 }`))
		c.expect(`digest_entry {}`)
	})
}

func TestSection9_9_ExternEntries(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.expect(`extern_entry {}`)
		c.refuses(refusal{c.insert(`extern_entry { extern_type_id: 0x81 extern_id: 1 }`), codes.InvalidArgument})
	})
}

// A member whose watch port is down is not chosen: when its group is written, when the port changes, and in a pipeline that is
// reconciled. What a controller reads stays as it was written.
func TestSection9_2_WatchPorts(t *testing.T) {
	const (
		watching = `action_profile_group { action_profile_id: 0x11000001 group_id: 1 members { member_id: 1 weight: 1 watch_port: "\x01" }
			members { member_id: 2 weight: 2 watch_port: "\x02" } }`
		setOf = selectedKey + `action { action_profile_action_set {
			action_profile_actions { action { action_id: 0x01000004 params { param_id: 1 value: "\x01" } } weight: 1 watch_port: "\x01" }
			action_profile_actions { action { action_id: 0x01000004 params { param_id: 1 value: "\x02" } } weight: 1 } } } }`
	)
	weights := func(b *bench, want map[uint32]int) {
		t.Helper()
		synctest.Wait()
		f := b.fakes.last(t)
		defer f.lock()()
		for name, got := range f.groups {
			if !maps.Equal(got, want) {
				t.Errorf("%s has %v, want %v", name, got, want)
			}
		}
		if len(f.groups) != 1 {
			t.Errorf("%d groups", len(f.groups))
		}
	}
	configured(t, func(b *bench, c *controller) {
		b.srv.SetPort(Port{1, "eth1", true})
		b.srv.SetPort(Port{2, "eth2", false})
		c.must(c.insert(member1), c.insert(member2), c.insert(watching))
		weights(b, map[uint32]int{1: 1})
		b.srv.SetPort(Port{2, "eth2", true})
		weights(b, map[uint32]int{1: 1, 2: 2})
		b.srv.RemovePort(1)
		weights(b, map[uint32]int{2: 2})
		c.expect(`action_profile_group {}`, watching)
		if err := c.config(reconcile, &p4v1.ForwardingPipelineConfig{P4Info: testInfo(t)}); err != nil {
			t.Fatal(err) // though port 1 is gone
		}
		weights(b, map[uint32]int{2: 2})
		b.srv.SetPort(Port{2, "eth2", false})
		weights(b, map[uint32]int{})
		b.srv.SetPort(Port{1, "eth1", true})
		weights(b, map[uint32]int{1: 1})
		c.must(c.modify(`action_profile_group { action_profile_id: 0x11000001 group_id: 1 members { member_id: 2 weight: 2 } }`))
		b.srv.SetPort(Port{1, "eth1", false})
		weights(b, map[uint32]int{2: 2})
		c.refuses(
			refusal{c.modify(strings.ReplaceAll(watching, `"\x02"`, `"\x09"`)), codes.InvalidArgument}, // no such port
			refusal{c.modify(strings.ReplaceAll(watching, `"\x02"`, `"\x02\x01"`)), codes.OutOfRange},
			refusal{c.modify(strings.ReplaceAll(watching, `watch_port: "\x02"`, `watch: 2`)), codes.Unimplemented},
		)
	})
	configured(t, func(b *bench, c *controller) {
		b.srv.SetPort(Port{1, "eth1", true})
		c.must(c.insert(setOf))
		weights(b, map[uint32]int{1: 1, 2: 1})
		b.srv.SetPort(Port{1, "eth1", false})
		weights(b, map[uint32]int{2: 1})
		c.expect(`table_entry { table_id: 0x02000006 }`, setOf)
		c.must(c.del(selectedKey + `}`))
		b.srv.SetPort(Port{1, "eth1", true}) // nothing follows any more
		synctest.Wait()
		if p := b.srv.live.Load(); len(p.store.profiles[0x11000001].watched) != 0 {
			t.Error("a set that is gone is watched")
		}
	})
}

// What a later P4Runtime has is refused, wherever it is in an update, and not left out: 1.6 has group_action, field 5 of an
// action set.
func TestSection12_UnknownFields(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.must(c.insert(member1))
		entry := func() *p4v1.Update {
			return c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } action { action { action_id: 0x01000001 } } }`)
		}
		set := func() *p4v1.Update {
			return c.insert(selectedKey + `action { action_profile_action_set { action_profile_actions { action { action_id: 0x01000004 params { param_id: 1 value: "\x01" } } weight: 1 } } } }`)
		}
		group := func() *p4v1.Update { return c.insert(group1) }
		for _, x := range []struct {
			update func() *p4v1.Update
			in     func(*p4v1.Update) proto.Message
		}{
			{entry, func(u *p4v1.Update) proto.Message { return u }},
			{entry, func(u *p4v1.Update) proto.Message { return u.GetEntity() }},
			{entry, func(u *p4v1.Update) proto.Message { return u.GetEntity().GetTableEntry() }},
			{entry, func(u *p4v1.Update) proto.Message { return u.GetEntity().GetTableEntry().GetAction() }},
			{entry, func(u *p4v1.Update) proto.Message { return u.GetEntity().GetTableEntry().GetAction().GetAction() }},
			{entry, func(u *p4v1.Update) proto.Message { return u.GetEntity().GetTableEntry().GetMatch()[0] }},
			{set, func(u *p4v1.Update) proto.Message {
				return u.GetEntity().GetTableEntry().GetAction().GetActionProfileActionSet()
			}},
			{set, func(u *p4v1.Update) proto.Message {
				return u.GetEntity().GetTableEntry().GetAction().GetActionProfileActionSet().GetActionProfileActions()[0].GetAction()
			}},
			{group, func(u *p4v1.Update) proto.Message { return u.GetEntity().GetActionProfileGroup().GetMembers()[0] }},
		} {
			u := x.update()
			m := x.in(u).ProtoReflect()
			m.SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), []byte{8, 1}))
			err := c.write(u)
			if got := codesOf(t, err); len(got) != 1 || got[0] != codes.Unimplemented {
				t.Errorf("%s: %v", m.Descriptor().FullName(), err)
			}
		}
	})
}
