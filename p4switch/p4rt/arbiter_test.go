package p4rt

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
)

func TestSection5_Arbitration_HighestElectionIDIsPrimary(t *testing.T) {
	virtual(t, func(b *bench) {
		first, second, third := b.dial(), b.dial(), b.dial()
		first.mustBePrimary(3)
		second.arbitrate(2)
		second.expectArbitration(codes.AlreadyExists, 3)
		first.silent() // nothing has changed for it
		third.arbitrate(5)
		third.expectArbitration(codes.OK, 5)
		first.expectArbitration(codes.AlreadyExists, 5)
		second.expectArbitration(codes.AlreadyExists, 5)
	})
}

func TestSection5_Arbitration_ElectionIDsHave128Bits(t *testing.T) {
	virtual(t, func(b *bench) {
		low, high := b.dial(), b.dial()
		low.arbitrateAs(&p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4v1.Uint128{High: 1, Low: 9}})
		low.expectArbitration(codes.OK, 9)
		high.arbitrateAs(&p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4v1.Uint128{High: 2, Low: 0}})
		if m := high.expectArbitration(codes.OK, 0); m.GetElectionId().GetHigh() != 2 {
			t.Errorf("got %v", m)
		}
		low.expectArbitration(codes.AlreadyExists, 0)
	})
}

func TestSection5_Arbitration_ZeroIsAnElectionIDUnsetIsNone(t *testing.T) {
	virtual(t, func(b *bench) {
		standby, zero := b.dial(), b.dial()
		standby.arbitrate(0) // unset
		if m := standby.next().GetArbitration(); codes.Code(m.GetStatus().GetCode()) != codes.NotFound || m.GetElectionId() != nil {
			t.Fatalf("got %v", m)
		}
		zero.arbitrateAs(&p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4v1.Uint128{}})
		zero.expectArbitration(codes.OK, 0)
		standby.expectArbitration(codes.AlreadyExists, 0)
	})
}

func TestSection5_Arbitration_PrimaryLeaves(t *testing.T) {
	virtual(t, func(b *bench) {
		first, second := b.dial(), b.dial()
		first.mustBePrimary(3)
		second.arbitrate(2)
		second.expectArbitration(codes.AlreadyExists, 3)
		first.hangUp()
		second.expectArbitration(codes.NotFound, 3)
		second.arbitrate(2) // still below the highest ever
		second.expectArbitration(codes.NotFound, 3)
		second.arbitrate(3) // nobody has it any more
		second.expectArbitration(codes.OK, 3)
	})
}

func TestSection5_Arbitration_PrimaryStepsDown(t *testing.T) {
	virtual(t, func(b *bench) {
		first, second := b.dial(), b.dial()
		first.mustBePrimary(3)
		second.arbitrate(2)
		second.expectArbitration(codes.AlreadyExists, 3)
		first.arbitrate(1)
		first.expectArbitration(codes.NotFound, 3)
		second.expectArbitration(codes.NotFound, 3)
		first.arbitrate(4) // and up again
		first.expectArbitration(codes.OK, 4)
		second.expectArbitration(codes.AlreadyExists, 4)
	})
}

func TestSection5_Arbitration_BackupLeavesSilently(t *testing.T) {
	virtual(t, func(b *bench) {
		first, second := b.dial(), b.dial()
		first.mustBePrimary(3)
		second.arbitrate(2)
		second.expectArbitration(codes.AlreadyExists, 3)
		second.hangUp()
		first.silent()
	})
}

func TestSection5_3_InvalidUpdatesEndTheStream(t *testing.T) {
	for _, tc := range []struct {
		name, first, then string
		code              codes.Code
	}{
		{"unknown device", ``, `device_id: 8 election_id { low: 1 }`, codes.NotFound},
		{"device 0", ``, `election_id { low: 1 }`, codes.NotFound},
		{"election id in use", ``, `device_id: 7 election_id { low: 9 }`, codes.InvalidArgument},
		{"unknown role scheme", ``, `device_id: 7 role { name: "r" config { type_url: "x/y" } } election_id { low: 1 }`, codes.InvalidArgument},
		{"default role with a config", ``, `device_id: 7 role { config { [type.googleapis.com/google.protobuf.Struct] {} } }`, codes.InvalidArgument},
		{"deprecated role id", ``, `device_id: 7 role { id: 3 }`, codes.InvalidArgument},
		{"another device", `device_id: 7 election_id { low: 1 }`, `device_id: 8 election_id { low: 1 }`, codes.FailedPrecondition},
		{"another role", `device_id: 7 election_id { low: 1 }`, `device_id: 7 role { name: "r" }`, codes.FailedPrecondition},
		{"a live one's election id later", `device_id: 7 election_id { low: 1 }`, `device_id: 7 election_id { low: 9 }`, codes.InvalidArgument},
	} {
		t.Run(tc.name, func(t *testing.T) {
			virtual(t, func(b *bench) {
				other := b.dial()
				other.mustBePrimary(9)
				c := b.dial()
				for _, text := range []string{tc.first, tc.then} {
					if text == "" {
						continue
					}
					m := &p4v1.MasterArbitrationUpdate{}
					if err := prototext.Unmarshal([]byte(text), m); err != nil {
						t.Fatal(err)
					}
					c.arbitrateAs(m)
					if text == tc.first {
						c.expectArbitration(codes.AlreadyExists, 9)
					}
				}
				c.ended(tc.code)
				other.silent()
			})
		})
	}
}

func TestSection5_3_TooManyStreams(t *testing.T) {
	virtual(t, func(b *bench) {
		for range maxStreamsPerRole {
			c := b.dial()
			c.arbitrate(0)
			c.next()
		}
		c := b.dial()
		c.arbitrate(0)
		c.ended(codes.ResourceExhausted)
	})
}

// A new primary is told so only when the writes of the previous one are done;
// everybody else hears of it at once. (In real time: a goroutine that waits for
// a mutex does not let a bubble settle.)
func TestSection5_3_WritesUnderWayAreFinishedFirst(t *testing.T) {
	b := newBench(t)
	c, next := b.dial(), b.dial()
	c.election = id128(1)
	c.send(arbitration(1))
	c.await(codes.OK, 1)
	c.commit(testInfo(t))
	f := b.fakes.last(t)
	f.applying, f.block = make(chan struct{}), make(chan struct{})
	written := make(chan error, 1)
	go func() { written <- c.write(c.insert(exact1)) }()
	<-f.applying
	next.send(arbitration(2))
	c.await(codes.AlreadyExists, 2)
	if len(next.in) != 0 {
		t.Error("the new primary has been told while a write was under way")
	}
	close(f.block)
	next.await(codes.OK, 2)
	if err := <-written; err != nil {
		t.Errorf("the write that was under way: %v", err)
	}
	if err := c.write(c.insert(exact1)); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the previous primary's next write: %v", err)
	}
}

func arbitration(election uint64) *p4v1.StreamMessageRequest {
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
		Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: id128(election)},
	}}
}

// await waits, in real time, for an arbitration update.
func (c *controller) await(code codes.Code, election uint64) {
	c.t.Helper()
	select {
	case m := <-c.in:
		a := m.GetArbitration()
		if codes.Code(a.GetStatus().GetCode()) != code || a.GetElectionId().GetLow() != election {
			c.t.Fatalf("got %v, want %v and election %d", m, code, election)
		}
	case <-time.After(patience):
		c.t.Fatal("no message has come")
	}
}

func withRole(name, config string) *p4v1.MasterArbitrationUpdate {
	m := &p4v1.MasterArbitrationUpdate{}
	text := `device_id: 7 election_id { low: 1 } role { name: "` + name + `" `
	if config != "" {
		text += `config { [type.googleapis.com/google.protobuf.Struct] {` + config + `} } `
	}
	if err := prototext.Unmarshal([]byte(text+"}"), m); err != nil {
		panic(err)
	}
	return m
}

func TestSection5_1_RolesHavePrimariesOfTheirOwn(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		other := b.dial()
		other.arbitrateAs(withRole("other", ""))
		if m := other.expectArbitration(codes.OK, 1); m.GetRole().GetName() != "other" {
			t.Errorf("got %v", m)
		}
		c.silent() // the same election id in another role is another matter
		other.must(other.insert(exact1))
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		// Both have full access, so both hear of packets.
		b.fakes.last(t).sink.PacketIn([]byte{0, 0, 'x'})
		if c.next().GetPacket() == nil || other.next().GetPacket() == nil {
			t.Error("a primary has not got the packet")
		}
	})
}

const onlyExact = `
	fields { key: "objects" value { list_value { values { string_value: "ingress.exact" } values { string_value: "clone" } } } }
	fields { key: "packetIn" value { bool_value: false } }
	fields { key: "packetOut" value { bool_value: false } }
	fields { key: "pipeline" value { bool_value: false } }`

func TestSection5_2_RoleConfigLimitsWhatARoleMayDo(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		r := b.dial()
		r.arbitrateAs(withRole("some", onlyExact))
		if m := r.expectArbitration(codes.OK, 1); m.GetRole().GetConfig() == nil {
			t.Errorf("the notice lacks the role's config: %v", m)
		}
		r.must(r.insert(exact1), r.insert(clone5))
		r.fails(codes.PermissionDenied, r.insert(lpm1))
		r.fails(codes.PermissionDenied, r.insert(multicast5))
		r.fails(codes.InvalidArgument, r.insert(`table_entry { table_id: 99 }`))
		if err := r.config(p4v1.SetForwardingPipelineConfigRequest_VERIFY, nil); status.Code(err) != codes.PermissionDenied {
			t.Errorf("pipeline: %v", err)
		}
		r.send(packetOut(t, ``))
		if e := r.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.PermissionDenied {
			t.Errorf("packet out: %v", e)
		}
		b.fakes.last(t).sink.PacketIn([]byte{0, 0, 'x'})
		r.silent()
		if c.next().GetPacket() == nil {
			t.Error("the default role has not got the packet")
		}
		c.must(c.insert(lpm1))
		ctx, cancel := limited()
		defer cancel()
		s, err := r.Read(ctx, &p4v1.ReadRequest{DeviceId: device, Role: "some", Entities: []*p4v1.Entity{entity(t, `table_entry {}`)}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil || len(m.GetEntities()) != 1 || m.GetEntities()[0].GetTableEntry().GetTableId() != 0x02000001 {
			t.Errorf("read for a role: %v, %v", m, err)
		}
	})
}

func TestSection5_2_MalformedRoleConfig(t *testing.T) {
	for name, config := range map[string]string{
		"unknown field":      `fields { key: "objekts" value { list_value {} } }`,
		"flag is no boolean": `fields { key: "packetIn" value { number_value: 1 } }`,
		"objects no list":    `fields { key: "objects" value { string_value: "x" } }`,
		"object no string":   `fields { key: "objects" value { list_value { values { bool_value: true } } } }`,
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(b *bench) {
				c := b.dial()
				c.arbitrateAs(withRole("r", config))
				c.ended(codes.InvalidArgument)
			})
		})
	}
}

func TestSection12_WriteChecksInOrder(t *testing.T) {
	virtual(t, func(b *bench) {
		c, backup := b.dial(), b.dial()
		c.mustBePrimary(5)
		backup.arbitrate(4)
		backup.next()
		for _, tc := range []struct {
			name, text string
			code       codes.Code
		}{
			{"unknown device", `device_id: 8 role: "none" election_id { low: 5 }`, codes.NotFound},
			{"unknown role", `device_id: 7 role: "none" election_id { low: 5 }`, codes.NotFound},
			{"deprecated role id", `device_id: 7 role_id: 4 election_id { low: 5 }`, codes.NotFound},
			{"unset election id", `device_id: 7`, codes.PermissionDenied},
			{"backup's election id", `device_id: 7 election_id { low: 4 }`, codes.PermissionDenied},
			{"higher election id", `device_id: 7 election_id { low: 6 }`, codes.PermissionDenied},
			{"no pipeline yet", `device_id: 7 election_id { low: 5 }`, codes.FailedPrecondition},
		} {
			r := &p4v1.WriteRequest{}
			if err := prototext.Unmarshal([]byte(tc.text), r); err != nil {
				t.Fatal(err)
			}
			if _, err := c.Write(context.Background(), r); status.Code(err) != tc.code || len(status.Convert(err).Details()) != 0 {
				t.Errorf("%s: %v, want %v", tc.name, err, tc.code)
			}
		}
		// A primary that is gone takes its right to write along.
		c.hangUp()
		backup.expectArbitration(codes.NotFound, 5)
		r := &p4v1.WriteRequest{DeviceId: device, ElectionId: id128(5)}
		if _, err := backup.Write(context.Background(), r); status.Code(err) != codes.PermissionDenied {
			t.Errorf("without a primary: %v", err)
		}
	})
}

// The first thing that a new primary hears is that it is primary, however many
// packets are waiting to be told of.
func TestSection5_4_NoticeComesBeforePackets(t *testing.T) {
	b := newBench(t)
	first := b.dial()
	first.election = id128(1)
	first.send(arbitration(1))
	first.await(codes.OK, 1)
	first.commit(testInfo(t))
	sink := b.fakes.last(t).sink
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				sink.PacketIn([]byte{0, 0, 'x'})
			}
		}
	}()
	for i := range uint64(10) {
		c := b.dial()
		c.send(arbitration(i + 2))
		c.await(codes.OK, i+2)
	}
	close(stop)
	<-done
}

// TestPrimary_KnownBeforeItAsks: what a controller asks for once it has heard that it is primary waits until the packet path knows it;
// a packet that comes after that is dropped no more because nobody is primary.
func TestPrimary_KnownBeforeItAsks(t *testing.T) {
	virtual(t, func(b *bench) {
		heard := false
		c := &client{out: outstream.New(func(*outstream.Message) error {
			heard = true
			if len(b.srv.arb.primaries()) == 0 && b.srv.mu.TryLock() {
				b.srv.mu.Unlock()
				t.Error("it may write, and gets no packet yet")
			}
			return nil
		}, new(atomic.Uint64))}
		if err := b.srv.arbitrate(c, &p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: &p4v1.Uint128{Low: 1}}); err != nil {
			t.Fatal(err)
		}
		if !heard || len(b.srv.arb.primaries()) != 1 {
			t.Errorf("heard of it: %t; primaries: %d", heard, len(b.srv.arb.primaries()))
		}
	})
}
