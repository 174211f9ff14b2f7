package p4rt

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
)

// FuzzWrite: no batch makes the server panic, what it stores is what the data
// plane has, and a batch to be rolled back leaves no trace.
func FuzzWrite(f *testing.F) {
	info := testInfo(f)
	seed := func(a p4v1.WriteRequest_Atomicity, texts ...string) {
		r := &p4v1.WriteRequest{Atomicity: a}
		for _, text := range texts {
			r.Updates = append(r.Updates, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: entity(f, text)})
			r.Updates = append(r.Updates, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: entity(f, text)})
		}
		b, err := proto.Marshal(r)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, a := range []p4v1.WriteRequest_Atomicity{p4v1.WriteRequest_CONTINUE_ON_ERROR, p4v1.WriteRequest_ROLLBACK_ON_ERROR} {
		seed(a, exact1, lpm1, clone5, multicast5, digestConfig)
		seed(a, member1, member2, group1, selectedKey+`action { action_profile_group_id: 1 } }`)
		seed(a, selectedKey+`action { action_profile_action_set { action_profile_actions { action { action_id: 0x01000004 params { param_id: 1 value: "\x01" } } weight: 1 } } } }`)
		seed(a, `counter_entry { counter_id: 0x12000001 data {} }`, `register_entry { register_id: 0x16000001 data { bitstring: "\x01" } }`,
			`value_set_entry { value_set_id: 0x03000001 }`, `meter_entry { meter_id: 0x14000001 }`)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		r := &p4v1.WriteRequest{}
		if proto.Unmarshal(b, r) != nil {
			return
		}
		s, l := loaded(t, info)
		defer s.Close()
		errs, err := s.pipe.batch(everything, r)
		if err != nil {
			return
		}
		failed := false
		for _, e := range errs {
			failed = failed || e != nil
		}
		checkStore(t, s.pipe.store, l.last(t))
		if failed && r.GetAtomicity() != p4v1.WriteRequest_CONTINUE_ON_ERROR {
			fresh := &pipeline{srv: s, info: s.pipe.info, dp: newFake(nil)}
			if fresh.store, err = newStore(fresh.info, fresh.dp); err != nil {
				t.Fatal(err)
			}
			if got, want := stateOf(t, s.pipe), stateOf(t, fresh); got != want {
				t.Fatalf("after the rollback there is\n%s\ninstead of\n%s", got, want)
			}
		}
	})
}

// loaded returns a server that runs a program on a fake data plane.
func loaded(t *testing.T, info *configv1.P4Info) (*Server, *fakes) {
	t.Helper()
	l := &fakes{}
	s, err := New(Config{DeviceID: device, Load: l.load})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: proto.CloneOf(info)}); err != nil {
		s.Close()
		t.Fatal(err)
	}
	return s, l
}

// checkStore compares the sizes of what is stored with what the data plane has.
func checkStore(t *testing.T, s *store, f *fake) {
	t.Helper()
	entries, members, groups := 0, 0, 0
	for _, ts := range s.tables {
		for _, e := range ts.entries.all() {
			if ts.presets[entryKey(e.dp)] == nil {
				entries++
			}
		}
	}
	for _, p := range s.profiles {
		members += p.members.len()
		groups += p.groups.len() + p.sets
	}
	if entries != len(f.entries) || groups != len(f.groups) || members > len(f.members) {
		t.Fatalf("%d entries, %d members, %d groups are stored; the data plane has %d, %d, %d",
			entries, members, groups, len(f.entries), len(f.members), len(f.groups))
	}
}

// stateOf is everything that can be read, as text.
func stateOf(t *testing.T, p *pipeline) string {
	t.Helper()
	r := reader{p: p}
	for _, q := range []string{
		`table_entry { meter_config {} counter_data {} }`, `table_entry { is_default_action: true meter_config {} }`,
		`action_profile_member {}`, `action_profile_group {}`, `counter_entry {}`, `meter_entry {}`, `register_entry {}`, `value_set_entry {}`,
		`packet_replication_engine_entry { multicast_group_entry {} }`, `packet_replication_engine_entry { clone_session_entry {} }`, `digest_entry {}`,
	} {
		if err := r.read(entity(t, q)); err != nil {
			t.Fatal(err)
		}
	}
	out := ""
	for _, e := range r.found {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		out += string(b) + "\n"
	}
	return out
}

// FuzzRead: no request makes the server panic, and what is returned can be
// marshalled.
func FuzzRead(f *testing.F) {
	info := testInfo(f)
	for _, text := range []string{`table_entry {}`, `action_profile_member {}`, `action_profile_group {}`, `packet_replication_engine_entry { clone_session_entry {} }`, `digest_entry {}`,
		`table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: "\x06" } } counter_data {} }`,
		`direct_meter_entry { table_entry { table_id: 0x02000001 } }`, `counter_entry { counter_id: 0x12000001 index {} }`} {
		b, err := proto.Marshal(entity(f, text))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	l := &fakes{}
	s, err := New(Config{DeviceID: device, Load: l.load})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	if err := s.LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info}); err != nil {
		f.Fatal(err)
	}
	there := &p4v1.WriteRequest{}
	for _, text := range []string{exact1, lpm1, acl1, clone5, multicast5, digestConfig, member1, member2, group1} {
		there.Updates = append(there.Updates, &p4v1.Update{Type: p4v1.Update_INSERT, Entity: entity(f, text)})
	}
	errs, err := s.pipe.batch(everything, there)
	if err = errors.Join(append(errs, err)...); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		e := &p4v1.Entity{}
		if proto.Unmarshal(b, e) != nil {
			return
		}
		r := reader{p: s.pipe}
		if r.read(e) != nil {
			return
		}
		for _, one := range r.found {
			if _, err := proto.Marshal(one); err != nil {
				t.Fatal(err)
			}
			if reflect.TypeOf(one.GetEntity()) != reflect.TypeOf(e.GetEntity()) {
				t.Fatalf("%v is found by %v", one, e)
			}
			again := reader{p: s.pipe} // it is found by itself
			if err := again.read(one); err != nil || !slices.ContainsFunc(again.found, func(o *p4v1.Entity) bool { return proto.Equal(o, one) }) {
				t.Fatalf("%v finds %v, %v", one, again.found, err)
			}
		}
	})
}
