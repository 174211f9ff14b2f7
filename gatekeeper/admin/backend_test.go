package admin

import (
	"context"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// stopped is a Gatekeeper that does not run any more.
type stopped struct{}

func (stopped) Settings() gatekeeper.Settings {
	return gatekeeper.Settings{Boot: 0xb007, Election: control.Election{Low: 7}, DSMPrefix: 0x10}
}
func (stopped) Connected(context.Context) (bool, error) { return false, gatekeeper.ErrStopped }
func (stopped) Overview(context.Context) (gatekeeper.Overview, error) {
	return gatekeeper.Overview{}, gatekeeper.ErrStopped
}
func (stopped) Regions(context.Context, gatekeeper.RegionQuery) ([]gatekeeper.RegionState, bool, error) {
	return nil, false, gatekeeper.ErrStopped
}
func (stopped) Calls(context.Context, gatekeeper.CallQuery) ([]gatekeeper.CallState, gatekeeper.CallCursor, error) {
	return nil, gatekeeper.CallCursor{}, gatekeeper.ErrStopped
}
func (stopped) Call(context.Context, rpcpacket.ID) (gatekeeper.CallState, bool, error) {
	return gatekeeper.CallState{}, false, gatekeeper.ErrStopped
}
func (stopped) NodeCalls(context.Context, netip.Addr) (gatekeeper.NodeCalls, error) {
	return gatekeeper.NodeCalls{}, gatekeeper.ErrStopped
}
func (stopped) Chain(context.Context, rpcpacket.ID) ([]gatekeeper.CallState, error) {
	return nil, gatekeeper.ErrStopped
}
func (stopped) Holders(context.Context, dsmpacket.Pointer) (gatekeeper.Holders, error) {
	return gatekeeper.Holders{}, gatekeeper.ErrStopped
}
func (stopped) FailureDomain(context.Context, string) (gatekeeper.FailureDomain, error) {
	return gatekeeper.FailureDomain{}, gatekeeper.ErrStopped
}
func (stopped) Rules(context.Context, ...string) ([]p4rtclient.Entry, error) {
	return nil, gatekeeper.ErrStopped
}
func (stopped) SetPolicy(context.Context, string, string, string) error {
	return gatekeeper.ErrStopped
}
func (stopped) Policies(context.Context) ([]resources.MethodPolicy, error) {
	return nil, gatekeeper.ErrStopped
}
func (stopped) Policy(context.Context, string, string) (resources.MethodPolicy, error) {
	return resources.MethodPolicy{}, gatekeeper.ErrStopped
}
func (stopped) Timeline(context.Context, rpcpacket.ID, int) ([]trace.Leaf, bool, error) {
	return nil, false, gatekeeper.ErrStopped
}
func (stopped) Timelines(context.Context, trace.Query) ([]trace.Call, uint64, error) {
	return nil, 0, gatekeeper.ErrStopped
}
func (stopped) Drain(context.Context, string, string) error { return gatekeeper.ErrStopped }
func (stopped) MarkFailed(context.Context, string, string) error {
	return gatekeeper.ErrStopped
}
func (stopped) Mirror(context.Context, string, string) error   { return gatekeeper.ErrStopped }
func (stopped) Unmirror(context.Context, string, string) error { return gatekeeper.ErrStopped }
func (stopped) ReturnToService(context.Context, string) error  { return gatekeeper.ErrStopped }
func (stopped) Reconcile(context.Context) (int, error)         { return 0, gatekeeper.ErrStopped }
func (stopped) Deploy(context.Context, resources.Spec) error   { return gatekeeper.ErrStopped }
func (stopped) Restart(context.Context, string) error          { return gatekeeper.ErrStopped }
func (stopped) Rollback(context.Context, string) error         { return gatekeeper.ErrStopped }
func (stopped) Undeploy(context.Context, string) error         { return gatekeeper.ErrStopped }
func (stopped) Deployments(context.Context) ([]resources.Deployment, error) {
	return nil, gatekeeper.ErrStopped
}
func (stopped) Methods(context.Context) ([]trace.Method, error)    { return nil, gatekeeper.ErrStopped }
func (stopped) CancelCall(context.Context, rpcpacket.ID) error     { return gatekeeper.ErrStopped }
func (stopped) Backup(context.Context) (*gatekeeper.Backup, error) { return nil, gatekeeper.ErrStopped }
func (stopped) Output(context.Context, gatekeeper.OutputQuery) (gatekeeper.OutputPage, error) {
	return gatekeeper.OutputPage{}, gatekeeper.ErrStopped
}
func (stopped) Tables() []string { return []string{"dsm_access", "identity"} }

func (stopped) Drops(context.Context) ([]gatekeeper.PortDrops, error) {
	return nil, gatekeeper.ErrStopped
}
func (stopped) Subscribe(ctx context.Context) <-chan gatekeeper.Event {
	c := make(chan gatekeeper.Event)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}

// narrator is a Gatekeeper that only tells events, those that a test hands it.
type narrator struct {
	stopped
	events chan gatekeeper.Event
}

func newNarrator() narrator { return narrator{events: make(chan gatekeeper.Event)} }

func (n narrator) Subscribe(context.Context) <-chan gatekeeper.Event { return n.events }

// tell makes events of numbers from to to.
func (n narrator) tell(from, to uint64) {
	for seq := from; seq <= to; seq++ {
		n.events <- gatekeeper.Event{Seq: seq, Kind: gatekeeper.CallHeld}
	}
}
