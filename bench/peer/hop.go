package peer

import (
	"context"
	"fmt"
	"sync"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/hop"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// hopName is the service of a stage of a chain.
func hopName(n int) string { return fmt.Sprintf("Hop%d", n) }

// hopHandler is one stage of a chain; a chain is used by one caller at a time.
type hopHandler struct {
	number int
	dial   dialer

	mu   sync.Mutex
	next thrift.TClient // to the next stage, made when first needed
	stop func()
}

func newHop(number int, dial dialer) *hopHandler { return &hopHandler{number: number, dial: dial} }

// close ends the connection to the next stage.
func (h *hopHandler) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stop != nil {
		h.stop()
	}
}

// client returns the next stage's client.
func (h *hopHandler) client(ctx context.Context) (*hop.HopClient, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.next == nil {
		next, stop, err := h.dial(ctx, hopName(h.number+1), h.number+1)
		if err != nil {
			return nil, err
		}
		h.next, h.stop = next, stop
	}
	return hop.NewHopClient(h.next), nil
}

// Forward implements hop.Hop.
func (h *hopHandler) Forward(ctx context.Context, data []byte, left int32) (int64, error) {
	if left <= 0 {
		return sum(data), nil
	}
	next, err := h.client(ctx)
	if err != nil {
		return 0, err
	}
	return next.Forward(ctx, data, left-1)
}

// ForwardRef implements hop.Hop.
func (h *hopHandler) ForwardRef(ctx context.Context, data *bifrost.GlobalPointer, length int64, left int32) (int64, error) {
	if left > 0 {
		next, err := h.client(ctx)
		if err != nil {
			return 0, err
		}
		return next.ForwardRef(ctx, data, length, left-1)
	}
	p, err := rpc.PointerOf(data)
	if err != nil {
		return 0, err
	}
	if length < 0 || length > MaxSize {
		return 0, rpc.Errorf(rpc.BadRequest, "length %d: must be 0 to %d bytes", length, MaxSize)
	}
	buf := make([]byte, length)
	if _, err := rpc.Memory(ctx).Read(ctx, p, buf); err != nil {
		return 0, err
	}
	return sum(buf), nil
}
