package p4rt

import (
	"maps"
	"slices"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"
)

// PortStatus is the field of CapabilitiesResponse.experimental that is true where a
// controller can ask for the status of ports (see the package comment), and the
// field of the message that asks.
const PortStatus = "port_status"

// Fields of the message that tells a port's status.
const (
	portField = "port"
	nameField = "name"
	upField   = "up"
)

// Port is a port's status.
type Port struct {
	Number datapath.Port
	// Name is the interface's name; empty for a port in the same process.
	Name string
	// Up is false while the interface is gone, down or without a carrier.
	Up bool
}

// AskPortStatus is the message that asks for the status of ports on its stream.
func AskPortStatus() (*p4v1.StreamMessageRequest, error) {
	a, err := anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{PortStatus: structpb.NewBoolValue(true)}})
	if err != nil {
		return nil, err
	}
	return &p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Other{Other: a}}, nil
}

// asksPortStatus tells whether a message is that of AskPortStatus.
func asksPortStatus(m *anypb.Any) bool {
	var s structpb.Struct
	return m.MessageIs(&s) && m.UnmarshalTo(&s) == nil && s.GetFields()[PortStatus].GetBoolValue()
}

// ParsePortStatus reads what StreamMessageResponse.other holds; ok is false if that
// is not a port's status.
func ParsePortStatus(m *anypb.Any) (p Port, ok bool) {
	var s structpb.Struct
	if !m.MessageIs(&s) || m.UnmarshalTo(&s) != nil {
		return p, false
	}
	number, ok := s.GetFields()[portField].GetKind().(*structpb.Value_NumberValue)
	if !ok || number.NumberValue < 0 || number.NumberValue != float64(uint32(number.NumberValue)) {
		return p, false
	}
	up, ok := s.GetFields()[upField].GetKind().(*structpb.Value_BoolValue)
	if !ok {
		return p, false
	}
	return Port{Number: datapath.Port(number.NumberValue), Name: s.GetFields()[nameField].GetStringValue(), Up: up.BoolValue}, true
}

// message tells the port's status on a stream.
func (p Port) message() (*p4v1.StreamMessageResponse, error) {
	a, err := anypb.New(&structpb.Struct{Fields: map[string]*structpb.Value{
		portField: structpb.NewNumberValue(float64(p.Number)), nameField: structpb.NewStringValue(p.Name), upField: structpb.NewBoolValue(p.Up),
	}})
	if err != nil {
		return nil, err
	}
	return &p4v1.StreamMessageResponse{Update: &p4v1.StreamMessageResponse_Other{Other: a}}, nil
}

// isStatusOf finds older statuses of a port: a newer one tells all that they do.
func isStatusOf(num datapath.Port) func(proto.Message) bool {
	return func(m proto.Message) bool {
		r, ok := m.(*p4v1.StreamMessageResponse)
		if !ok || r.GetOther() == nil {
			return false
		}
		p, ok := ParsePortStatus(r.GetOther())
		return ok && p.Number == num
	}
}

// ports keeps the status of all ports and who has asked for it.
type ports struct {
	mu    sync.Mutex // held while statuses are handed to streams, so that the newest comes last
	known map[datapath.Port]Port
	asked []*client

	// Whether groups have to be looked at, by one goroutine at a time, and whether none may start any more.
	changed, following, closed bool
	follows                    sync.WaitGroup
}

// hasPort tells whether there is a port, up or down.
func (s *Server) hasPort(num datapath.Port) bool {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	_, ok := s.ports.known[num]
	return ok
}

// portUp tells whether a port is there and up.
func (s *Server) portUp(num datapath.Port) bool {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	return s.ports.known[num].Up
}

// portChanged has groups follow their watch ports. Callers hold the lock of ports, and perhaps others that a Write waits for, so
// a goroutine does it.
func (s *Server) portChanged() {
	if s.ports.changed = true; s.ports.following || s.ports.closed {
		return
	}
	s.ports.following = true
	s.ports.follows.Go(s.followPorts)
}

func (s *Server) followPorts() {
	more := func() bool {
		s.ports.mu.Lock()
		defer s.ports.mu.Unlock()
		s.ports.following = s.ports.changed && !s.ports.closed
		s.ports.changed = false
		return s.ports.following
	}
	for more() {
		s.mu.Lock()
		pipe, live := s.pipe, s.live.Load()
		for _, p := range []*pipeline{live, pipe} {
			if p != nil && (p == live || pipe != live) {
				p.followPorts()
			}
		}
		s.mu.Unlock()
	}
}

// close ends what follows ports. Callers hold none of the server's locks.
func (o *ports) close() {
	o.mu.Lock()
	o.closed = true
	o.mu.Unlock()
	o.follows.Wait()
}

// SetPort tells the status of a port that was added or has changed. It does not
// block.
func (s *Server) SetPort(p Port) {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	if old, ok := s.ports.known[p.Number]; ok && old == p {
		return
	}
	if s.ports.known == nil {
		s.ports.known = map[datapath.Port]Port{}
	}
	s.ports.known[p.Number] = p
	s.portChanged()
	for _, c := range s.ports.asked {
		s.tellPort(c, p)
	}
}

// RemovePort tells that a port is there no more: controllers are told that it is
// down.
func (s *Server) RemovePort(num datapath.Port) {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	p, ok := s.ports.known[num]
	if !ok {
		return
	}
	delete(s.ports.known, num)
	if !p.Up {
		return
	}
	p.Up = false
	s.portChanged()
	for _, c := range s.ports.asked {
		s.tellPort(c, p)
	}
}

// askPorts tells a client of all ports, and of their changes from then on.
func (s *Server) askPorts(c *client) {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	if !slices.Contains(s.ports.asked, c) {
		s.ports.asked = append(s.ports.asked, c)
	}
	for _, num := range slices.Sorted(maps.Keys(s.ports.known)) {
		s.tellPort(c, s.ports.known[num])
	}
}

// tellPort tells a client the status of a port. What waits for a client that does
// not read is bounded: only the newest status of each port does.
func (s *Server) tellPort(c *client, p Port) {
	m, err := p.message()
	if err != nil {
		s.log.Error("port status", "port", p.Number, "error", err) // a name that is not UTF-8
		return
	}
	c.out.Replace(m, isStatusOf(p.Number))
}

// forgetPorts ends what askPorts began.
func (s *Server) forgetPorts(c *client) {
	s.ports.mu.Lock()
	defer s.ports.mu.Unlock()
	s.ports.asked = slices.DeleteFunc(s.ports.asked, func(o *client) bool { return o == c })
}
