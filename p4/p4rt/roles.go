package p4rt

import (
	"slices"

	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

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
