package tally

import (
	"context"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Front implements the service of that name: it has no state, and lends on what it
// is lent.
type Front struct {
	// Answered, if set, is called when the Counter has answered.
	Answered func(ctx context.Context)

	next *counter.CounterRefClient
}

var _ counter.FrontRefHandler = (*Front)(nil)

// NewFront returns a Front that calls from a node.
func NewFront(node *rpc.Node) *Front {
	return &Front{next: counter.OpenCounter(node, CounterName)}
}

// Add implements the service.
func (f *Front) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	total, err := f.next.Add(ctx, account, amounts)
	if err == nil && f.Answered != nil {
		f.Answered(ctx)
	}
	return total, err
}

// Serve exports a service of the package on a node.
func Serve(ctx context.Context, node *rpc.Node, service string) error {
	switch service {
	case CounterName:
		return counter.ExportCounter(ctx, node, service, &Counter{})
	case FrontName:
		return counter.ExportFront(ctx, node, service, NewFront(node))
	}
	return rpc.Errorf(rpc.NoSuchMethod, "no service %q: there are %s and %s", service, CounterName, FrontName)
}
