package simrack_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// TestService: another node learns the health, the nodes, the methods and the IDL of a
// service, also from a Gatekeeper that has begun anew; a watcher learns each change.
func TestService(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		idl := "service Ping { void ping() }" + strings.Repeat(" ", 100<<10)
		nodes := make(chan *rpc.Node, 2)
		program := func(ctx context.Context, j join.Joiner, _ control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("server"))
			if err != nil {
				return err
			}
			err = n.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{}), rpc.WithIDL(idl))
			nodes <- n
			<-ctx.Done()
			return errors.Join(err, n.Close(context.WithoutCancel(ctx)))
		}
		r, err := simrack.Start(t.Context(), simrack.Config{
			Schedule: &wire.Schedule{Seed: 1, Quiesce: synctest.Wait}, Disk: new(wal.Disk), Programs: map[string]simrack.Program{"server": program},
		})
		must := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		must(err)
		client, err := r.Join(t.Context(), "c1", "client")
		must(err)
		ctx, cancel := context.WithCancel(t.Context())
		watched := make(chan string)
		go func() {
			for h, err := range client.WatchHealth(ctx, "Ping") {
				watched <- fmt.Sprint(h, rpc.CodeOf(err))
			}
			close(watched)
		}()
		expect := func(want string) {
			t.Helper()
			if got := <-watched; got != want {
				t.Errorf("watched %s, want %s", got, want)
			}
		}
		expect("SERVICE_UNKNOWNok")
		must(r.Gatekeeper().Deploy(t.Context(), resources.Spec{Name: "app", Programs: []resources.Program{{
			Name: "prog", Args: []string{"server"}, Nodes: 2, Blades: []string{"s1", "s2"}, Services: []resources.ServiceSpec{{Name: "Ping"}},
		}}}))
		servers := []*rpc.Node{<-nodes, <-nodes}
		expect("SERVINGok")
		must(servers[0].SetServing(t.Context(), "Ping", false))
		for range 2 { // before and after the Gatekeeper has begun anew
			s, err := client.Service(t.Context(), "Ping")
			if err != nil || s.Health != rpc.Serving || len(s.Serving) != 1 || s.Serving[0] != servers[1].Address() ||
				len(s.Resting) != 1 || s.Resting[0] != servers[0].Address() || fmt.Sprint(s.Methods) != "[ping]" || s.IDL != idl {
				t.Errorf("%v: %s, %v, %v, %v, an IDL of %d bytes", err, s.Health, s.Serving, s.Resting, s.Methods, len(s.IDL))
			}
			o, err := r.Gatekeeper().Overview(t.Context())
			if err != nil || len(o.Services) != 1 || o.Services[0].IDL != idl || len(o.Services[0].NotServing) != 1 {
				t.Errorf("%v: the overview has %+v", err, len(o.Services))
			}
			r.CrashGatekeeper()
			must(r.RestartGatekeeper(t.Context()))
		}
		must(servers[1].SetServing(t.Context(), "Ping", false))
		expect("NOT_SERVINGok")
		must(arrays.NewPingClient(client.Client("Ping")).Ping(t.Context())) // calls are routed all the same
		must(servers[0].SetServing(t.Context(), "Ping", true))
		expect("SERVINGok")
		must(r.Gatekeeper().Undeploy(t.Context(), "app"))
		expect("SERVICE_UNKNOWNok")
		cancel()
		expect("canceled")
		if _, more := <-watched; more {
			t.Error("it goes on after its context has ended")
		}
		if err := client.SetServing(t.Context(), "Ping", true); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("a service that the node does not export: %v", err)
		}
		n, err := r.Join(t.Context(), "s1", "long")
		must(err)
		err = n.Export(t.Context(), "Long", arrays.NewPingProcessor(service.Ping{}), rpc.WithIDL(strings.Repeat(" ", 200<<10)))
		if rpc.CodeOf(err) != rpc.BadRequest || !strings.Contains(err.Error(), "at most 131072") {
			t.Errorf("an IDL that is too long: %v", err)
		}
		must(r.Close())
	})
}

// TestLateRegistration: what is registered with a multiplexed processor after the export
// is served from the first call on, whatever the policy, pointers included. The rack
// learns of it, and routes calls that need no Gatekeeper.
func TestLateRegistration(t *testing.T) {
	withTrio(t, func(r *trio) {
		processor := thrift.NewTMultiplexedProcessor()
		processor.RegisterProcessor("Ping", arrays.NewPingProcessor(service.Ping{}))
		r.must(r.stranger.Export(r.ctx, "All", processor))
		call := func(p rpc.Policy, method string, args, result thrift.TStruct) error {
			_, err := r.caller.Client("All", rpc.WithPolicy(p)).Call(r.ctx, method, args, result)
			return err
		}
		ping := func(p rpc.Policy) error {
			return call(p, "Ping:ping", &arrays.PingPingArgs{}, &arrays.PingPingResult{})
		}
		pointer := r.alloc(r.caller, 8)
		r.handler.incrementRef = func(ctx context.Context, p dsm.Pointer) (dsm.Pointer, error) {
			if _, err := rpc.Memory(ctx).Read(ctx, p, make([]byte, 8)); err != nil {
				return dsm.Pointer{}, err
			}
			return r.stranger.Memory().Alloc(ctx, 8)
		}
		byReference := func(p rpc.Policy, part string) error {
			return call(p, part+":incrementRef", &arrays.ArraysIncrementRefArgs{Data: rpc.GlobalPointer(pointer), Length: 8, Delta: 1}, &arrays.ArraysIncrementRefResult{})
		}
		for i, p := range []rpc.Policy{rpc.PolicyNone, rpc.PolicyRecover} {
			byValue := func(part string) error {
				return call(p, part+":increment", &arrays.ArraysIncrementArgs{Data: []byte{1}, Delta: 1}, &arrays.ArraysIncrementResult{})
			}
			first, second := fmt.Sprint("First", i), fmt.Sprint("Second", i)
			r.expect("before, by value", rpc.NoSuchMethod, byValue(first))
			r.expect("before, by reference", rpc.NoSuchMethod, byReference(p, second))
			r.must(ping(p))
			processor.RegisterProcessor(first, arrays.NewArraysProcessor(&r.handler))
			r.must(byValue(first))
			processor.RegisterProcessor(second, arrays.NewArraysProcessor(&r.handler))
			r.must(byReference(p, second))
			r.must(ping(p))
			for known := false; !known; {
				s, err := r.caller.Service(r.ctx, "All") // the test's deadline ends it
				r.must(err)
				known = slices.Contains(s.Methods, first+":increment") && slices.Contains(s.Methods, second+":increment")
			}
		}
		r.must(r.write(r.caller, pointer)) // the lease has ended
	})
}
