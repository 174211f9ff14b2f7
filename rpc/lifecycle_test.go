package rpc_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testrack"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// Close lets running handlers finish and refuses new calls.
func TestCloseWaitsForHandlers(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		p.handler.Gate = func(ctx context.Context, _ int64) error {
			pass(time.Second)
			return ctx.Err()
		}
		done := make(chan error)
		go func() {
			_, err := p.newClient().Count(t.Context(), 1)
			done <- err
		}()
		synctest.Wait()
		closed := make(chan struct{})
		go func() {
			closeNode(t, p.server)
			close(closed)
		}()
		synctest.Wait()
		var coded *rpc.Error
		if err := p.client.Ping(t.Context()); !errors.As(err, &coded) || coded.Code != rpc.Unavailable || !rpc.NeverBegan(err) {
			t.Errorf("a call while closing: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("the running call: %v", err)
		}
		<-closed
		<-p.server.Done()
	})
}

// Close cuts handlers off when its context ends, and says so.
func TestCloseCutsOff(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		ended := make(chan struct{})
		p.handler.Gate = func(ctx context.Context, _ int64) error {
			defer close(ended)
			<-ctx.Done()
			return ctx.Err()
		}
		callCtx, cancelCall := context.WithCancel(t.Context())
		defer cancelCall()
		done := make(chan error)
		go func() {
			_, err := p.newClient().Count(callCtx, 1)
			done <- err
		}()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.server.Close(ctx); rpc.CodeOf(err) != rpc.Deadline {
			t.Errorf("close: %v", err)
		}
		<-ended
		cancelCall()
		if err := <-done; rpc.CodeOf(err) != rpc.Canceled {
			t.Errorf("the call: %v", err)
		}
	})
}

// A node that loses its identity fails its calls at once.
func TestNodeLosesItsIdentity(t *testing.T) {
	calm(t, nil, func(t *testing.T, p *pair) {
		started := make(chan struct{})
		p.handler.Gate = func(ctx context.Context, _ int64) error {
			close(started)
			<-ctx.Done()
			return ctx.Err()
		}
		done := make(chan error)
		go func() {
			_, err := p.newClient().Count(t.Context(), 1)
			done <- err
		}()
		<-started
		for _, s := range p.rack.Sessions() {
			s.Cut()
		}
		if err := <-done; rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("the call under way: %v", err)
		}
		<-p.caller.Done()
		if err := p.client.Ping(t.Context()); rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("a later call: %v", err)
		}
		if err := p.caller.Export(t.Context(), "Late", testsvc.NewTestProcessor(p.handler)); rpc.CodeOf(err) != rpc.Unavailable {
			t.Errorf("a later export: %v", err)
		}
	})
}

// A blade that crashes takes its nodes with it: calls fail, nothing spins.
func TestBladeCrashes(t *testing.T) {
	for _, host := range []string{"client", "server"} {
		calm(t, nil, func(t *testing.T, p *pair) {
			p.handler.Gate = func(ctx context.Context, _ int64) error {
				<-ctx.Done()
				return ctx.Err()
			}
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			done := make(chan error)
			go func() {
				_, err := p.newClient().Count(ctx, 1)
				done <- err
			}()
			synctest.Wait()
			p.rack.Net.Host(host).Crash()
			want := map[string]rpc.Code{"client": rpc.Unavailable, "server": rpc.Deadline}[host]
			if err := <-done; rpc.CodeOf(err) != want {
				t.Errorf("%s crashes: %v", host, err)
			}
			<-map[string]*rpc.Node{"client": p.caller, "server": p.server}[host].Done()
		})
	}
}

func TestExportRefuses(t *testing.T) {
	r := testrack.New(t, wire.Config{})
	n := joinNode(t, r, "server")
	proc := testsvc.NewTestProcessor(&testsvc.Handler{})
	for _, opts := range [][]rpc.ExportOption{{rpc.WithWorkers(0)}, {rpc.WithQueue(-1)}, {rpc.WithMethodPolicy(rpc.PolicyNone, "no such")}} {
		if err := n.Export(t.Context(), "Test", proc, opts...); rpc.CodeOf(err) != rpc.BadRequest {
			t.Errorf("got %v", err)
		}
	}
	refuse := true
	var exported control.Export
	r.Sessions()[0].OnExport = func(e control.Export) error {
		exported = e
		if refuse {
			return errors.New("not here")
		}
		return nil
	}
	if err := n.Export(t.Context(), "Test", proc, rpc.WithState(noState{})); err == nil || !strings.Contains(err.Error(), "not here") {
		t.Errorf("got %v", err)
	}
	refuse = false
	if err := n.Export(t.Context(), "Test", proc, rpc.WithState(noState{}), rpc.WithMethodPolicy(rpc.PolicyTainted, "add")); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	if err := n.Export(t.Context(), "Test", proc, rpc.WithWorkers(2)); rpc.CodeOf(err) != rpc.BadRequest {
		t.Errorf("twice, with other options: %v", err)
	}
	for _, m := range exported.Methods {
		if (m.Name == "add") != (m.Policy == "tainted") || m.Name != "add" && m.Policy != "" {
			t.Errorf("method %+v", m)
		}
	}
	if len(exported.Methods) != len(proc.ProcessorMap()) || !exported.Stateful || exported.Service != "Test" || exported.Node != n.Address() {
		t.Errorf("exported %+v", exported)
	}
}

func TestJoinFails(t *testing.T) {
	_, err := rpc.Join(join.NewContext(t.Context(), nobody{}))
	if rpc.CodeOf(err) != rpc.Unavailable {
		t.Errorf("got %v", err)
	}
}
