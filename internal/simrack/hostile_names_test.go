package simrack_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// TestHostile_MadeUpMethods is row 16: calls of methods that a service does not have, and to services that nobody has, take no
// room among the figures of methods. Others' methods have theirs.
func TestHostile_MadeUpMethods(t *testing.T) {
	inVirtualTimeWith(t, simrack.Config{Schedule: &wire.Schedule{Seed: 1}}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "c1", "s1", "s2")
		honest, stranger, callee := nodes[0], nodes[1], nodes[2]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		c := stranger.Client("Arrays", rpc.WithPolicy(rpc.PolicyNone))
		for i := range trace.MaxMethods + 100 {
			_, err := c.Call(ctx, fmt.Sprint("m", i), &arrays.ArraysEchoArgs{}, &arrays.ArraysEchoResult{})
			if code := rpc.CodeOf(err); code != rpc.NoSuchMethod {
				t.Fatalf("call %d: %v", i, err)
			}
		}
		if _, err := arrays.NewArraysClient(honest.Client("Arrays", rpc.WithPolicy(rpc.PolicyNone))).Echo(ctx, []byte("x")); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second) // virtual: the node has told
		methods, err := r.Gatekeeper().Methods(ctx)
		if err != nil {
			t.Fatal(err)
		}
		rows := map[string]uint64{}
		for i := range methods {
			m := &methods[i]
			rows[m.Service+"."+m.Method] = m.Open
			for _, n := range m.Ended {
				rows[m.Service+"."+m.Method] += n
			}
		}
		if unknown := trace.UnknownMethods + "." + trace.UnknownMethods; len(rows) != 2 || rows["Arrays.echo"] != 1 || rows[unknown] != trace.MaxMethods+100 {
			t.Errorf("%d rows: %d calls of Arrays.echo, %d of unknown methods", len(rows), rows["Arrays.echo"], rows[unknown])
		}
	})
}

// TestHostile_Escapes is row 17: what a program calls its methods, or says in its IDL, reaches nobody's terminal as anything but
// text. An export and a call are refused, and a call that comes past that is counted without its name.
func TestHostile_Escapes(t *testing.T) {
	inVirtualTimeWith(t, simrack.Config{Schedule: &wire.Schedule{Seed: 1}}, func(t *testing.T, ctx context.Context, r *simrack.Rack) {
		nodes := joinAll(t, ctx, r, "s1", "s2")
		stranger, callee := nodes[0], nodes[1]
		if err := callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(&service.Arrays{})); err != nil {
			t.Fatal(err)
		}
		const evil = "a\x1b[2J\nb"
		_, err := stranger.Client("Arrays", rpc.WithPolicy(rpc.PolicyNone)).Call(ctx, evil, &arrays.ArraysEchoArgs{}, &arrays.ArraysEchoResult{})
		if rpc.CodeOf(err) != rpc.BadRequest || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("a call of %q: %v", evil, err)
		}
		j, err := r.Joiner("s1")
		if err != nil {
			t.Fatal(err)
		}
		s, err := j.Join(ctx, "raw")
		if err != nil {
			t.Fatal(err)
		}
		for what, e := range map[string]control.Export{
			"method": {Service: "Evil", Methods: []control.Method{{Name: evil}}},
			"IDL":    {Service: "Evil", Methods: []control.Method{{Name: "a"}}, IDL: "service Evil { /* \x1b[2J */ void a() }"},
		} {
			if _, err := s.Export(ctx, e); rpc.CodeOf(err) != rpc.BadRequest || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("a %s with an escape: %v", what, err)
			}
		}
		if _, err := s.Export(ctx, control.Export{Service: "Evil", Methods: []control.Method{{Name: "a"}}, IDL: "service Evil {\r\n\tvoid a() // größer\n}"}); err != nil {
			t.Errorf("an IDL with lines and tabs: %v", err)
		}
		arraysAddress := rackaddr.Service("Arrays").As16()
		m := rpcpacket.Message{Header: rpcpacket.Header{
			Type: rpcpacket.Call, NameLength: uint8(len(evil)),
			CalleeIncarnation: incarnationOf(t, r, callee.Address()),
			Service:           binary.BigEndian.Uint64(arraysAddress[8:]),
		}}
		copy(m.Method[:], evil)
		place(t, r, &m.Header, stranger.Address(), incarnationOf(t, r, stranger.Address()), 0, 1)
		r.Host("s1").SendRaw(netip.AddrPortFrom(stranger.Address(), rackaddr.PortDirect), netip.AddrPortFrom(callee.Address(), rackaddr.PortDirect), m.Append(nil))
		<-time.After(time.Second) // virtual: it has come
		calls, _, err := r.Gatekeeper().Timelines(ctx, trace.Query{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for i := range calls {
			if strings.ContainsAny(calls[i].Method, "\x1b\n") {
				t.Errorf("a call of %q is shown", calls[i].Method)
			}
		}
		rows, err := r.Gatekeeper().Methods(ctx)
		if err != nil || len(rows) != 1 || rows[0].Method != trace.UnknownMethods || callee.Stats().Refused != 1 {
			t.Errorf("the call has not come, or has a row of its own: %+v, %v", rows, err)
		}
	})
}
