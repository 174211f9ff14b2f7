package gnmi

import (
	"strconv"
	"strings"

	pb "github.com/openconfig/gnmi/proto/gnmi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The modules of the model.
const (
	interfaces = "openconfig-interfaces"
	ethernet   = "openconfig-if-ethernet"
	p4rt       = "openconfig-p4rt"
)

// node is a part of the model: a leaf, a container, or an entry of the list of interfaces.
type node struct {
	module, name string
	key          string // of an entry of the list
	port         uint32 // whose entry it is
	leaf         any    // string, bool, uint16, uint32 or uint64; nil: it has children
	counter      bool   // a leaf that changes with each packet
	children     []*node
}

func container(module, name string, children ...*node) *node {
	return &node{module: module, name: name, children: children}
}

func leaf(module, name string, value any) *node {
	return &node{module: module, name: name, leaf: value}
}

// tree is what is asked for: configuration, state, or both.
func tree(ports []Port, of pb.GetRequest_DataType) *node {
	list := container(interfaces, "interfaces")
	for i := range ports {
		list.children = append(list.children, entryOf(&ports[i], of))
	}
	return &node{module: interfaces, children: []*node{list}}
}

func entryOf(p *Port, of pb.GetRequest_DataType) *node {
	e := &node{module: interfaces, name: "interface", key: p.Name, port: p.Number, children: []*node{leaf(interfaces, "name", p.Name)}}
	settings := func() []*node {
		out := []*node{
			leaf(interfaces, "name", p.Name), leaf(interfaces, "type", "iana-if-type:ethernetCsmacd"), leaf(interfaces, "enabled", p.Enabled),
			leaf(p4rt, "id", p.Number),
		}
		if p.MTU > 0 {
			out = append(out, leaf(interfaces, "mtu", p.MTU))
		}
		return out
	}
	if of != pb.GetRequest_STATE && of != pb.GetRequest_OPERATIONAL {
		e.children = append(e.children, container(interfaces, "config", settings()...))
	}
	if of == pb.GetRequest_CONFIG {
		return e
	}
	state := container(interfaces, "state", append(settings(),
		leaf(interfaces, "admin-status", upDown(p.Enabled)), leaf(interfaces, "oper-status", upDown(p.Up)))...)
	if p.Index > 0 {
		state.children = append(state.children, leaf(interfaces, "ifindex", p.Index))
	}
	counters := container(interfaces, "counters")
	for _, c := range []struct {
		name string
		n    uint64
	}{
		{"in-octets", p.InOctets}, {"in-pkts", p.InPackets}, {"in-discards", p.InDiscards},
		{"out-octets", p.OutOctets}, {"out-pkts", p.OutPackets}, {"out-discards", p.OutDiscards},
	} {
		l := leaf(interfaces, c.name, c.n)
		l.counter = true
		counters.children = append(counters.children, l)
	}
	state.children = append(state.children, counters)
	e.children = append(e.children, state)
	if p.MAC != "" {
		e.children = append(e.children, container(ethernet, "ethernet", container(ethernet, "state", leaf(ethernet, "mac-address", p.MAC))))
	}
	return e
}

func upDown(up bool) string {
	if up {
		return "UP"
	}
	return "DOWN"
}

// json is the node's value. In JSON of the IETF (RFC 7951) names have their module where it is not their parent's, and numbers of 64 bits are strings.
func (n *node) json(e pb.Encoding) any {
	if v, ok := n.leaf.(uint64); ok && e == pb.Encoding_JSON_IETF {
		return strconv.FormatUint(v, 10)
	}
	if n.leaf != nil {
		return n.leaf
	}
	out := map[string]any{}
	for _, c := range n.children {
		name := c.name
		if e == pb.Encoding_JSON_IETF && (c.module != n.module || n.name == "") {
			name = c.module + ":" + c.name
		}
		if c.key == "" {
			out[name] = c.json(e)
			continue
		}
		list, _ := out[name].([]any)
		out[name] = append(list, c.json(e))
	}
	return out
}

// found is a node with its path.
type found struct {
	node *node
	path []*pb.PathElem
	port uint32 // whose it is, if it is one port's
}

// leaves are the leaves below a node, and the node itself if it is one.
func (f *found) leaves() []*found {
	if f.node.leaf != nil {
		return []*found{f}
	}
	var out []*found
	for _, c := range f.node.children {
		out = append(out, f.child(c).leaves()...)
	}
	return out
}

func (f *found) child(c *node) *found {
	e := &pb.PathElem{Name: c.name}
	if c.module != f.node.module {
		e.Name = c.module + ":" + c.name
	}
	port := f.port
	if c.key != "" {
		e.Key, port = map[string]string{"name": c.key}, c.port
	}
	return &found{c, append(f.path[:len(f.path):len(f.path)], e), port}
}

// find finds what a path means, with * for any interface and any name. What the model does not have is NOT_FOUND.
func find(root *node, prefix, path *pb.Path) ([]*found, error) {
	elems := append(append([]*pb.PathElem{}, prefix.GetElem()...), path.GetElem()...)
	switch {
	case len(elems) > maxElems:
		return nil, status.Errorf(codes.InvalidArgument, "a path of %d elements: %d at most", len(elems), maxElems)
	case old(path) || old(prefix):
		return nil, status.Error(codes.Unimplemented, "paths have elem, not element")
	}
	at := []*found{{node: root}}
	for i, e := range elems {
		name := e.GetName()
		if _, bare, ok := strings.Cut(name, ":"); ok {
			name = bare
		}
		for k := range e.GetKey() {
			if k != "name" || name != "interface" {
				return nil, status.Errorf(codes.InvalidArgument, "%s: the only key is name, of an interface", readable(prefix, path))
			}
		}
		key := e.GetKey()["name"]
		if i < len(prefix.GetElem()) && (name == "*" || name == "interface" && (key == "" || key == "*")) {
			return nil, status.Errorf(codes.InvalidArgument, "%s: a prefix means one thing", readable(prefix, nil))
		}
		var next []*found
		for _, f := range at {
			for _, c := range f.node.children {
				if (name == c.name || name == "*") && (key == "" || key == "*" || key == c.key) {
					next = append(next, f.child(c))
				}
			}
		}
		at = next
	}
	if len(at) == 0 {
		return nil, status.Errorf(codes.NotFound, "there is no %s: the switch has /interfaces/interface[name=…]", readable(prefix, path))
	}
	return at, nil
}

// old tells whether a path has its elements in the form of gNMI 0.3 alone; some clients send both forms.
func old(p *pb.Path) bool {
	return len(p.GetElem()) == 0 && len(p.GetElement()) > 0 //nolint:staticcheck // as said
}

func pathOf(elems []*pb.PathElem) *pb.Path { return &pb.Path{Elem: elems} }

// readable is a path as people write it.
func readable(prefix, path *pb.Path) string {
	var b strings.Builder
	for _, e := range append(append([]*pb.PathElem{}, prefix.GetElem()...), path.GetElem()...) {
		b.WriteString("/" + e.GetName())
		if k := e.GetKey()["name"]; k != "" {
			b.WriteString("[name=" + k + "]")
		}
	}
	if b.Len() == 0 {
		return "/"
	}
	return b.String()
}
