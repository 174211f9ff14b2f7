package softswitch

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// entities is a switch with the program testdata/entities.p4, ports 1 to 3, and
// what has left by each.
type entities struct {
	*rack
	out [4][][]byte
}

func newEntities(t *testing.T) *entities {
	t.Helper()
	return newEntitiesAs(t, func(*configv1.P4Info) {})
}

// newEntitiesAs is newEntities with another P4Info.
func newEntitiesAs(t *testing.T, change func(*configv1.P4Info)) *entities {
	t.Helper()
	program, err := os.ReadFile("testdata/entities.json")
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile("testdata/entities.p4info.txt")
	if err != nil {
		t.Fatal(err)
	}
	m := &configv1.P4Info{}
	if err := prototext.Unmarshal(info, m); err != nil {
		t.Fatal(err)
	}
	change(m)
	if info, err = prototext.Marshal(m); err != nil {
		t.Fatal(err)
	}
	e := &entities{rack: newSwitch(t, program, info, "I.")}
	for i := 1; i < len(e.out); i++ {
		err := e.sw.Attach(portOf(i), func(b []byte) { e.out[i] = append(e.out[i], bytes.Clone(b)) })
		if err != nil {
			t.Fatal(err)
		}
	}
	return e
}

// frameOf is a frame of the program's: its type selects what is tried.
func frameOf(typ uint16, dst, src uint64) []byte {
	b := make([]byte, 14, 18)
	for i := range 6 {
		b[i], b[6+i] = byte(dst>>(40-8*i)), byte(src>>(40-8*i))
	}
	binary.BigEndian.PutUint16(b[12:], typ)
	return append(b, "data"...)
}

// answer sends a frame into port 1 and gives the source address of the one frame
// that comes out of port 1, which is how the program answers; -1 if none does.
func (e *entities) answer(typ uint16, dst, src uint64) int64 {
	e.t.Helper()
	e.out[1] = nil
	e.sw.Input(1, frameOf(typ, dst, src))
	switch len(e.out[1]) {
	case 0:
		return -1
	case 1:
		return int64(binary.BigEndian.Uint64(append([]byte{0, 0}, e.out[1][0][6:12]...)))
	}
	e.t.Fatalf("%d frames came out", len(e.out[1]))
	return 0
}

func (e *entities) expect(what string, typ uint16, dst, src uint64, want int64) {
	e.t.Helper()
	if got := e.answer(typ, dst, src); got != want {
		e.t.Errorf("%s: the program answers %d, want %d", what, got, want)
	}
}

// text makes an entity from text in which @NAME stands for an object's id.
func (e *entities) text(s string) *p4v1.Entity {
	e.t.Helper()
	m := &p4v1.Entity{}
	ids := e.ids()
	s = os.Expand(s, func(name string) string {
		if id, ok := ids[name]; ok {
			return id
		}
		e.t.Fatalf("no object is called %q", name)
		return ""
	})
	if err := prototext.Unmarshal([]byte(s), m); err != nil {
		e.t.Fatalf("%s: %v", s, err)
	}
	return m
}

func (e *entities) put(op p4v1.Update_Type, texts ...string) {
	e.t.Helper()
	for _, s := range texts {
		e.write(op, e.text(s))
	}
}

func (e *entities) insert(texts ...string) { e.t.Helper(); e.put(p4v1.Update_INSERT, texts...) }
func (e *entities) modify(texts ...string) { e.t.Helper(); e.put(p4v1.Update_MODIFY, texts...) }
func (e *entities) remove(texts ...string) { e.t.Helper(); e.put(p4v1.Update_DELETE, texts...) }

// reads compares what a request brings with the wanted entities.
func (e *entities) reads(request string, want ...string) {
	e.t.Helper()
	s, err := e.client.Read(context.Background(), &p4v1.ReadRequest{DeviceId: testDevice, Entities: []*p4v1.Entity{e.text(request)}})
	if err != nil {
		e.t.Fatal(err)
	}
	var got []*p4v1.Entity
	for {
		m, err := s.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			e.t.Fatalf("read %s: %v", request, err)
		}
		got = append(got, m.GetEntities()...)
	}
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(want):
			e.t.Errorf("read %s: unexpected %v", request, got[i])
		case i >= len(got) || !proto.Equal(got[i], e.text(want[i])):
			e.t.Errorf("read %s: got %v, want %s", request, got[min(i, len(got)-1):], want[i])
		}
	}
}

func (e *entities) refused(op p4v1.Update_Type, code codes.Code, s string) {
	e.t.Helper()
	_, err := e.client.Write(context.Background(), &p4v1.WriteRequest{
		DeviceId: testDevice, ElectionId: electionID, Updates: []*p4v1.Update{{Type: op, Entity: e.text(s)}},
	})
	details := status.Convert(err).Details()
	if len(details) != 1 || codes.Code(details[0].(*p4v1.Error).GetCanonicalCode()) != code {
		e.t.Errorf("%s: %v %v, want %v", s, err, details, code)
	}
}

func TestEntities_DirectResourcesAndIdleTimeout(t *testing.T) {
	e := newEntities(t)
	const key = `table_entry { table_id: ${I.exact_t} match { field_id: 1 exact { value: "\x05" } } `
	const act = `action { action { action_id: ${I.forward_metered} params { param_id: 1 value: "\x01" } } } `
	e.expect("miss", 1, 5, 0, -1)
	e.insert(key + act + `idle_timeout_ns: 100000000 meter_config { cir: 1 cburst: 1 pir: 1 pburst: 1 } }`)
	for range 5 {
		e.answer(1, 5, 0)
	}
	e.expect("a meter that is far behind", 1, 5, 0, 2) // red
	e.reads(key+`counter_data {} meter_config {} }`,
		key+act+`idle_timeout_ns: 100000000 meter_config { cir: 1 cburst: 1 pir: 1 pburst: 1 } counter_data { packet_count: 6 byte_count: 108 } }`)
	e.modify(`direct_meter_entry { ` + key + `} }`)
	e.expect("a meter without configuration", 1, 5, 0, 0)
	m := e.next().GetIdleTimeoutNotification()
	if len(m.GetTableEntry()) != 1 || m.GetTableEntry()[0].GetIdleTimeoutNs() != 100000000 {
		t.Errorf("got %v", m)
	}
	// And again, for as long as it is idle. On a busy machine the first one may be from before the last hit.
	idle := int64(0)
	for n := 0; idle < 2e8 && n < 10; n++ {
		e.next()
		s, err := e.client.Read(context.Background(), &p4v1.ReadRequest{DeviceId: testDevice, Entities: []*p4v1.Entity{e.text(key + `time_since_last_hit {} }`)}})
		if err != nil {
			t.Fatal(err)
		}
		got, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		idle = got.GetEntities()[0].GetTableEntry().GetTimeSinceLastHit().GetElapsedNs()
	}
	if idle < 2e8 {
		t.Errorf("idle for %v after eleven notifications", time.Duration(idle))
	}
	e.remove(key + `}`)
	e.expect("a deleted entry", 1, 5, 0, -1)
	const dflt = `table_entry { table_id: ${I.exact_t} is_default_action: true `
	e.refused(p4v1.Update_MODIFY, codes.Unimplemented, dflt+act+`meter_config { cir: 1 pir: 1 } }`) // as in bmv2
	e.expect("an action that was refused", 1, 5, 0, -1)
	e.modify(dflt + act + `}`)
	e.expect("a default action", 1, 5, 0, 0)
	e.modify(dflt + `}`)
	e.expect("the program's default action", 1, 5, 0, -1)
}

// The entries that the program declares are used, read, counted, and fixed.
func TestEntities_DeclaredEntries(t *testing.T) {
	e := newEntities(t)
	e.expect("first", 2, 0x11, 7, 1)
	e.expect("second", 2, 0x11, 8, 2)
	e.expect("third", 2, 0x21, 8, 3)
	action := func(x string) string {
		return `action { action { action_id: ${I.answer} params { param_id: 1 value: "` + x + `" } } } `
	}
	const key = `table_entry { table_id: ${I.fixed_t} is_const: true `
	const first = key + `priority: 3 match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } } match { field_id: 2 optional { value: "\x07" } } `
	const second = key + `priority: 2 match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } } `
	e.reads(`table_entry { table_id: ${I.fixed_t} counter_data {} }`,
		first+action(`\x01`)+`counter_data { packet_count: 1 byte_count: 18 } }`,
		second+action(`\x02`)+`counter_data { packet_count: 1 byte_count: 18 } }`,
		key+`priority: 1 `+action(`\x03`)+`counter_data { packet_count: 1 byte_count: 18 } }`)
	e.reads(`table_entry { table_id: ${I.fixed_t} is_default_action: true }`,
		`table_entry { table_id: ${I.fixed_t} is_default_action: true `+action(`\x09`)+`}`)
	const free = `table_entry { table_id: ${I.fixed_t} `
	e.refused(p4v1.Update_INSERT, codes.PermissionDenied, free+`priority: 9 `+action(`\x01`)+`}`)
	e.refused(p4v1.Update_DELETE, codes.PermissionDenied, free+`priority: 1 }`)
	e.modify(free + `priority: 1 counter_data { packet_count: 40 } }`)
	e.expect("third", 2, 0x21, 8, 3)
	e.reads(`direct_counter_entry { `+free+`priority: 1 } }`, `direct_counter_entry { `+free+`priority: 1 } data { packet_count: 41 byte_count: 18 } }`)
}

func TestEntities_PrioritiesAndRanges(t *testing.T) {
	e := newEntities(t)
	entry := func(prio, match, x string) string {
		return `table_entry { table_id: ${I.acl_t} priority: ` + prio + ` ` + match + ` action { action { action_id: ${I.say} params { param_id: 1 value: "` + x + `" } } } }`
	}
	e.expect("miss", 3, 1, 1, 77)
	e.insert(
		entry("1", ``, `\x01`), entry("5", `match { field_id: 1 ternary { value: "\x10" mask: "\xf0" } }`, `\x02`),
		entry("9", `match { field_id: 2 range { low: "\x05" high: "\x07" } }`, `\x03`))
	e.expect("any", 3, 1, 1, 1)
	e.expect("ternary", 3, 0x1f, 1, 2)
	e.expect("range beats ternary", 3, 0x1f, 7, 3)
	e.expect("beyond the range", 3, 0x1f, 8, 2)
	e.remove(entry("9", `match { field_id: 2 range { low: "\x05" high: "\x07" } }`, `\x03`))
	e.expect("the range is gone", 3, 0x1f, 7, 2)
}

func TestEntities_MulticastCloneAndPunt(t *testing.T) {
	e := newEntities(t)
	entry := func(dst, action string) string {
		return `table_entry { table_id: ${I.acl_t} priority: 1 match { field_id: 1 ternary { value: "` + dst + `" mask: "\xff" } } action { action { ` + action + ` } } }`
	}
	e.insert(
		`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 4 replicas { port: "\x02" instance: 8 } replicas { port: "\x03" instance: 9 } } }`,
		`packet_replication_engine_entry { clone_session_entry { session_id: 5 replicas { port: "\x03" instance: 6 } packet_length_bytes: 15 } }`,
		entry(`\x01`, `action_id: ${I.flood} params { param_id: 1 value: "\x04" }`),
		entry(`\x02`, `action_id: ${I.copy} params { param_id: 1 value: "\x05" }`),
		entry(`\x03`, `action_id: ${I.punt}`))
	e.sw.Input(1, frameOf(3, 1, 0))
	if len(e.out[2]) != 1 || len(e.out[3]) != 1 || e.out[2][0][11] != 8 || e.out[3][0][11] != 9 {
		t.Errorf("multicast: % x, % x", e.out[2], e.out[3])
	}
	e.out = [4][][]byte{}
	e.sw.Input(1, frameOf(3, 2, 0))
	if len(e.out[2]) != 1 || len(e.out[2][0]) != 18 || len(e.out[3]) != 1 || len(e.out[3][0]) != 15 || e.out[3][0][11] != 6 {
		t.Errorf("clone: % x, % x", e.out[2], e.out[3])
	}
	e.sw.Input(3, frameOf(3, 3, 0))
	in := e.next().GetPacket()
	if !bytes.Equal(in.GetPayload(), frameOf(3, 3, 0)) || !bytes.Equal(in.GetMetadata()[0].GetValue(), []byte{3}) {
		t.Errorf("packet in: %v", in)
	}
	e.remove(`packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 4 } }`)
	e.out = [4][][]byte{}
	e.sw.Input(1, frameOf(3, 1, 0))
	if len(e.out[2])+len(e.out[3]) != 0 {
		t.Error("a group that is gone still copies")
	}
}

func TestEntities_ProfilesAndSelectors(t *testing.T) {
	e := newEntities(t)
	say := func(x string) string {
		return `action { action_id: ${I.say} params { param_id: 1 value: "` + x + `" } } `
	}
	const direct = `table_entry { table_id: ${I.profile_t} match { field_id: 1 exact { value: "\x01" } } `
	e.insert(`action_profile_member { action_profile_id: ${I.profile} member_id: 1 `+say(`\x0b`)+`}`, direct+`action { action_profile_member_id: 1 } }`)
	e.expect("member", 5, 1, 0, 11)
	e.modify(`action_profile_member { action_profile_id: ${I.profile} member_id: 1 ` + say(`\x0c`) + `}`)
	e.expect("changed member", 5, 1, 0, 12)

	// A selector, in one shot: each flow has its member, and all members their flows.
	const lpm = `table_entry { table_id: ${I.select_t} match { field_id: 1 lpm { value: "\x01\x00\x00\x00\x00\x00" prefix_len: 8 } } `
	member := func(x, w string) string { return `action_profile_actions { ` + say(x) + `weight: ` + w + ` } ` }
	set := func(members string) string {
		return lpm + `action { action_profile_action_set { ` + members + `} } }`
	}
	const dst = 0x010000000000
	e.insert(set(member(`\x01`, "1") + member(`\x02`, "3")))
	seen := map[int64]int{}
	for i := range uint64(64) {
		src := i * 0x9e3779b97f4a7c15 >> 16 // a CRC is linear: all bits must vary
		first := e.answer(4, dst, src)
		seen[first]++
		e.expect("the same flow", 4, dst, src, first)
	}
	if len(seen) != 2 || seen[1] == 0 || seen[2] <= seen[1] {
		t.Errorf("flows per member: %v", seen)
	}
	e.modify(set(member(`\x03`, "1")))
	e.expect("another set", 4, dst, 1, 3)
	e.reads(`table_entry { table_id: ${I.select_t} }`, set(member(`\x03`, "1")))
	e.remove(lpm + `}`)
	// And with members and groups.
	e.insert(`action_profile_member { action_profile_id: ${I.groups} member_id: 1 `+say(`\x15`)+`}`,
		`action_profile_group { action_profile_id: ${I.groups} group_id: 1 members { member_id: 1 weight: 1 } }`,
		lpm+`action { action_profile_group_id: 1 } }`)
	e.expect("group", 4, dst, 1, 21)
	e.refused(p4v1.Update_DELETE, codes.FailedPrecondition, `action_profile_member { action_profile_id: ${I.groups} member_id: 1 }`)
	e.remove(lpm+`}`, `action_profile_group { action_profile_id: ${I.groups} group_id: 1 }`, `action_profile_member { action_profile_id: ${I.groups} member_id: 1 }`)
}

func TestEntities_RegistersCountersMetersAndValueSets(t *testing.T) {
	e := newEntities(t)
	e.modify(`register_entry { register_id: ${I.cells} index { index: 2 } data { bitstring: "\x0f\xff" } }`)
	e.expect("register", 6, 2, 0, 0xfff)
	e.expect("it wraps at its width", 6, 2, 0, 0)
	e.reads(`register_entry { register_id: ${I.cells} index { index: 2 } }`, `register_entry { register_id: ${I.cells} index { index: 2 } data { bitstring: "\x01" } }`)

	e.modify(`counter_entry { counter_id: ${I.hits} index { index: 1 } data { packet_count: 10 } }`)
	e.expect("meter", 7, 1, 0, 0)
	e.reads(`counter_entry { counter_id: ${I.hits} index { index: 1 } }`, `counter_entry { counter_id: ${I.hits} index { index: 1 } data { packet_count: 11 byte_count: 18 } }`)
	e.modify(`meter_entry { meter_id: ${I.rate} index { index: 1 } config { cir: 1 cburst: 1 pir: 1 pburst: 1 } }`)
	for range 5 {
		e.answer(7, 1, 0)
	}
	e.expect("red", 7, 1, 0, 2)

	e.expect("unknown type", 0x99, 0, 0, 0)
	e.modify(`value_set_entry { value_set_id: ${P.known} members { match { field_id: 1 exact { value: "\x99" } } } }`)
	e.expect("known type", 0x99, 0, 0, 0x55)
	e.modify(`value_set_entry { value_set_id: ${P.known} }`)
	e.expect("unknown again", 0x99, 0, 0, 0)
}

func TestEntities_DigestsAreBatched(t *testing.T) {
	e := newEntities(t)
	e.insert(`digest_entry { digest_id: ${learn_t} config { max_list_size: 3 max_timeout_ns: 50000000 ack_timeout_ns: 60000000000 } }`)
	for src := range uint64(4) {
		e.sw.Input(1, frameOf(8, 0, src))
		e.sw.Input(1, frameOf(8, 0, src)) // twice is once
	}
	list := e.next().GetDigest()
	if len(list.GetData()) != 3 || list.GetTimestamp() > time.Now().UnixNano() {
		t.Fatalf("got %v", list)
	}
	if list = e.next().GetDigest(); len(list.GetData()) != 1 { // the rest, when its time is up
		t.Fatalf("got %v", list)
	}
	if m := list.GetData()[0].GetStruct().GetMembers(); !bytes.Equal(m[0].GetBitstring(), []byte{3}) || !bytes.Equal(m[1].GetBitstring(), []byte{1}) {
		t.Errorf("got %v", m)
	}
}

// After a reconciliation packets are judged as before, by the new program's
// executor.
func TestEntities_Reconcile(t *testing.T) {
	e := newEntities(t)
	e.insert(`table_entry { table_id: ${I.acl_t} priority: 1 action { action { action_id: ${I.say} params { param_id: 1 value: "\x05" } } } }`)
	e.modify(`register_entry { register_id: ${I.cells} index { index: 2 } data { bitstring: "\x07" } }`)
	got, err := e.client.GetForwardingPipelineConfig(context.Background(), &p4v1.GetForwardingPipelineConfigRequest{DeviceId: testDevice})
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.client.SetForwardingPipelineConfig(context.Background(), &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: testDevice, ElectionId: electionID, Config: got.GetConfig(), Action: p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT,
	})
	if err != nil {
		t.Fatal(err)
	}
	e.expect("entry", 3, 1, 1, 5)
	e.expect("register", 6, 2, 0, 7)
}

// Controllers have strings where the program has numbers: in keys, parameters, members and packet metadata.
func TestEntities_Strings(t *testing.T) {
	e := newEntitiesAs(t, func(m *configv1.P4Info) {
		m.TypeInfo.NewTypes = map[string]*configv1.P4NewTypeSpec{}
		for _, name := range []string{"port_t", "mac_t", "vrf_t"} {
			m.TypeInfo.NewTypes[name] = &configv1.P4NewTypeSpec{Representation: &configv1.P4NewTypeSpec_TranslatedType{
				TranslatedType: &configv1.P4NewTypeTranslation{SdnType: &configv1.P4NewTypeTranslation_SdnString_{SdnString: &configv1.P4NewTypeTranslation_SdnString{}}},
			}}
		}
		action(m, "I.forward_metered").Params[0].TypeName = &configv1.P4NamedType{Name: "port_t"}
		action(m, "I.forward_metered").Params[0].Bitwidth = 0
		action(m, "I.say").Params[0].TypeName = &configv1.P4NamedType{Name: "vrf_t"}
		action(m, "I.say").Params[0].Bitwidth = 0
		for _, t := range m.Tables {
			if t.Preamble.Name == "I.profile_t" {
				t.MatchFields[0].TypeName, t.MatchFields[0].Bitwidth = &configv1.P4NamedType{Name: "mac_t"}, 0
			}
		}
		for _, h := range m.ControllerPacketMetadata {
			h.Metadata[0].TypeName, h.Metadata[0].Bitwidth = &configv1.P4NamedType{Name: "port_t"}, 0
		}
	})
	const (
		forward = `table_entry { table_id: ${I.exact_t} match { field_id: 1 exact { value: "\x05" } }
			action { action { action_id: ${I.forward_metered} params { param_id: 1 value: "2" } } } }`
		member = `action_profile_member { action_profile_id: ${I.profile} member_id: 1 action { action_id: ${I.say} params { param_id: 1 value: "vrf-80" } } }`
		mac    = `table_entry { table_id: ${I.profile_t} match { field_id: 1 exact { value: "3" } } action { action_profile_member_id: 1 } }`
	)
	e.insert(forward, member, mac)
	e.expect("the largest number of 8 bits", 5, 3, 0, 255)
	e.out[2] = nil
	e.sw.Input(1, frameOf(1, 5, 0))
	if len(e.out[2]) != 1 {
		t.Errorf("%d frames have left by the port \"2\"", len(e.out[2]))
	}
	e.reads(`table_entry { table_id: ${I.exact_t} }`, forward)
	e.reads(`table_entry { table_id: ${I.profile_t} match { field_id: 1 exact { value: "3" } } }`, mac)
	e.reads(`action_profile_member { action_profile_id: ${I.profile} }`, member)

	e.insert(`table_entry { table_id: ${I.acl_t} priority: 1 match { field_id: 1 ternary { value: "\x07" mask: "\xff" } } action { action { action_id: ${I.punt} } } }`)
	e.sw.Input(3, frameOf(3, 7, 0))
	comesBy := func(want string) {
		t.Helper()
		if got := string(e.next().GetPacket().GetMetadata()[0].GetValue()); got != want {
			t.Errorf("the packet has come by the port %q, want %q", got, want)
		}
	}
	comesBy("3")
	// To the controller's port, without a header of the program's: the first 9 bits are what the frame begins with.
	e.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{
		Payload: frameOf(0, 5<<39, 2), Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte("510")}, {MetadataId: 2, Value: []byte{0}}},
	}}})
	comesBy("5")
	e.refused(p4v1.Update_INSERT, codes.InvalidArgument, `table_entry { table_id: ${I.exact_t} match { field_id: 1 exact { value: "\x06" } }
		action { action { action_id: ${I.forward_metered} params { param_id: 1 value: "`+strings.Repeat("x", 1025)+`" } } } }`)

	// More strings than numbers, one after the other, in all that can have them. What the member has stays.
	say := func(dst, value string) string {
		return `table_entry { table_id: ${I.acl_t} priority: 1 match { field_id: 1 ternary { value: "` + dst + `" mask: "\xff" } }
			action { action { action_id: ${I.say} params { param_id: 1 value: "` + value + `" } } } }`
	}
	e.insert(say("\\x09", "modified"), say("\\x0a", "kept"))
	kept := e.answer(3, 10, 0)
	for i := range 300 {
		entry := say("\\x08", fmt.Sprintf("entry-%d", i))
		e.insert(entry)
		e.remove(entry)
		e.modify(say("\\x09", fmt.Sprintf("modified-%d", i)), fmt.Sprintf(`table_entry { table_id: ${I.acl_t} is_default_action: true
			action { action { action_id: ${I.say} params { param_id: 1 value: "default-%d" } } } }`, i))
	}
	e.insert(say("\\x0b", "vrf-80"), say("\\x0c", "kept"))
	e.expect("what a member has", 3, 11, 0, 255)
	e.expect("what an entry has", 3, 12, 0, kept)
	e.remove(say("\\x0b", "vrf-80"))
	for i := range 300 {
		e.modify(strings.ReplaceAll(member, "vrf-80", fmt.Sprintf("member-%d", i)))
	}
	e.remove(mac, member)
	e.expect("no entry", 5, 3, 0, -1)
}
