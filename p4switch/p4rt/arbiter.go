package p4rt

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/outstream"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// arbiter keeps who is primary for which role (section "Client Arbitration and
// Controller Replication"). It is a pure state machine: messages in, notices
// out. Its lock makes it safe to ask from any goroutine; the order of
// transitions is the caller's business.
type arbiter struct {
	device uint64

	mu    sync.Mutex
	roles map[string]*role

	// present are the primaries of all roles, for the packet path to read
	// without a lock.
	present atomic.Pointer[[]primary]
}

// primary is a primary as the packet path needs it.
type primary struct {
	out   *outstream.Sender
	scope *scope
}

// role is what is remembered for a role; it outlives its controllers.
type role struct {
	name    string
	highest *p4v1.Uint128 // election id ever seen of a primary; nil if none
	config  *anypb.Any    // the last that a primary has sent
	scope   *scope        // what config says
	primary *client       // nil if none
	clients []*client     // live ones, in order of arrival
}

// client is one stream that has sent a valid arbitration message. The arbiter
// owns its fields.
type client struct {
	out      *outstream.Sender
	role     *role // nil before the first arbitration message
	election *p4v1.Uint128
	// config and scope are the client's last, which count if it is primary.
	config *anypb.Any
	scope  *scope
}

func newArbiter(device uint64) *arbiter {
	a := &arbiter{device: device, roles: map[string]*role{}}
	a.roles[""] = &role{scope: everything} // the default role always exists
	a.present.Store(&[]primary{})
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
		r.primary, r.highest, r.config, r.scope = nil, c.election, c.config, c.scope
		a.republish()
		return a.notices(r, true, func(o *client) bool { return o != c }), true, nil
	}
	if wasPrimary {
		r.primary = nil
		a.republish()
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
	case name == "" && m.GetRole().GetConfig() != nil:
		return status.Error(codes.InvalidArgument, "the default role has full access: leave role.config unset, or name a role")
	case numericRole(m.GetRole()) != 0:
		return status.Error(codes.InvalidArgument, "numeric role ids are deprecated since P4Runtime 1.4: use role.name")
	}
	scope, err := parseScope(m.GetRole().GetConfig())
	if err != nil {
		return err
	}
	r := a.roles[name]
	if r != nil && m.GetElectionId() != nil && slices.ContainsFunc(r.clients, func(o *client) bool {
		return o != c && o.election != nil && compareIDs(o.election, m.GetElectionId()) == 0
	}) {
		return status.Errorf(codes.InvalidArgument, "election id %v is in use by another controller of role %q", m.GetElectionId(), name)
	}
	if fresh {
		if err := a.join(c, r, name); err != nil {
			return err
		}
	}
	c.config, c.scope = m.GetRole().GetConfig(), scope
	return nil
}

// join adds a new client to role r, which is nil if nobody has had it before.
func (a *arbiter) join(c *client, r *role, name string) error {
	switch {
	case r == nil && len(a.roles) >= maxRoles:
		return status.Errorf(codes.ResourceExhausted, "there are already %d roles", maxRoles)
	case r == nil:
		r = &role{name: name, scope: everything}
		a.roles[name] = r
	case len(r.clients) >= maxStreamsPerRole:
		return status.Errorf(codes.ResourceExhausted, "role %q already has %d streams", name, maxStreamsPerRole)
	}
	r.clients = append(r.clients, c)
	c.role = r
	return nil
}

// promote makes c primary after update asked for it. The caller sends the notice
// and then calls publish, so that the notice comes before any packet.
func (a *arbiter) promote(c *client) []notice {
	a.mu.Lock()
	defer a.mu.Unlock()
	c.role.primary = c
	return a.notices(c.role, true, func(o *client) bool { return o == c })
}

// heard notes a role's highest election id from before this process.
func (a *arbiter) heard(name string, id *p4v1.Uint128) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[name]
	if r == nil {
		r = &role{name: name, scope: everything}
		a.roles[name] = r
	}
	if r.highest == nil || compareIDs(id, r.highest) > 0 {
		r.highest = id
	}
}

// elections are the highest election ids of all roles.
func (a *arbiter) elections() (all []*p4v1.WriteRequest) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(a.roles)) {
		if id := a.roles[name].highest; id != nil {
			all = append(all, &p4v1.WriteRequest{Role: name, ElectionId: id})
		}
	}
	return all
}

// publish brings what primaries returns up to date.
func (a *arbiter) publish() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.republish()
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
	a.republish()
	return a.notices(r, false, nil)
}

// checkPrimary tells whether (role, election id) names the primary, with the
// codes of section "Write RPC", and gives the role's scope.
func (a *arbiter) checkPrimary(name string, id *p4v1.Uint128) (*scope, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.roles[name]
	switch {
	case r == nil:
		return nil, status.Errorf(codes.NotFound, "role %q is unknown", name)
	case r.primary == nil:
		return nil, status.Errorf(codes.PermissionDenied, "role %q has no primary", name)
	case id == nil || compareIDs(id, r.primary.election) != 0:
		return nil, status.Errorf(codes.PermissionDenied, "election id %v is not the primary's", id)
	}
	return r.scope, nil
}

// roleScope is a role's scope; NOT_FOUND if nobody has ever had that role.
func (a *arbiter) roleScope(name string) (*scope, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if r := a.roles[name]; r != nil {
		return r.scope, nil
	}
	return nil, status.Errorf(codes.NotFound, "role %q is unknown", name)
}

// primaries are those of all roles, in the order of the roles' names. It takes
// no lock.
func (a *arbiter) primaries() []primary { return *a.present.Load() }

// primaryScope is what c may do as a primary; nil if it is none.
func (a *arbiter) primaryScope(c *client) *scope {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c.role == nil || c.role.primary != c {
		return nil
	}
	return c.role.scope
}

// republish is publish for callers that hold the lock.
func (a *arbiter) republish() {
	var ps []primary
	for _, name := range slices.Sorted(maps.Keys(a.roles)) {
		if r := a.roles[name]; r.primary != nil {
			ps = append(ps, primary{r.primary.out, r.scope})
		}
	}
	a.present.Store(&ps)
}

// compareIDs compares 128-bit election ids.
func compareIDs(a, b *p4v1.Uint128) int {
	return cmp.Or(cmp.Compare(a.GetHigh(), b.GetHigh()), cmp.Compare(a.GetLow(), b.GetLow()))
}

// notice is an arbitration update for one client.
type notice struct {
	to  *client
	msg *p4v1.MasterArbitrationUpdate
}

func deliver(ns []notice) {
	for _, n := range ns {
		n.to.out.Replace(&p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Arbitration{Arbitration: n.msg}}, isNotice)
	}
}

// isNotice finds older notices: a newer one tells all that they do.
func isNotice(m proto.Message) bool {
	r, ok := m.(*p4v1.StreamMessageResponse)
	return ok && r.GetArbitration() != nil
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
			m.Role = &p4v1.Role{Name: r.name, Config: r.config}
		}
		switch {
		case r.primary == c:
			m.Status.Message = "you are primary"
		case havePrimary:
			m.Status.Code, m.Status.Message = int32(codes.AlreadyExists), "there is another primary"
		default:
			m.Status.Code, m.Status.Message = int32(codes.NotFound), "there is no primary"
		}
		ns = append(ns, notice{c, m})
	}
	return ns
}

// Names that stand for the packet replication engine in a role configuration.
const (
	multicastObject = "multicast"
	cloneObject     = "clone"
)

// scope is what a role may do (section "Role Config"). The specification leaves
// the scheme to client and server. Ours is a google.protobuf.Struct, in JSON:
//
//	{
//	  "objects":   ["BifrostIngress.acl", "denied_digest_t", "multicast"],
//	  "packetIn":  true,
//	  "packetOut": false,
//	  "pipeline":  false
//	}
//
// objects are the fully qualified names of the tables, action profiles,
// counters, meters, registers, value sets and digests that the role may write
// and is notified of, and "multicast" and "clone". What is left out is allowed;
// so is everything for a role without a configuration.
type scope struct {
	objects                       []string // nil: all
	packetIn, packetOut, pipeline bool
}

// everything is the scope of a role without a configuration.
var everything = &scope{packetIn: true, packetOut: true, pipeline: true}

// parseScope reads a role configuration; INVALID_ARGUMENT if it does not follow
// the scheme.
func parseScope(config *anypb.Any) (*scope, error) {
	if config == nil {
		return everything, nil
	}
	m := &structpb.Struct{}
	if err := config.UnmarshalTo(m); err != nil {
		return nil, status.Errorf(codes.InvalidArgument, "role.config is no google.protobuf.Struct: %v", err)
	}
	s := *everything
	for name, v := range m.GetFields() {
		if err := s.set(name, v); err != nil {
			return nil, err
		}
	}
	return &s, nil
}

func (s *scope) set(name string, v *structpb.Value) error {
	flags := map[string]*bool{"packetIn": &s.packetIn, "packetOut": &s.packetOut, "pipeline": &s.pipeline}
	if flag, ok := flags[name]; ok {
		b, ok := v.GetKind().(*structpb.Value_BoolValue)
		if !ok {
			return status.Errorf(codes.InvalidArgument, "role.config: %s is not true or false", name)
		}
		*flag = b.BoolValue
		return nil
	}
	list := v.GetListValue()
	if name != "objects" || list == nil {
		return status.Errorf(codes.InvalidArgument, "role.config: unknown or malformed field %q", name)
	}
	s.objects = []string{}
	for _, o := range list.GetValues() {
		if o.GetStringValue() == "" {
			return status.Error(codes.InvalidArgument, "role.config: objects are names")
		}
		s.objects = append(s.objects, o.GetStringValue())
	}
	return nil
}

// object tells whether an object is in the scope.
func (s *scope) object(name string) bool {
	return s.objects == nil || slices.Contains(s.objects, name)
}

// entity tells whether an entity is in the scope. An entity of an object that
// does not exist is: it is malformed, which others say better.
func (s *scope) entity(info *p4info.Info, e *p4v1.Entity) bool {
	if s.objects == nil {
		return true
	}
	name := objectOf(info, e)
	return name == "" || s.object(name)
}

// objectOf is the name of the object that an entity belongs to, or "".
func objectOf(info *p4info.Info, e *p4v1.Entity) string {
	switch e := e.GetEntity().(type) {
	case *p4v1.Entity_TableEntry:
		return info.Name(e.TableEntry.GetTableId())
	case *p4v1.Entity_DirectCounterEntry:
		return info.Name(e.DirectCounterEntry.GetTableEntry().GetTableId())
	case *p4v1.Entity_DirectMeterEntry:
		return info.Name(e.DirectMeterEntry.GetTableEntry().GetTableId())
	case *p4v1.Entity_ActionProfileMember:
		return info.Name(e.ActionProfileMember.GetActionProfileId())
	case *p4v1.Entity_ActionProfileGroup:
		return info.Name(e.ActionProfileGroup.GetActionProfileId())
	case *p4v1.Entity_CounterEntry:
		return info.Name(e.CounterEntry.GetCounterId())
	case *p4v1.Entity_MeterEntry:
		return info.Name(e.MeterEntry.GetMeterId())
	case *p4v1.Entity_RegisterEntry:
		return info.Name(e.RegisterEntry.GetRegisterId())
	case *p4v1.Entity_ValueSetEntry:
		return info.Name(e.ValueSetEntry.GetValueSetId())
	case *p4v1.Entity_DigestEntry:
		return info.Name(e.DigestEntry.GetDigestId())
	case *p4v1.Entity_PacketReplicationEngineEntry:
		if e.PacketReplicationEngineEntry.GetCloneSessionEntry() != nil {
			return cloneObject
		}
		return multicastObject
	}
	return ""
}
