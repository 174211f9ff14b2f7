package p4rt

import (
	"context"
	"slices"
	"testing"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

func TestSection12_3_ErrorsPerUpdate(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		err := c.write(c.insert(exact1), c.insert(exact1), c.insert(lpm1), c.insert(`table_entry { table_id: 99 }`),
			&p4v1.Update{Entity: entity(t, exact1)}, &p4v1.Update{Type: p4v1.Update_INSERT})
		want := []codes.Code{codes.OK, codes.AlreadyExists, codes.OK, codes.InvalidArgument, codes.InvalidArgument, codes.InvalidArgument}
		if got := codesOf(t, err); status.Code(err) != codes.Unknown || !slices.Equal(got, want) {
			t.Fatalf("%v with %v, want %v", err, got, want)
		}
		ok := status.Convert(err).Details()[0].(*p4v1.Error)
		if !proto.Equal(ok, &p4v1.Error{}) {
			t.Errorf("the error of a success is %v", ok)
		}
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		c.expect(`table_entry { table_id: 0x02000002 }`, lpm1)
	})
}

// However many updates a Write has, and whether they fail, it waits once for the
// packets that are in flight, before it is answered.
func TestSection12_AnAnsweredWriteIsInForce(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		f := b.fakes.all[0]
		for want, updates := range [][]*p4v1.Update{
			1: {c.insert(exact1), c.insert(lpm1)}, 2: {c.del(exact1), c.del(lpm1)}, 3: {c.del(exact1)},
		} {
			if want > 0 {
				_ = c.write(updates...)
			}
			if got := int(f.settled.Load()); got != want {
				t.Errorf("after %d Writes it has settled %d times", want, got)
			}
		}
	})
}

// writeAs is write with an atomicity.
func (c *controller) writeAs(a p4v1.WriteRequest_Atomicity, updates ...*p4v1.Update) error {
	_, err := c.Write(context.Background(), &p4v1.WriteRequest{DeviceId: device, ElectionId: c.election, Atomicity: a, Updates: updates})
	return err
}

// everythingThere reads the whole state, in a form that can be compared.
func (c *controller) everythingThere() []string {
	c.t.Helper()
	var out []string
	for _, e := range c.everything() {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			c.t.Fatal(err)
		}
		out = append(out, string(b))
	}
	slices.Sort(out) // order is no state
	return out
}

// everything reads all there is.
func (c *controller) everything() (all []*p4v1.Entity) {
	c.t.Helper()
	for _, q := range []string{
		`table_entry { meter_config {} counter_data {} }`, `table_entry { is_default_action: true meter_config {} counter_data {} }`,
		`action_profile_member {}`, `action_profile_group {}`, `counter_entry {}`, `meter_entry {}`, `register_entry {}`, `value_set_entry {}`,
		`packet_replication_engine_entry { multicast_group_entry {} }`, `packet_replication_engine_entry { clone_session_entry {} }`, `digest_entry {}`,
		`direct_counter_entry { table_entry { table_id: 0x02000001 is_default_action: true } }`,
		`direct_meter_entry { table_entry { table_id: 0x02000001 is_default_action: true } }`, `direct_counter_entry {}`, `direct_meter_entry {}`,
	} {
		es, err := c.read(entity(c.t, q))
		if err != nil {
			c.t.Fatalf("%s: %v", q, err)
		}
		all = append(all, es...)
	}
	return all
}

// Whatever a Read returns, a MODIFY takes back, and nothing changes by it; but for what
// the program declares as const.
func TestSection12_WhatIsReadIsTakenBack(t *testing.T) {
	for _, populated := range []bool{false, true} {
		virtual(t, func(b *bench) {
			b.fakes.noDefaultMeters = !populated
			c := b.dial()
			c.mustBePrimary(1)
			c.commit(testInfo(t))
			if populated {
				c.populate()
			}
			before := c.everythingThere()
			for _, e := range c.everything() {
				m := e.GetTableEntry()
				fixed := m.GetIsConst() || m.GetIsDefaultAction() && m.GetAction() == nil
				if err := c.write(&p4v1.Update{Type: p4v1.Update_MODIFY, Entity: e}); err != nil && !fixed {
					t.Errorf("%v: %v", e, codesOf(t, err))
				}
			}
			if after := c.everythingThere(); !slices.Equal(before, after) {
				t.Errorf("what was read and written back has changed the state\nbefore: %q\nafter: %q", before, after)
			}
		})
	}
}

// everyUpdate is one update of each kind that a state like populate's allows.
func (c *controller) everyUpdate() []*p4v1.Update {
	return []*p4v1.Update{
		c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x02" } } ` + forward + `}`),
		c.modify(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } action { action { action_id: 0x01000002 } } counter_data { packet_count: 1 } }`),
		c.modify(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } meter_config { cir: 3 pir: 3 } }`),
		c.del(lpm1),
		c.modify(`table_entry { table_id: 0x02000001 is_default_action: true }`),
		c.modify(`table_entry { table_id: 0x02000001 is_default_action: true ` + forward + ` metadata: "d" }`),
		c.modify(`table_entry { table_id: 0x02000005 priority: 1 counter_data { packet_count: 9 } }`),
		c.modify(`direct_counter_entry { table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } } data { packet_count: 77 } }`),
		c.modify(`direct_meter_entry { table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } } }`),
		c.insert(member2),
		c.modify(`action_profile_member { action_profile_id: 0x11000001 member_id: 1 action { action_id: 0x01000004 params { param_id: 1 value: "\x09" } } }`),
		c.insert(`action_profile_group { action_profile_id: 0x11000001 group_id: 2 members { member_id: 2 weight: 2 } }`),
		c.modify(`counter_entry { counter_id: 0x12000001 data { packet_count: 5 } }`),
		c.modify(`meter_entry { meter_id: 0x14000001 config { cir: 7 pir: 7 } }`),
		c.modify(`register_entry { register_id: 0x16000001 data { bitstring: "\x09" } }`),
		c.modify(`value_set_entry { value_set_id: 0x03000001 }`),
		c.del(multicast5),
		c.modify(`packet_replication_engine_entry { clone_session_entry { session_id: 5 } }`),
		c.insert(`packet_replication_engine_entry { clone_session_entry { session_id: 6 } }`),
		c.del(`digest_entry { digest_id: 0x17000001 }`),
		c.insert(`digest_entry { digest_id: 0x17000002 }`),
	}
}

// populate writes something of everything.
func (c *controller) populate() {
	c.t.Helper()
	for _, u := range []*p4v1.Update{
		c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } ` + forward + ` meter_config { cir: 1 pir: 2 } counter_data { packet_count: 4 } metadata: "m" }`),
		c.insert(lpm1), c.insert(member1),
		c.insert(`action_profile_group { action_profile_id: 0x11000001 group_id: 1 members { member_id: 1 weight: 1 } }`),
		c.insert(selectedKey + `action { action_profile_group_id: 1 } }`),
		c.modify(`counter_entry { counter_id: 0x12000001 index { index: 1 } data { packet_count: 3 } }`),
		c.modify(`meter_entry { meter_id: 0x14000001 index { index: 1 } config { cir: 1 pir: 1 } }`),
		c.modify(`register_entry { register_id: 0x16000001 index { index: 1 } data { bitstring: "\x01" } }`),
		c.modify(`value_set_entry { value_set_id: 0x03000001 members { match { field_id: 1 exact { value: "\x01" } } } }`),
		c.insert(multicast5), c.insert(clone5), c.insert(digestConfig),
		c.modify(`table_entry { table_id: 0x02000001 is_default_action: true ` + forward + ` metadata: "old" meter_config { cir: 9 pir: 9 } counter_data { packet_count: 2 } }`),
	} {
		c.must(u)
	}
}

// Each kind of update is rolled back when the next one fails.
func TestSection12_2_RollbackOnError(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.populate()
		before := c.everythingThere()
		all := c.everyUpdate()
		for i, u := range all {
			if err := c.writeAs(p4v1.WriteRequest_ROLLBACK_ON_ERROR, u); err != nil && i != 11 { // the group needs the member
				t.Errorf("%v fails by itself: %v", u, codesOf(t, err))
			}
			// Leave a fresh state for the next.
			c.commit(testInfo(t))
			c.populate()
		}
		bad := c.insert(`table_entry { table_id: 99 }`)
		err := c.writeAs(p4v1.WriteRequest_ROLLBACK_ON_ERROR, append(all, bad, c.insert(lpm1))...)
		got := codesOf(t, err)
		want := slices.Repeat([]codes.Code{codes.Aborted}, len(all)+2)
		want[len(all)] = codes.InvalidArgument
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if after := c.everythingThere(); !slices.Equal(after, before) {
			t.Errorf("the state has changed: %q\nbefore: %q", after, before)
		}
		if err := c.writeAs(p4v1.WriteRequest_ROLLBACK_ON_ERROR, all...); err != nil {
			t.Errorf("the same without the error: %v %v", err, codesOf(t, err))
		}
	})
}

func TestSection12_2_DataplaneAtomic(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		const atomic = p4v1.WriteRequest_DATAPLANE_ATOMIC
		if err := c.writeAs(atomic, c.insert(lpm1)); err != nil {
			t.Errorf("one step: %v", err)
		}
		if err := c.writeAs(atomic, c.insert(lpm1)); status.Code(err) != codes.Unknown {
			t.Errorf("a step that fails: %v", err)
		}
		for name, us := range map[string][]*p4v1.Update{
			"two updates":          {c.del(lpm1), c.insert(exact1)},
			"entry with a counter": {c.insert(`table_entry { table_id: 0x02000001 match { field_id: 1 exact { value: "\x01" } } ` + forward + ` counter_data {} }`)},
			"all cells":            {c.modify(`counter_entry { counter_id: 0x12000001 data {} }`)},
		} {
			if err := c.writeAs(atomic, us...); status.Code(err) != codes.Unimplemented {
				t.Errorf("%s: %v", name, err)
			}
		}
		if err := c.writeAs(9, c.insert(lpm1)); status.Code(err) != codes.InvalidArgument {
			t.Errorf("unknown atomicity: %v", err)
		}
	})
}

func TestSection13_ReadErrors(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		if _, err := c.read(); status.Code(err) != codes.FailedPrecondition {
			t.Errorf("before a pipeline: %v", err)
		}
		c.mustBePrimary(1)
		c.commit(testInfo(t))
		s, err := c.Read(context.Background(), &p4v1.ReadRequest{DeviceId: 8})
		if err == nil {
			_, err = s.Recv()
		}
		if status.Code(err) != codes.NotFound {
			t.Errorf("another device: %v", err)
		}
		// The valid requests of a batch are answered, the others reported.
		c.must(c.insert(exact1), c.insert(clone5))
		got, err := c.read(entity(t, `table_entry { table_id: 0x02000001 }`), &p4v1.Entity{}, entity(t, `table_entry { table_id: 99 }`),
			entity(t, `packet_replication_engine_entry { clone_session_entry {} }`), entity(t, `packet_replication_engine_entry {}`))
		want := []codes.Code{codes.OK, codes.InvalidArgument, codes.InvalidArgument, codes.OK, codes.InvalidArgument}
		if have := codesOf(t, err); len(got) != 2 || !slices.Equal(have, want) || status.Code(err) != codes.Unknown {
			t.Errorf("got %d entities and %v, want 2 and %v", len(got), have, want)
		}
	})
}
