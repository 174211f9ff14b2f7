package p4rt

import (
	"cmp"
	"slices"
	"sync"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// arbiter keeps who is primary for which role (section "Client Arbitration and
// Controller Replication"). It is a pure state machine: messages in, notices
// out. Its lock makes it safe to ask from any goroutine; the order of
// transitions is the caller's business.
type arbiter struct {
	device uint64

	mu    sync.Mutex
	roles map[string]*role
}

// role is what is remembered for a role; it outlives its controllers.
type role struct {
	name    string
	highest *p4v1.Uint128 // election id ever seen of a primary; nil if none
	primary *client       // nil if none
	clients []*client     // live ones, in order of arrival
}

// client is one stream that has sent a valid arbitration message. The arbiter
// owns its fields.
type client struct {
	out      *sender
	role     *role // nil before the first arbitration message
	election *p4v1.Uint128
}

// notice is an arbitration update for one client.
type notice struct {
	to  *client
	msg *p4v1.MasterArbitrationUpdate
}

func newArbiter(device uint64) *arbiter {
	a := &arbiter{device: device, roles: map[string]*role{}}
	a.roles[""] = &role{} // the default role always exists
	return a
}

// update handles an arbitration message from c. If promote is set, c is to
// become primary: writes are refused from now on, the caller sends the notices,
// waits until the writes under way are done, and then calls promote.
func (a *arbiter) update(c *client, m *p4v1.MasterArbitrationUpdate) (notices []notice, promote bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if err := a.admit(c, m); err != nil {
		return nil, false, err
	}
	r, wasPrimary := c.role, c.role.primary == c
	c.election = m.GetElectionId()
	if c.election != nil && (r.highest == nil || compareIDs(c.election, r.highest) >= 0) {
		r.primary, r.highest = nil, c.election
		return a.notices(r, true, func(o *client) bool { return o != c }), true, nil
	}
	if wasPrimary {
		r.primary = nil
		return a.notices(r, false, nil), false, nil
	}
	return a.notices(r, r.primary != nil, func(o *client) bool { return o == c }), false, nil
}

// admit checks an arbitration message and adds a new client to its role.
func (a *arbiter) admit(c *client, m *p4v1.MasterArbitrationUpdate) error {
	name, fresh := m.GetRole().GetName(), c.role == nil
	switch {
	case m.GetDeviceId() != a.device && fresh:
		return status.Errorf(codes.NotFound, "device %d is unknown, this is device %d", m.GetDeviceId(), a.device)
	case m.GetDeviceId() != a.device:
		return status.Errorf(codes.FailedPrecondition, "the stream belongs to device %d, not %d", a.device, m.GetDeviceId())
	case !fresh && name != c.role.name:
		return status.Errorf(codes.FailedPrecondition, "the stream has the role %q; open another one for %q", c.role.name, name)
	case m.GetRole().GetConfig() != nil:
		return status.Error(codes.InvalidArgument, "role configurations are not supported: leave role.config unset for full access")
	case numericRole(m.GetRole()) != 0:
		return status.Error(codes.InvalidArgument, "numeric role ids are deprecated since P4Runtime 1.4: use role.name")
	}
	r := a.roles[name]
	if r != nil && m.GetElectionId() != nil && slices.ContainsFunc(r.clients, func(o *client) bool {
		return o != c && o.election != nil && compareIDs(o.election, m.GetElectionId()) == 0
	}) {
		return status.Errorf(codes.InvalidArgument, "election id %v is in use by another controller of role %q", m.GetElectionId(), name)
	}
	if !fresh {
		return nil
	}
	if r == nil {
		if len(a.roles) >= maxRoles {
			return status.Errorf(codes.ResourceExhausted, "there are already %d roles", maxRoles)
		}
		r = &role{name: name}
		a.roles[name] = r
	}
	if len(r.clients) >= maxStreamsPerRole {
		return status.Errorf(codes.ResourceExhausted, "role %q already has %d streams", name, maxStreamsPerRole)
	}
	r.clients = append(r.clients, c)
	c.role = r
	return nil
}

// promote makes c primary after update asked for it.
func (a *arbiter) promote(c *client) []notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.role.primary = c
	return a.notices(c.role, true, func(o *client) bool { return o == c })
}

// leave removes a client whose stream has ended.
func (a *arbiter) leave(c *client) []notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := c.role
	if r == nil {
		return nil
	}
	r.clients = slices.DeleteFunc(r.clients, func(o *client) bool { return o == c })
	if r.primary != c {
		return nil
	}
	r.primary = nil
	return a.notices(r, false, nil)
}

// notices builds the updates for the clients of r that the filter lets through
// (section "Client Arbitration Notifications").
func (a *arbiter) notices(r *role, havePrimary bool, to func(*client) bool) []notice {
	var ns []notice
	for _, c := range r.clients {
		if to != nil && !to(c) {
			continue
		}
		m := &p4v1.MasterArbitrationUpdate{DeviceId: a.device, ElectionId: r.highest, Status: &spb.Status{}}
		if r.name != "" {
			m.Role = &p4v1.Role{Name: r.name}
		}
		switch {
		case r.primary == c:
			m.Status.Message = "you are primary"
		case havePrimary:
			m.Status.Code, m.Status.Message = int32(codes.AlreadyExists), "there is another primary"
		default:
			m.Status.Code, m.Status.Message = int32(codes.NotFound), "there is no primary"
		}
		ns = append(ns, notice{c, proto.Clone(m).(*p4v1.MasterArbitrationUpdate)})
	}
	return ns
}

// checkPrimary tells whether (role, election id) names the primary, with the
// codes of section "Write RPC".
func (a *arbiter) checkPrimary(name string, id *p4v1.Uint128) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[name]
	switch {
	case r == nil:
		return status.Errorf(codes.NotFound, "role %q is unknown", name)
	case r.primary == nil:
		return status.Errorf(codes.PermissionDenied, "role %q has no primary", name)
	case id == nil || compareIDs(id, r.primary.election) != 0:
		return status.Errorf(codes.PermissionDenied, "election id %v is not the primary's", id)
	}
	return nil
}

// isPrimary tells whether c is primary for its role.
func (a *arbiter) isPrimary(c *client) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return c.role != nil && c.role.primary == c
}

// primaries are the senders of all roles' primaries, in the roles' name order.
func (a *arbiter) primaries() []*sender {
	a.mu.Lock()
	defer a.mu.Unlock()
	var cs []*client
	for _, r := range a.roles {
		if r.primary != nil {
			cs = append(cs, r.primary)
		}
	}
	slices.SortFunc(cs, func(x, y *client) int { return cmp.Compare(x.role.name, y.role.name) })
	out := make([]*sender, len(cs))
	for i, c := range cs {
		out[i] = c.out
	}
	return out
}

// compareIDs compares 128-bit election ids.
func compareIDs(a, b *p4v1.Uint128) int {
	return cmp.Or(cmp.Compare(a.GetHigh(), b.GetHigh()), cmp.Compare(a.GetLow(), b.GetLow()))
}

// numericRole reads the deprecated id only to refuse it.
func numericRole(r *p4v1.Role) uint64 {
	return r.GetId() //nolint:staticcheck // deprecated field, refused when set
}
