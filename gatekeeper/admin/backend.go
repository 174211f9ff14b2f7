package admin

import (
	"context"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/trace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Backend is what the API needs of a Gatekeeper; *gatekeeper.Gatekeeper is one. Its
// methods may be called concurrently. Those with a context fail with
// gatekeeper.ErrStopped when the Gatekeeper does not run.
type Backend interface {
	Settings() gatekeeper.Settings
	Connected(ctx context.Context) (bool, error)
	Overview(ctx context.Context) (gatekeeper.Overview, error)
	Regions(ctx context.Context, q gatekeeper.RegionQuery) (gatekeeper.RegionPage, error)
	Calls(ctx context.Context, q gatekeeper.CallQuery) (page []gatekeeper.CallState, next gatekeeper.CallCursor, err error)
	Call(ctx context.Context, id rpcpacket.ID) (call gatekeeper.CallState, ok bool, err error)
	NodeCalls(ctx context.Context, node netip.Addr) (gatekeeper.NodeCalls, error)
	Chain(ctx context.Context, call rpcpacket.ID) ([]gatekeeper.CallState, error)
	Holders(ctx context.Context, p dsmpacket.Pointer) (gatekeeper.Holders, error)
	FailureDomain(ctx context.Context, blade string) (gatekeeper.FailureDomain, error)
	SetPolicy(ctx context.Context, service, method string, w resources.Word) error
	Policies(ctx context.Context) ([]resources.MethodPolicy, error)
	Policy(ctx context.Context, service, method string) (resources.MethodPolicy, error)
	Timeline(ctx context.Context, call rpcpacket.ID, limit int) (tree []trace.Leaf, more bool, err error)
	Timelines(ctx context.Context, q trace.Query) (page []trace.Call, next uint64, err error)
	Edges(ctx context.Context, since time.Time) (map[trace.Edge]trace.Tally, error)
	Rules(ctx context.Context, tables ...string) ([]p4rtclient.Entry, error)
	Tables() []string
	Drops(ctx context.Context) ([]gatekeeper.PortDrops, error)
	Drain(ctx context.Context, blade, cause string) error
	MarkFailed(ctx context.Context, blade, cause string) error
	Mirror(ctx context.Context, first, second string) error
	Unmirror(ctx context.Context, blade, cause string) error
	ReturnToService(ctx context.Context, blade string) error
	ForgetNode(ctx context.Context, node netip.Addr) error
	Reconcile(ctx context.Context) (repaired int, err error)
	Deploy(ctx context.Context, s resources.Spec) error
	Rollback(ctx context.Context, name string) error
	Restart(ctx context.Context, name string) error
	RunJob(ctx context.Context, app, program string, args []string) error
	Undeploy(ctx context.Context, name string) error
	Deployments(ctx context.Context) ([]resources.Deployment, error)
	Methods(ctx context.Context) ([]trace.Method, error)
	CancelCall(ctx context.Context, id rpcpacket.ID) error
	Slots(ctx context.Context, q gatekeeper.SlotQuery) (gatekeeper.SlotPage, error)
	CancelSlot(ctx context.Context, slot rpcpacket.Slot) (gatekeeper.SlotState, error)
	FreeRegion(ctx context.Context, p dsmpacket.Pointer) (gatekeeper.RegionState, error)
	Output(ctx context.Context, q gatekeeper.OutputQuery) (gatekeeper.OutputPage, error)
	Backup(ctx context.Context) (*gatekeeper.Backup, error)
	Subscribe(ctx context.Context) <-chan gatekeeper.Event
}

var _ Backend = (*gatekeeper.Gatekeeper)(nil)
