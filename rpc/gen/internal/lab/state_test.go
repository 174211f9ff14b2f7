package lab_test

import (
	"context"
	"encoding/binary"
	"testing"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
)

// keeper is a handler with state, as its IDL's mark asks for: it counts bytes.
type keeper struct {
	sum     uint64
	entered func()        // called first, if set
	hold    chan struct{} // waited for then
}

func (k *keeper) Snapshot() ([]byte, error) { return binary.BigEndian.AppendUint64(nil, k.sum), nil }

func (k *keeper) Restore(b []byte) error {
	k.sum = binary.BigEndian.Uint64(b)
	return nil
}

func (k *keeper) Keep(ctx context.Context, film *rpc.Ref[[]byte]) (int64, error) {
	if k.entered != nil {
		k.entered()
		<-k.hold
	}
	b, err := film.Load(ctx)
	k.sum += uint64(len(b))
	return int64(k.sum), err
}

func (k *keeper) Kept(context.Context) (int64, error) { return int64(k.sum), nil }

// TestState: stubs, state and the policies of the IDL work together: keep is
// exactly-once, kept is not logged.
func TestState(t *testing.T) {
	onRack(t, func(w *world) {
		server, err := w.rack.Join(w.ctx, "s1", "keeper")
		w.must(err)
		w.must(lab.ExportKeeper(w.ctx, server, "Keeper", &keeper{}))
		film := rpc.RefOf([]byte("1234567"))
		client := lab.OpenKeeper(w.node, "Keeper")
		for i := range int64(3) {
			if n, err := client.Keep(w.ctx, film); n != 7*(i+1) || err != nil {
				t.Errorf("call %d: %d, %v", i, n, err)
			}
		}
		if n, err := client.Kept(w.ctx); n != 21 || err != nil {
			t.Errorf("kept: %d, %v", n, err)
		}
		w.must(film.Free(w.ctx))
		w.must(server.Close(w.ctx))
	})
}
