package p4rt

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

const writeRequestURL = "type.googleapis.com/p4.v1.WriteRequest"

// asOther is a stream message that holds r.
func asOther(t testing.TB, r proto.Message) *p4v1.StreamMessageRequest {
	t.Helper()
	m, err := anypb.New(r)
	if err != nil {
		t.Fatal(err)
	}
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: m}}
}

// streamed is a stream write of c's.
func (c *controller) streamed(updates ...*p4v1.Update) *p4v1.StreamMessageRequest {
	c.t.Helper()
	return asOther(c.t, &p4v1.WriteRequest{DeviceId: device, Role: c.role, ElectionId: c.election, Updates: updates})
}

// sendAll sends messages without waiting; the stream may end meanwhile.
func (c *controller) sendAll(ms ...*p4v1.StreamMessageRequest) {
	c.t.Helper()
	for _, m := range ms {
		if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
			c.t.Fatal(err)
		}
	}
	synctest.Wait()
}

// out is a packet-out of some bytes.
func out(t *testing.T, payload string) *p4v1.StreamMessageRequest {
	t.Helper()
	return packetOut(t, `payload: "`+payload+`" metadata { metadata_id: 1 value: "\x01" } metadata { metadata_id: 2 value: "\x00" } metadata { metadata_id: 3 value: "\x00" }`)
}

const acl1 = `table_entry { table_id: 0x02000003 priority: 1 match { field_id: 1 exact { value: "\x06" } } ` + mark + `}`

// Stream writes and packet-outs are carried out in the stream's order, and what is
// taken away is gone for all packets before anything is given. The table has
// exact1, and not the others.
func TestStreamWrite_Order(t *testing.T) {
	type message = func(*controller) *p4v1.StreamMessageRequest
	packet := func(payload string) message {
		return func(c *controller) *p4v1.StreamMessageRequest { return out(c.t, payload) }
	}
	write := func(updates func(c *controller) []*p4v1.Update) message {
		return func(c *controller) *p4v1.StreamMessageRequest { return c.streamed(updates(c)...) }
	}
	type us = []*p4v1.Update
	for name, tc := range map[string]struct {
		messages []message
		want     string
	}{
		"between packet-outs": {
			[]message{packet("a"), write(func(c *controller) us { return us{c.insert(lpm1)} }), packet("b")},
			"out a, +lpm, out b",
		},
		"revoke before grant": {
			[]message{write(func(c *controller) us { return us{c.del(exact1), c.insert(lpm1)} }), packet("a")},
			"-exact, settle, +lpm, out a",
		},
		"revoke before grant, in two messages": {
			[]message{
				write(func(c *controller) us { return us{c.del(exact1)} }),
				write(func(c *controller) us { return us{c.insert(lpm1)} }), packet("a"),
			},
			"-exact, settle, +lpm, out a",
		},
		"revoked at the end": {
			[]message{write(func(c *controller) us { return us{c.insert(lpm1), c.del(exact1)} }), packet("a")},
			"+lpm, -exact, settle, out a",
		},
		"several revocations are waited for once": {
			[]message{
				write(func(c *controller) us { return us{c.insert(lpm1)} }),
				write(func(c *controller) us { return us{c.del(exact1), c.del(lpm1), c.insert(acl1)} }),
			},
			"+lpm, -exact, -lpm, settle, +acl",
		},
		"again and again": {
			[]message{write(func(c *controller) us { return us{c.del(exact1), c.insert(lpm1), c.del(lpm1), c.insert(exact1)} })},
			"-exact, settle, +lpm, -lpm, settle, +exact",
		},
		"a modification takes and gives": {
			[]message{
				write(func(c *controller) us { return us{c.insert(lpm1)} }),
				write(func(c *controller) us { return us{c.del(lpm1), c.modify(exact1), c.insert(acl1)} }),
				write(func(c *controller) us { return us{c.modify(exact1)} }),
			},
			"+lpm, -lpm, settle, ~exact, settle, +acl, ~exact, settle",
		},
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, func(b *bench, c *controller) {
				c.must(c.insert(exact1))
				f := b.fakes.last(t)
				f.trace()
				var ms []*p4v1.StreamMessageRequest
				for _, m := range tc.messages {
					ms = append(ms, m(c))
				}
				c.sendAll(ms...)
				c.silent() // there is no answer to success
				if got := f.traced(); got != tc.want {
					t.Errorf("got  %s\nwant %s", got, tc.want)
				}
			})
		})
	}
}

// A stream write without updates is answered when all before it is carried out.
func TestStreamWrite_Barrier(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		f := b.fakes.last(t)
		f.trace()
		c.sendAll(c.streamed(c.insert(exact1)), out(t, "a"), c.streamed())
		m := c.next()
		if !m.GetOther().MessageIs((*p4v1.WriteResponse)(nil)) {
			t.Errorf("the barrier is answered with %v", m)
		}
		if got, want := f.traced(), "+exact, out a"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		c.silent()
	})
}

// What a stream write has written is read as if Write had.
func TestStreamWrite_IsRead(t *testing.T) {
	configured(t, func(_ *bench, c *controller) {
		c.sendAll(c.streamed(c.insert(exact1), c.insert(clone5)))
		c.expect(`table_entry { table_id: 0x02000001 }`, exact1)
		c.expect(`packet_replication_engine_entry { clone_session_entry {} }`, clone5)
		c.fails(codes.AlreadyExists, c.insert(exact1))
		c.must(c.del(exact1))
	})
}

// After an update that fails nothing is carried out any more, neither of its
// message nor of its stream; what it has taken away is in force.
func TestStreamWrite_FailureEndsTheStream(t *testing.T) {
	configured(t, func(b *bench, c *controller) {
		c.must(c.insert(exact1))
		f := b.fakes.last(t)
		f.trace()
		c.sendAll(out(t, "a"), c.streamed(c.del(exact1), c.del(lpm1), c.insert(acl1)),
			c.streamed(c.insert(lpm1)), out(t, "b"))
		c.ended(codes.Unknown)
		want := []codes.Code{codes.OK, codes.NotFound, codes.Aborted}
		if got := codesOf(t, c.err); !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
		if got, want := f.traced(), "out a, -exact, settle"; got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
		again := b.dial()
		again.mustBePrimary(2)
		again.sendAll(again.streamed(again.insert(lpm1)))
		again.expect(`table_entry { table_id: 0x02000002 }`, lpm1)
	})
}

// A request that is refused ends the stream, and changes nothing.
func TestStreamWrite_Refused(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		code       codes.Code
	}{
		{"unknown device", `device_id: 8 role: "none" election_id { low: 5 }`, codes.NotFound},
		{"unknown role", `device_id: 7 role: "none" election_id { low: 5 }`, codes.NotFound},
		{"deprecated role id", `device_id: 7 role_id: 4 election_id { low: 5 }`, codes.NotFound},
		{"unset election id", `device_id: 7`, codes.PermissionDenied},
		{"stale election id", `device_id: 7 election_id { low: 4 }`, codes.PermissionDenied},
		{"higher election id", `device_id: 7 election_id { low: 6 }`, codes.PermissionDenied},
		{"another role, whose primary is another stream", `device_id: 7 role: "other" election_id { low: 1 }`, codes.PermissionDenied},
		{"all or none", `device_id: 7 election_id { low: 5 } atomicity: ROLLBACK_ON_ERROR`, codes.Unimplemented},
		{"one step", `device_id: 7 election_id { low: 5 } atomicity: DATAPLANE_ATOMIC`, codes.Unimplemented},
	} {
		t.Run(tc.name, func(t *testing.T) {
			configured(t, func(b *bench, c *controller) {
				c.mustBePrimary(5)
				other := b.dial()
				other.arbitrateAs(withRole("other", ""))
				r := &p4v1.WriteRequest{}
				if err := prototext.Unmarshal([]byte(tc.text), r); err != nil {
					t.Fatal(err)
				}
				r.Updates = []*p4v1.Update{c.insert(exact1)}
				f := b.fakes.last(t)
				f.trace()
				c.sendAll(asOther(t, r), out(t, "a"))
				c.ended(tc.code)
				if got := f.traced(); got != "" {
					t.Errorf("it has done %s", got)
				}
			})
		})
	}
}

// Whoever is not primary, or not any more, does not write on its stream, also not
// in the name of the one that is.
func TestStreamWrite_NotPrimary(t *testing.T) {
	for name, speak := range map[string]func(*controller){
		"backup":                 func(c *controller) { c.arbitrate(4) },
		"never arbitrated":       func(*controller) {},
		"primary until just now": func(c *controller) { c.arbitrate(6); c.arbitrate(4) },
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, func(b *bench, c *controller) {
				c.mustBePrimary(5)
				o := b.dial()
				speak(o)
				if name == "primary until just now" {
					c.arbitrate(7)
				}
				for len(o.in) > 0 {
					<-o.in
				}
				f := b.fakes.last(t)
				f.trace()
				o.sendAll(asOther(t, &p4v1.WriteRequest{DeviceId: device, ElectionId: c.election, Updates: []*p4v1.Update{c.insert(exact1)}}))
				o.ended(codes.PermissionDenied)
				if got := f.traced(); got != "" {
					t.Errorf("it has done %s", got)
				}
			})
		})
	}
}

func TestStreamWrite_NoPipeline(t *testing.T) {
	virtual(t, func(b *bench) {
		c := b.dial()
		c.mustBePrimary(1)
		c.sendAll(c.streamed(c.insert(exact1)))
		c.ended(codes.FailedPrecondition)
	})
}

// A role writes what its configuration names.
func TestStreamWrite_RoleScope(t *testing.T) {
	configured(t, func(b *bench, _ *controller) {
		r := b.dial()
		r.arbitrateAs(withRole("some", onlyExact))
		r.expectArbitration(codes.OK, 1)
		r.sendAll(r.streamed(r.insert(exact1)))
		r.silent()
		r.sendAll(r.streamed(r.insert(lpm1)))
		r.ended(codes.Unknown)
		if got := codesOf(t, r.err); !slices.Equal(got, []codes.Code{codes.PermissionDenied}) {
			t.Errorf("got %v", got)
		}
		if n := len(b.fakes.last(t).entries); n != 1 {
			t.Errorf("%d entries in the data plane", n)
		}
	})
}

// What is no WriteRequest is answered as ever, what pretends to be one ends the
// stream.
func TestStreamWrite_Malformed(t *testing.T) {
	for name, tc := range map[string]struct {
		url, value string
		code       codes.Code // of the stream's end; OK if it goes on
	}{
		"another type":       {"type.googleapis.com/p4.v1.ReadRequest", "", codes.OK},
		"no type":            {"", "", codes.OK},
		"garbage":            {writeRequestURL, "\xff\xff", codes.InvalidArgument},
		"cut short":          {writeRequestURL, "\x22\x7f\x08", codes.InvalidArgument},
		"empty, so device 0": {writeRequestURL, "", codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			configured(t, func(_ *bench, c *controller) {
				a := &anypb.Any{TypeUrl: tc.url, Value: []byte(tc.value)}
				c.sendAll(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: a}})
				if tc.code != codes.OK {
					c.ended(tc.code)
					return
				}
				c.unimplemented(a)
			})
		})
	}
}

// unimplemented checks that the stream goes on and that the next message refuses a.
func (c *controller) unimplemented(a *anypb.Any) {
	c.t.Helper()
	if e := c.next().GetError(); codes.Code(e.GetCanonicalCode()) != codes.Unimplemented || !proto.Equal(e.GetOther().GetOther(), a) {
		c.t.Errorf("got %v", e)
	}
	c.silent()
}

// Stream writes are announced where they are understood.
func TestStreamWrite_Announced(t *testing.T) {
	for _, off := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			m, err := newBenchAs(t, Config{NoStreamWrites: off}).dial().Capabilities(context.Background(), &p4v1.CapabilitiesRequest{})
			if err != nil {
				t.Fatal(err)
			}
			s := &structpb.Struct{}
			if m.GetExperimental().UnmarshalTo(s) != nil || s.GetFields()["stream_writes"].GetBoolValue() == off {
				t.Errorf("with NoStreamWrites %v: %v", off, m)
			}
		})
	}
}

// Switched off, a stream write is what any unknown message is.
func TestStreamWrite_SwitchedOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBenchAs(t, Config{NoStreamWrites: true})
		c := b.dial()
		c.mustBePrimary(1)
		c.commit(testInfo(t))
		m := c.streamed(c.insert(exact1))
		c.sendAll(m)
		c.unimplemented(m.GetOther())
		if n := len(b.fakes.last(t).entries); n != 0 {
			t.Errorf("%d entries in the data plane", n)
		}
	})
}
