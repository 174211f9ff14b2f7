package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// swapper exchanges the program of a rack's switch for one that judges no rights, and back. Tables and registers stay, and the
// Gatekeeper notices nothing: it goes on using its hand. Such a program is made here, of what the switch runs, and is nowhere else.
type swapper struct {
	conn     *grpc.ClientConn
	rpc      p4v1.P4RuntimeClient
	election *p4v1.Uint128 // the Gatekeeper's

	judged, unjudged *p4v1.ForwardingPipelineConfig
}

// switchDevice is the P4Runtime device of every rack's switch.
const switchDevice = 1

// newSwapper asks the switch behind a socket what it runs.
func newSwapper(ctx context.Context, socket string) (s *swapper, err error) {
	s = &swapper{}
	s.conn, err = grpc.NewClient("unix:"+socket, append(p4rtclient.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	s.rpc = p4v1.NewP4RuntimeClient(s.conn)
	if s.election, err = s.primary(ctx); err != nil {
		return nil, fmt.Errorf("who controls the switch: %w", err)
	}
	has, err := s.rpc.GetForwardingPipelineConfig(ctx, &p4v1.GetForwardingPipelineConfigRequest{
		DeviceId: switchDevice, ResponseType: p4v1.GetForwardingPipelineConfigRequest_ALL,
	})
	if err != nil {
		return nil, fmt.Errorf("the switch's program: %w", err)
	}
	s.judged, s.unjudged = has.GetConfig(), proto.CloneOf(has.GetConfig())
	s.unjudged.P4DeviceConfig, err = withoutRights(s.judged.GetP4DeviceConfig())
	return s, err
}

// primary asks for the election id of the switch's controller.
func (s *swapper) primary(ctx context.Context) (*p4v1.Uint128, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := s.rpc.StreamChannel(ctx)
	if err != nil {
		return nil, err
	}
	ask := &p4v1.MasterArbitrationUpdate{DeviceId: switchDevice}
	if err := stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: ask}}); err != nil {
		return nil, err
	}
	m, err := stream.Recv()
	return m.GetArbitration().GetElectionId(), err
}

func (s *swapper) close() error { return s.conn.Close() }

// run makes the switch run a program.
func (s *swapper) run(ctx context.Context, program *p4v1.ForwardingPipelineConfig) error {
	_, err := s.rpc.SetForwardingPipelineConfig(ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: switchDevice, ElectionId: s.election, Action: p4v1.SetForwardingPipelineConfigRequest_RECONCILE_AND_COMMIT, Config: program,
	})
	if err != nil {
		return fmt.Errorf("exchange the switch's program: %w", err)
	}
	return nil
}

// judging is the condition of p4/bifrost.p4 on which rights are judged; its first half is that a packet is an operation of the Gatekeeper's.
const judging = "hand || meta.rights.wants != Wants.NOTHING"

var errNotOnce = errors.New("the program's condition " + judging + " is not there once")

// withoutRights returns a compiled program that judges no rights, of one that does: calls, answers and accesses to memory go by
// their addresses alone.
func withoutRights(compiled []byte) ([]byte, error) {
	var program map[string]any
	d := json.NewDecoder(bytes.NewReader(compiled))
	d.UseNumber()
	if err := d.Decode(&program); err != nil {
		return nil, fmt.Errorf("the switch's program: %w", err)
	}
	found := 0
	for _, conditional := range under(program, "pipelines", "conditionals") {
		source, _ := conditional["source_info"].(map[string]any)
		e, _ := conditional["expression"].(map[string]any)
		or, _ := e["value"].(map[string]any)
		if source["source_fragment"] == judging && or["op"] == "or" {
			conditional["expression"] = or["left"]
			found++
		}
	}
	if found != 1 {
		return nil, errNotOnce
	}
	return json.Marshal(program)
}

// under lists the objects in the lists of a name, in the objects of the list of another name.
func under(program map[string]any, outer, inner string) (all []map[string]any) {
	outers, _ := program[outer].([]any)
	for _, o := range outers {
		object, _ := o.(map[string]any)
		inners, _ := object[inner].([]any)
		for _, i := range inners {
			if x, ok := i.(map[string]any); ok {
				all = append(all, x)
			}
		}
	}
	return all
}
