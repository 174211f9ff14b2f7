// Package gnmi tells the state of a switch's ports by gNMI, as OpenConfig's model of interfaces names it, and takes what of it can be set: whether an
// interface is enabled. It has what PINS' library for tests asks of ports (lib/gnmi/gnmi_helper.cc of sonic-pins): Get, Set of config/enabled, and Subscribe,
// once, polled, sampled or on changes.
//
// A port is an interface, which has its P4Runtime number as openconfig-p4rt:id. In JSON_IETF the answer to a Get is an object with the last name of the path, as
// SONiC answers and PINS expects; in JSON it is the bare value, as the specification of gNMI has it. What a switch does not count is not there.
package gnmi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	pb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// version is the one of gNMI's specification.
const version = "0.10.0"

// Bounds of a request.
const (
	maxPaths = 64
	maxElems = 16
)

// Port is a port, as it is now.
type Port struct {
	Number uint32
	Name   string // unique among the ports
	// Enabled tells whether it is meant to be up, Up whether it is.
	Enabled, Up bool
	// Index, MTU (in bytes) and MAC are the interface's; 0 and empty: there is none.
	Index uint32
	MTU   uint16
	MAC   string

	InPackets, OutPackets, InOctets, OutOctets, InDiscards, OutDiscards uint64
}

// ErrUnsupported is returned by a switch that cannot enable or disable a port.
var ErrUnsupported = errors.New("not supported")

// Switch is what the service needs of one. Its methods may be called concurrently.
type Switch interface {
	// GNMIPorts are all ports, by number.
	GNMIPorts() []Port
	// EnablePort enables a port, or disables it.
	EnablePort(number uint32, enable bool) error
	// PortsChanged is closed when a port comes, goes, or changes its state the next time.
	PortsChanged() <-chan struct{}
}

// Server is a gNMI server. Its methods may be called concurrently.
type Server struct {
	pb.UnimplementedGNMIServer
	sw  Switch
	now func() time.Time
}

// New makes a server of a switch's ports.
func New(sw Switch) *Server { return &Server{sw: sw, now: time.Now} }

// Capabilities implements gNMI.
func (s *Server) Capabilities(context.Context, *pb.CapabilityRequest) (*pb.CapabilityResponse, error) {
	return &pb.CapabilityResponse{
		SupportedModels: []*pb.ModelData{
			{Name: "openconfig-interfaces", Organization: "OpenConfig working group"},
			{Name: "openconfig-if-ethernet", Organization: "OpenConfig working group"},
			{Name: "openconfig-p4rt", Organization: "OpenConfig working group"},
		},
		SupportedEncodings: []pb.Encoding{pb.Encoding_JSON_IETF, pb.Encoding_JSON, pb.Encoding_PROTO},
		GNMIVersion:        version,
	}, nil
}

// encodes refuses an encoding that is not one of those of Capabilities.
func encodes(e pb.Encoding) error {
	switch e {
	case pb.Encoding_JSON, pb.Encoding_JSON_IETF, pb.Encoding_PROTO:
		return nil
	default:
		return status.Errorf(codes.Unimplemented, "encoding %s: choose JSON_IETF, JSON or PROTO", e)
	}
}

// Get implements gNMI.
func (s *Server) Get(_ context.Context, r *pb.GetRequest) (*pb.GetResponse, error) {
	if err := encodes(r.GetEncoding()); err != nil {
		return nil, err
	}
	paths := r.GetPath()
	if len(paths) == 0 {
		paths = []*pb.Path{{}}
	}
	if len(paths) > maxPaths {
		return nil, status.Errorf(codes.InvalidArgument, "%d paths: %d at most", len(paths), maxPaths)
	}
	now, root := s.now().UnixNano(), tree(s.sw.GNMIPorts(), r.GetType())
	out := &pb.GetResponse{}
	for _, p := range paths {
		found, err := find(root, r.GetPrefix(), p)
		if err != nil {
			return nil, err
		}
		n := &pb.Notification{Timestamp: now, Prefix: r.GetPrefix()}
		skip := len(r.GetPrefix().GetElem())
		for _, f := range found {
			if r.GetEncoding() == pb.Encoding_PROTO {
				for _, l := range f.leaves() {
					n.Update = append(n.Update, l.update(skip, pb.Encoding_PROTO))
				}
				continue
			}
			n.Update = append(n.Update, &pb.Update{Path: pathOf(f.path[skip:]), Val: f.value(r.GetEncoding())})
		}
		out.Notification = append(out.Notification, n)
	}
	return out, nil
}

// value is a node in JSON: wrapped in an object with its name if it is JSON of the IETF.
func (f *found) value(e pb.Encoding) *pb.TypedValue {
	v := f.node.json(e)
	if f.node.key != "" && e == pb.Encoding_JSON_IETF {
		v = []any{v} // of a list
	}
	if e == pb.Encoding_JSON {
		return &pb.TypedValue{Value: &pb.TypedValue_JsonVal{JsonVal: mustJSON(v)}}
	}
	if f.node.name != "" {
		v = map[string]any{f.node.module + ":" + f.node.name: v}
	}
	return &pb.TypedValue{Value: &pb.TypedValue_JsonIetfVal{JsonIetfVal: mustJSON(v)}}
}

// update is a leaf as an update, its path without what the prefix has.
func (f *found) update(skip int, e pb.Encoding) *pb.Update {
	u := &pb.Update{Path: pathOf(f.path[skip:])}
	switch e {
	case pb.Encoding_JSON:
		u.Val = &pb.TypedValue{Value: &pb.TypedValue_JsonVal{JsonVal: mustJSON(f.node.json(e))}}
	case pb.Encoding_JSON_IETF:
		u.Val = &pb.TypedValue{Value: &pb.TypedValue_JsonIetfVal{JsonIetfVal: mustJSON(f.node.json(e))}}
	default:
		switch v := f.node.leaf.(type) {
		case string:
			u.Val = &pb.TypedValue{Value: &pb.TypedValue_StringVal{StringVal: v}}
		case bool:
			u.Val = &pb.TypedValue{Value: &pb.TypedValue_BoolVal{BoolVal: v}}
		case uint16:
			u.Val = &pb.TypedValue{Value: &pb.TypedValue_UintVal{UintVal: uint64(v)}}
		case uint32:
			u.Val = &pb.TypedValue{Value: &pb.TypedValue_UintVal{UintVal: uint64(v)}}
		case uint64:
			u.Val = &pb.TypedValue{Value: &pb.TypedValue_UintVal{UintVal: v}}
		}
	}
	return u
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // maps, slices and scalars
	}
	return b
}

// change is what a Set asks of a port.
type change struct {
	port   uint32
	enable *bool // nil: nothing
}

// Set implements gNMI: config/enabled of interfaces, config/openconfig-p4rt:id if it is the one that the port has, or both as config. All changes are checked
// before the first one is made.
func (s *Server) Set(_ context.Context, r *pb.SetRequest) (*pb.SetResponse, error) {
	if len(r.GetDelete()) > 0 || len(r.GetUnionReplace()) > 0 {
		return nil, status.Error(codes.Unimplemented, "nothing of a port can be deleted: update config/enabled")
	}
	all := append(append([]*pb.Update{}, r.GetReplace()...), r.GetUpdate()...)
	if len(all) > maxPaths {
		return nil, status.Errorf(codes.InvalidArgument, "%d updates: %d at most", len(all), maxPaths)
	}
	root := tree(s.sw.GNMIPorts(), pb.GetRequest_ALL)
	out := &pb.SetResponse{Prefix: r.GetPrefix(), Timestamp: s.now().UnixNano()}
	var changes []change
	for i, u := range all {
		c, err := changeOf(root, r.GetPrefix(), u)
		if err != nil {
			return nil, err
		}
		changes = append(changes, c)
		op := pb.UpdateResult_UPDATE
		if i < len(r.GetReplace()) {
			op = pb.UpdateResult_REPLACE
		}
		out.Response = append(out.Response, &pb.UpdateResult{Path: u.GetPath(), Op: op})
	}
	for _, c := range changes {
		if c.enable == nil {
			continue
		}
		switch err := s.sw.EnablePort(c.port, *c.enable); {
		case errors.Is(err, ErrUnsupported):
			return nil, status.Error(codes.Unimplemented, err.Error())
		case err != nil:
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return out, nil
}

// changeOf reads an update.
func changeOf(root *node, prefix *pb.Path, u *pb.Update) (c change, err error) {
	at, err := find(root, prefix, u.GetPath())
	if err != nil {
		return c, err
	}
	readable := readable(prefix, u.GetPath())
	if len(at) != 1 || len(at[0].path) < 3 || at[0].path[2].GetName() != "config" {
		return c, status.Errorf(codes.InvalidArgument, "%s: only config/enabled of one interface can be set", readable)
	}
	f := at[0]
	c.port = f.port
	values := map[string]any{}
	switch v, err := scalar(u.GetVal()); {
	case err != nil:
		return c, status.Errorf(codes.InvalidArgument, "%s: %v", readable, err)
	case f.node.leaf == nil: // config itself
		of, ok := v.(map[string]any)
		if !ok {
			return c, status.Errorf(codes.InvalidArgument, "%s: not an object", readable)
		}
		values = of
	default:
		if of, ok := v.(map[string]any); ok && len(of) == 1 { // {"openconfig-interfaces:enabled": true}, as SONiC takes it
			for _, v = range of {
			}
		}
		values[f.node.name] = v
	}
	for name, v := range values {
		_, bare, ok := strings.Cut(name, ":")
		if !ok {
			bare = name
		}
		switch bare {
		case "enabled":
			enable, ok := v.(bool)
			if !ok {
				return c, status.Errorf(codes.InvalidArgument, "%s: enabled is true or false, not %v", readable, v)
			}
			c.enable = &enable
		case "id":
			if n, ok := v.(float64); !ok || n != float64(f.port) {
				return c, status.Errorf(codes.FailedPrecondition, "%s: the port has the number %d as long as the switch runs", readable, f.port)
			}
		default:
			return c, status.Errorf(codes.Unimplemented, "%s: %s cannot be set, only enabled", readable, bare)
		}
	}
	return c, nil
}

// scalar is a value that was sent: a bool, a number, a text or an object.
func scalar(v *pb.TypedValue) (out any, err error) {
	switch v := v.GetValue().(type) {
	case *pb.TypedValue_JsonVal:
		err = json.Unmarshal(v.JsonVal, &out)
	case *pb.TypedValue_JsonIetfVal:
		err = json.Unmarshal(v.JsonIetfVal, &out)
	case *pb.TypedValue_BoolVal:
		out = v.BoolVal
	case *pb.TypedValue_UintVal:
		out = float64(v.UintVal)
	case *pb.TypedValue_IntVal:
		out = float64(v.IntVal)
	case *pb.TypedValue_StringVal:
		out = v.StringVal
	default:
		err = fmt.Errorf("a value of type %T", v)
	}
	return out, err
}
