package rpc_test

import (
	"context"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/internal/testsvc"
)

// mute is a joiner and a session whose Gatekeeper is away: it says of nobody who it is. It counts the questions that wait.
type mute struct {
	join.Joiner
	join.Session
	waiting *atomic.Int64
}

// Join implements join.Joiner.
func (s mute) Join(ctx context.Context, name string) (_ join.Session, err error) {
	s.Session, err = s.Joiner.Join(ctx, name)
	return s, err
}

// Who implements join.Session.
func (s mute) Who(ctx context.Context, _ netip.Addr) (control.NodeInfo, error) {
	s.waiting.Add(1)
	defer s.waiting.Add(-1)
	<-ctx.Done()
	return control.NodeInfo{}, ctx.Err()
}

// TestCallerIsAskedAboutOnce: a node that has an answer for a caller asks from time to time whether the caller is there. While the Gatekeeper
// does not say, no further question begins, though the node is closing, too.
func TestCallerIsAskedAboutOnce(t *testing.T) {
	handler := func(context.Context, *rpc.Node) error { return nil }
	onBench(t, handler, func(b *bench) {
		var waiting atomic.Int64
		n, err := rpc.Join(join.NewContext(b.t.Context(), mute{Joiner: b.rack.Joiner(), waiting: &waiting}), rpc.WithName("other"))
		if err == nil {
			err = n.Export(b.t.Context(), "Test", testsvc.NewTestProcessor(new(testsvc.Handler)))
		}
		if err != nil {
			b.t.Fatal(err)
		}
		b.server = n
		b.run(b.call())           // which its caller never forgets
		<-time.After(time.Minute) // virtual
		if w := waiting.Load(); w != 1 {
			b.t.Errorf("%d questions wait after a minute, want 1", w)
		}
		soon, cancel := context.WithTimeout(b.t.Context(), time.Minute) // virtual
		defer cancel()
		if err := n.Close(soon); err == nil {
			b.t.Error("the node has closed in order, though an answer is not forgotten")
		}
		synctest.Wait()
		if w := waiting.Load(); w != 0 {
			b.t.Errorf("%d questions outlive the node", w)
		}
	})
}
