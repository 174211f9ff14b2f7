package rpc

import (
	"context"
	"errors"
	"iter"
	"net/netip"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// Health is whether a service can be called, with the words of gRPC's health checking.
type Health string

// The states of a service.
const (
	Serving        Health = "SERVING"         // at least one node serves it
	NotServing     Health = "NOT_SERVING"     // all nodes that export it say that it should not be called
	ServiceUnknown Health = "SERVICE_UNKNOWN" // no node exports it
)

// ServiceInfo is what the rack knows of a service.
type ServiceInfo struct {
	Health Health
	// Serving are the nodes that serve it, Resting those that say it should not be called
	// there; together at most 256. Calls are routed to both.
	Serving, Resting []netip.Addr
	// Methods are those that at least one node serves, in order.
	Methods []string
	// IDL is the Thrift definition, "" if no node has told it ([WithIDL]).
	IDL string
}

// Service tells what the rack knows of a service: whether it can be called, where it is,
// and its IDL. It asks the Gatekeeper each time. A service that no node exports is
// [ServiceUnknown], which is no error. A node that fails is known as soon as the Gatekeeper
// has noticed.
func (n *Node) Service(ctx context.Context, name string) (ServiceInfo, error) {
	info, err := n.session.Service(ctx, name)
	if fault.CodeOf(err) == fault.NotFound {
		return ServiceInfo{Health: ServiceUnknown}, nil
	}
	if err != nil {
		return ServiceInfo{}, coded("service "+name, err)
	}
	s := ServiceInfo{Health: NotServing, Methods: info.Methods, IDL: info.IDL}
	for _, at := range info.Nodes {
		if at.NotServing {
			s.Resting = append(s.Resting, at.Node)
			continue
		}
		s.Health = Serving
		s.Serving = append(s.Serving, at.Node)
	}
	if len(info.Nodes) == 0 { // all are away
		s.Health = ServiceUnknown
	}
	return s, nil
}

// healthPace is how often a watcher asks.
const healthPace = time.Second

// WatchHealth yields the health of a service, and again each time that it has changed,
// which it notices within a second. It ends with the error of a context that ends, or of
// the node; while the Gatekeeper does not answer it waits.
func (n *Node) WatchHealth(ctx context.Context, name string) iter.Seq2[Health, error] {
	return func(yield func(Health, error) bool) {
		var last Health
		for {
			s, err := n.Service(ctx, name)
			if ended := errors.Join(ctx.Err(), n.failure()); ended != nil {
				yield("", coded("watch "+name, ended))
				return
			}
			if err == nil && s.Health != last {
				if last = s.Health; !yield(last, nil) {
					return
				}
			}
			select {
			case <-time.After(healthPace):
			case <-ctx.Done():
			case <-n.done:
			}
		}
	}
}

// SetServing says whether a service that the node exports should be called: those who ask
// for its health are told so. Calls go on to be routed to it. It returns when the rack
// knows.
func (n *Node) SetServing(ctx context.Context, service string, serving bool) error {
	op := "set serving " + service
	x := n.exported(service)
	if x == nil {
		return fault.New(BadRequest, op, "the node does not export it")
	}
	x.telling.Lock()
	defer x.telling.Unlock()
	before := x.resting.Swap(!serving)
	_, methods, err := x.methodList(x.offer.Load().processor)
	if err == nil {
		_, err = n.session.Export(ctx, x.exportOf(methods))
	}
	if err != nil {
		x.resting.Store(before)
		return coded(op, err)
	}
	return nil
}
