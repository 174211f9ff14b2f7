package admintest

import (
	"context"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Stopped is a Gatekeeper that does not run any more.
type Stopped struct{}

func (Stopped) Settings() gatekeeper.Settings {
	return gatekeeper.Settings{Boot: 0xb007, Election: control.Election{Low: 7}, DSMPrefix: 0x10}
}
func (Stopped) Connected(context.Context) (bool, error) { return false, gatekeeper.ErrStopped }
func (Stopped) Overview(context.Context) (gatekeeper.Overview, error) {
	return gatekeeper.Overview{}, gatekeeper.ErrStopped
}
func (Stopped) Regions(context.Context, gatekeeper.RegionQuery) (gatekeeper.RegionPage, error) {
	return gatekeeper.RegionPage{}, gatekeeper.ErrStopped
}
func (Stopped) Calls(context.Context, gatekeeper.CallQuery) ([]gatekeeper.CallState, gatekeeper.CallCursor, error) {
	return nil, gatekeeper.CallCursor{}, gatekeeper.ErrStopped
}
func (Stopped) Call(context.Context, rpcpacket.ID) (gatekeeper.CallState, bool, error) {
	return gatekeeper.CallState{}, false, gatekeeper.ErrStopped
}
func (Stopped) NodeCalls(context.Context, netip.Addr) (gatekeeper.NodeCalls, error) {
	return gatekeeper.NodeCalls{}, gatekeeper.ErrStopped
}
func (Stopped) Chain(context.Context, rpcpacket.ID) ([]gatekeeper.CallState, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) Holders(context.Context, dsmpacket.Pointer) (gatekeeper.Holders, error) {
	return gatekeeper.Holders{}, gatekeeper.ErrStopped
}
func (Stopped) FailureDomain(context.Context, string) (gatekeeper.FailureDomain, error) {
	return gatekeeper.FailureDomain{}, gatekeeper.ErrStopped
}
func (Stopped) Rules(context.Context, ...string) ([]p4rtclient.Entry, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) SetPolicy(context.Context, string, string, resources.Word) error {
	return gatekeeper.ErrStopped
}
func (Stopped) Policies(context.Context) ([]resources.MethodPolicy, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) Policy(context.Context, string, string) (resources.MethodPolicy, error) {
	return resources.MethodPolicy{}, gatekeeper.ErrStopped
}
func (Stopped) Timeline(context.Context, rpcpacket.ID, int) ([]trace.Leaf, bool, error) {
	return nil, false, gatekeeper.ErrStopped
}
func (Stopped) Timelines(context.Context, trace.Query) ([]trace.Call, uint64, error) {
	return nil, 0, gatekeeper.ErrStopped
}
func (Stopped) Edges(context.Context, time.Time) (map[trace.Edge]trace.Tally, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) Drain(context.Context, string, string) error { return gatekeeper.ErrStopped }
func (Stopped) MarkFailed(context.Context, string, string) error {
	return gatekeeper.ErrStopped
}
func (Stopped) Mirror(context.Context, string, string) error           { return gatekeeper.ErrStopped }
func (Stopped) ForgetNode(context.Context, netip.Addr) error           { return gatekeeper.ErrStopped }
func (Stopped) Unmirror(context.Context, string, string) error         { return gatekeeper.ErrStopped }
func (Stopped) ReturnToService(context.Context, string) error          { return gatekeeper.ErrStopped }
func (Stopped) Reconcile(context.Context) (int, error)                 { return 0, gatekeeper.ErrStopped }
func (Stopped) Deploy(context.Context, resources.Spec) error           { return gatekeeper.ErrStopped }
func (Stopped) Restart(context.Context, string) error                  { return gatekeeper.ErrStopped }
func (Stopped) RunJob(context.Context, string, string, []string) error { return gatekeeper.ErrStopped }
func (Stopped) Rollback(context.Context, string) error                 { return gatekeeper.ErrStopped }
func (Stopped) Undeploy(context.Context, string) error                 { return gatekeeper.ErrStopped }
func (Stopped) Deployments(context.Context) ([]resources.Deployment, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) Methods(context.Context) ([]trace.Method, error) { return nil, gatekeeper.ErrStopped }
func (Stopped) CancelCall(context.Context, rpcpacket.ID) error  { return gatekeeper.ErrStopped }
func (Stopped) Slots(context.Context, gatekeeper.SlotQuery) (gatekeeper.SlotPage, error) {
	return gatekeeper.SlotPage{}, gatekeeper.ErrStopped
}
func (Stopped) CancelSlot(context.Context, rpcpacket.Slot) (gatekeeper.SlotState, error) {
	return gatekeeper.SlotState{}, gatekeeper.ErrStopped
}
func (Stopped) FreeRegion(context.Context, dsmpacket.Pointer) (gatekeeper.RegionState, error) {
	return gatekeeper.RegionState{}, gatekeeper.ErrStopped
}
func (Stopped) Backup(context.Context) (*gatekeeper.Backup, error) { return nil, gatekeeper.ErrStopped }
func (Stopped) Output(context.Context, gatekeeper.OutputQuery) (gatekeeper.OutputPage, error) {
	return gatekeeper.OutputPage{}, gatekeeper.ErrStopped
}
func (Stopped) Tables() []string { return []string{"control_rule", "identity"} }

func (Stopped) Drops(context.Context) ([]gatekeeper.PortDrops, error) {
	return nil, gatekeeper.ErrStopped
}
func (Stopped) Subscribe(ctx context.Context) <-chan gatekeeper.Event {
	c := make(chan gatekeeper.Event)
	context.AfterFunc(ctx, func() { close(c) })
	return c
}
