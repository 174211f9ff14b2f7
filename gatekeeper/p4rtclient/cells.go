package p4rtclient

import (
	"context"
	"errors"
	"fmt"
	"io"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// array is an indirect meter or counter of the program.
type array struct {
	id   uint32
	size int64
}

// Rate is how much a meter lets pass: so many packets a second, and so many at once after
// a pause.
type Rate struct{ PerSecond, Burst int64 }

// SetMeter gives all cells of an indirect meter a rate. What is beyond it is red, all else
// green.
func (c *Client) SetMeter(ctx context.Context, name string, r Rate) error {
	m, ok := c.cfg.Program.meters[name]
	if !ok {
		return fmt.Errorf("the program has no meter %q", name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	err := c.setCells(ctx, m, r, []*p4v1.Index{nil})
	if code := status.Code(err); code == codes.Unimplemented || code == codes.InvalidArgument || code == codes.Unknown {
		// bmv2 takes one cell at a time.
		one := make([]*p4v1.Index, m.size)
		for i := range one {
			one[i] = &p4v1.Index{Index: int64(i)}
		}
		err = c.setCells(ctx, m, r, one)
	}
	if err != nil {
		return fmt.Errorf("meter %s: %w", name, err)
	}
	return nil
}

func (c *Client) setCells(ctx context.Context, m array, r Rate, cells []*p4v1.Index) error {
	q := &p4v1.WriteRequest{DeviceId: c.cfg.DeviceID, ElectionId: c.election()}
	for _, i := range cells {
		q.Updates = append(q.Updates, &p4v1.Update{Type: p4v1.Update_MODIFY, Entity: &p4v1.Entity{Entity: &p4v1.Entity_MeterEntry{MeterEntry: &p4v1.MeterEntry{
			MeterId: m.id, Index: i, Config: &p4v1.MeterConfig{Cir: r.PerSecond, Cburst: r.Burst, Pir: r.PerSecond, Pburst: r.Burst},
		}}}})
	}
	_, err := c.rpc.Write(ctx, q)
	return err
}

// Counter returns the packets that an indirect counter has counted, by index; cells at 0
// are left out.
func (c *Client) Counter(ctx context.Context, name string) (map[int64]int64, error) {
	a, ok := c.cfg.Program.counters[name]
	if !ok {
		return nil, fmt.Errorf("the program has no counter %q", name)
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	stream, err := c.rpc.Read(ctx, &p4v1.ReadRequest{DeviceId: c.cfg.DeviceID, Entities: []*p4v1.Entity{{
		Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: a.id}},
	}}})
	if err != nil {
		return nil, fmt.Errorf("read counter %s: %w", name, err)
	}
	out := map[int64]int64{}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read counter %s: %w", name, err)
		}
		for _, e := range m.GetEntities() {
			if n := e.GetCounterEntry(); n.GetData().GetPacketCount() != 0 {
				out[n.GetIndex().GetIndex()] = n.GetData().GetPacketCount()
			}
		}
	}
}
