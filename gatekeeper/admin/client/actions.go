package client

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// blade is the path of an action on a blade.
func blade(name, action string) string { return "/v1/blades/" + url.PathEscape(name) + "/" + action }

// Drain lets a blade run empty. The cause is for people.
func (c *Client) Drain(ctx context.Context, name, cause string) (api.Blade, error) {
	return ask[api.Blade](ctx, c, http.MethodPost, blade(name, "drain"), nil, api.Cause{Cause: cause})
}

// Fail takes a blade out of service at once.
func (c *Client) Fail(ctx context.Context, name, cause string) (api.Blade, error) {
	return ask[api.Blade](ctx, c, http.MethodPost, blade(name, "fail"), nil, api.Cause{Cause: cause})
}

// Return puts a blade back into service, after Drain or Fail.
func (c *Client) Return(ctx context.Context, name string) (api.Blade, error) {
	return ask[api.Blade](ctx, c, http.MethodPost, blade(name, "return"), nil, nil)
}

// Mirror gives the memory machine of a blade a second copy on another one. It returns when
// that is decided; Machines tells how far the copy is filled.
func (c *Client) Mirror(ctx context.Context, first, onto string) (api.Machine, error) {
	return ask[api.Machine](ctx, c, http.MethodPost, blade(first, "mirror"), nil, api.MirrorOnto{Onto: onto})
}

// Unmirror takes a blade's copy from its memory machine. The cause is for people.
func (c *Client) Unmirror(ctx context.Context, name, cause string) (api.Machine, error) {
	return ask[api.Machine](ctx, c, http.MethodPost, blade(name, "unmirror"), nil, api.Cause{Cause: cause})
}

// ForgetNode gives up a node that waits for its program, and returns it as it was.
func (c *Client) ForgetNode(ctx context.Context, node netip.Addr) (api.Node, error) {
	return ask[api.Node](ctx, c, http.MethodDelete, "/v1/nodes/"+node.String(), nil, nil)
}

// CancelCall cancels a call where it runs, and returns it as it is then: it may not be over yet.
func (c *Client) CancelCall(ctx context.Context, id string) (api.Call, error) {
	return ask[api.Call](ctx, c, http.MethodPost, "/v1/calls/"+url.PathEscape(id)+"/cancel", nil, nil)
}

// CancelSlot ends a standing lease, or fails a call that nobody else would end, and returns what the slot had. It takes two seconds for a call.
func (c *Client) CancelSlot(ctx context.Context, slot uint32) (api.Slot, error) {
	return ask[api.Slot](ctx, c, http.MethodPost, fmt.Sprintf("/v1/slots/%d/cancel", slot), nil, nil)
}

// FreeRegion frees a frozen region, and returns it as it was.
func (c *Client) FreeRegion(ctx context.Context, p netip.Addr) (api.Region, error) {
	return ask[api.Region](ctx, c, http.MethodDelete, "/v1/pointers/"+p.String(), nil, nil)
}

// Backup writes a backup of the rack, which may be large. It is whole if the error is nil and
// backup.Read can read it: when the Gatekeeper fails in between, its end is missing.
func (c *Client) Backup(ctx context.Context, to io.Writer) error {
	resp, err := c.do(ctx, http.MethodPost, "/v1/backup", nil, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(to, resp.Body)
	return err
}

// FailureDomain tells what would fail with a blade.
func (c *Client) FailureDomain(ctx context.Context, name string) (api.FailureDomain, error) {
	return get[api.FailureDomain](ctx, c, blade(name, "domain"), nil)
}

// Policies returns what becomes of calls when nodes fail, by method.
func (c *Client) Policies(ctx context.Context) ([]api.Policy, error) {
	l, err := get[api.List[api.Policy]](ctx, c, "/v1/policies", nil)
	return l.Items, err
}

// SetPolicy sets the policy of a method, or with method "" of all others of a service; a word that says
// nothing undoes what was set. It returns what holds now.
func (c *Client) SetPolicy(ctx context.Context, service, method string, want api.SetPolicy) (api.Policy, error) {
	path := "/v1/policies/" + url.PathEscape(service)
	if method != "" {
		path += "/" + url.PathEscape(method)
	}
	if want == (api.SetPolicy{}) {
		return ask[api.Policy](ctx, c, http.MethodDelete, path, nil, nil)
	}
	return ask[api.Policy](ctx, c, http.MethodPut, path, nil, want)
}

// Reconcile makes the switch's tables what they should be.
func (c *Client) Reconcile(ctx context.Context) (api.Reconciled, error) {
	return ask[api.Reconciled](ctx, c, http.MethodPost, "/v1/reconcile", nil, nil)
}

// Holders tells who holds a pointer.
func (c *Client) Holders(ctx context.Context, pointer netip.Addr) (api.Holders, error) {
	return get[api.Holders](ctx, c, "/v1/pointers/"+pointer.String(), nil)
}

// Apps returns all deployments.
func (c *Client) Apps(ctx context.Context) ([]api.App, error) {
	l, err := get[api.List[api.App]](ctx, c, "/v1/apps", nil)
	return l.Items, err
}

// App returns one deployment.
func (c *Client) App(ctx context.Context, name string) (api.App, error) {
	return get[api.App](ctx, c, "/v1/apps/"+url.PathEscape(name), nil)
}

// Deploy makes a deployment what the specification says.
func (c *Client) Deploy(ctx context.Context, name string, spec api.AppSpec) (api.App, error) {
	return ask[api.App](ctx, c, http.MethodPut, "/v1/apps/"+url.PathEscape(name), nil, spec)
}

// Restart stops the nodes of a deployment and starts them again, one after the other.
func (c *Client) Restart(ctx context.Context, name string) (api.App, error) {
	return ask[api.App](ctx, c, http.MethodPost, "/v1/apps/"+url.PathEscape(name)+"/restart", nil, nil)
}

// RunJob runs a finished job of a deployment again, with further arguments.
func (c *Client) RunJob(ctx context.Context, app, job string, args []string) (api.App, error) {
	return ask[api.App](ctx, c, http.MethodPost, "/v1/apps/"+url.PathEscape(app)+"/jobs/"+url.PathEscape(job)+"/run", nil, api.JobArgs{Args: args})
}

// Rollback rolls out the programs that a deployment had before they changed last.
func (c *Client) Rollback(ctx context.Context, name string) (api.App, error) {
	return ask[api.App](ctx, c, http.MethodPost, "/v1/apps/"+url.PathEscape(name)+"/rollback", nil, nil)
}

// Undeploy stops a deployment.
func (c *Client) Undeploy(ctx context.Context, name string) (api.App, error) {
	return ask[api.App](ctx, c, http.MethodDelete, "/v1/apps/"+url.PathEscape(name), nil, nil)
}
