package admin

import (
	"context"
	"net/netip"

	"github.com/bifrost-rack/bifrost/dsm/packet"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	rpc "github.com/bifrost-rack/bifrost/rpc/packet"
)

// Backend is what the API needs of a Gatekeeper; *gatekeeper.Gatekeeper is one. Its
// methods may be called concurrently. Those with a context fail with
// gatekeeper.ErrStopped when the Gatekeeper does not run.
type Backend interface {
	Settings() gatekeeper.Settings
	Connected(ctx context.Context) (bool, error)
	Overview(ctx context.Context) (gatekeeper.Overview, error)
	Regions(ctx context.Context, q gatekeeper.RegionQuery) (page []gatekeeper.RegionState, more bool, err error)
	Calls(ctx context.Context, q gatekeeper.CallQuery) (page []gatekeeper.CallState, more bool, err error)
	NodeCalls(ctx context.Context, node netip.Addr) (gatekeeper.NodeCalls, error)
	Chain(ctx context.Context, call rpc.ID) ([]gatekeeper.CallState, error)
	Holders(ctx context.Context, p packet.Pointer) (gatekeeper.Holders, error)
	FailureDomain(ctx context.Context, blade string) (gatekeeper.FailureDomain, error)
	Rules(ctx context.Context, tables ...string) ([]p4rtclient.Entry, error)
	Tables() []string
	Subscribe(ctx context.Context) <-chan gatekeeper.Event
}

var _ Backend = (*gatekeeper.Gatekeeper)(nil)
