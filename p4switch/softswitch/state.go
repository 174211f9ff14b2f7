package softswitch

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/graph"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// State is what a switch has counted, for people to look at.
type State struct {
	// Executor is what runs the program: "kernel" or "Go", or empty without a program.
	Executor string `json:"executor"`
	// Program numbers the programs that were committed; 0: none.
	Program uint64 `json:"program"`
	// Ports are by number, Tables by name.
	Ports  []PortStats  `json:"ports"`
	Tables []TableState `json:"tables"`
	// Lost counts packets for ports that are not attached.
	Lost uint64 `json:"lost"`
	// PacketIns counts what did not get to a controller, PacketOuts what came from one.
	PacketInsLost uint64 `json:"packet_ins_lost"`
	PacketOuts    uint64 `json:"packet_outs"`
}

// TableState is a table with a key: how many entries it has, and its lookups.
type TableState struct {
	Table   string `json:"table"`
	Entries int    `json:"entries"`
	Hits    uint64 `json:"hits"`
	Misses  uint64 `json:"misses"`
}

// Program is the program that a switch runs.
type Program struct {
	// Number is State's.
	Number uint64       `json:"number"`
	Graph  *graph.Graph `json:"graph"`
}

// State tells what has been counted until now.
func (s *Switch) State() State {
	st := State{Program: s.runs.Load(), Ports: s.Ports(), Tables: []TableState{}, Lost: s.Lost()}
	if st.Ports == nil {
		st.Ports = []PortStats{}
	}
	if s.exec.Load() != nil {
		st.Executor = "Go"
		if s.kernel() != nil {
			st.Executor = "kernel"
		}
	}
	entries := s.srv.Entries()
	for _, t := range s.Tables() {
		st.Tables = append(st.Tables, TableState{t.Table, entries[t.Table], t.Hits, t.Misses})
	}
	n := s.srv.Stats()
	st.PacketInsLost, st.PacketOuts = n.PacketInDrops+n.PacketInErrors, n.PacketOuts
	return st
}

// program is the model that the executor runs, with the number of its commit.
func (s *Switch) program() (Program, error) {
	number := s.runs.Load() // a commit at the same time makes the number old, and whoever asks asks again
	e := s.exec.Load()
	if e == nil {
		return Program{}, fmt.Errorf("%w: the switch has no program yet", datapath.ErrNotFound)
	}
	x, ok := (*e).(interface{ model() *v1model.Program })
	if !ok {
		return Program{}, fmt.Errorf("softswitch: a %T does not tell its program", *e)
	}
	return Program{number, graph.Of(x.model())}, nil
}

// A switch tells its state at the address of its P4Runtime server, to whoever may write to it. Requests are empty, and answers JSON, as with traces.
const (
	stateServiceName = "bifrost.p4.State"
	stateMethod      = "/" + stateServiceName + "/Get"
	programMethod    = "/" + stateServiceName + "/Program"
)

// serveState adds the service to a server.
func (s *Switch) serveState(r grpc.ServiceRegistrar) {
	method := func(name string, ask func() (any, error)) grpc.MethodDesc {
		return grpc.MethodDesc{MethodName: name, Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			if err := decode(&wrapperspb.BytesValue{}); err != nil {
				return nil, err
			}
			v, err := ask()
			if err != nil {
				return nil, traceStatus(err)
			}
			b, err := json.Marshal(v)
			return wrapperspb.Bytes(b), err
		}}
	}
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: stateServiceName, HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			method("Get", func() (any, error) { return s.State(), nil }),
			method("Program", func() (any, error) { return s.program() }),
		},
	}, s)
}

// ReadState asks a switch for its state.
func ReadState(ctx context.Context, conn grpc.ClientConnInterface) (st State, err error) {
	err = ask(ctx, conn, stateMethod, &st)
	return st, err
}

// ReadProgram asks a switch for the program that it runs. Without one the error's code is FailedPrecondition.
func ReadProgram(ctx context.Context, conn grpc.ClientConnInterface) (p Program, err error) {
	err = ask(ctx, conn, programMethod, &p)
	return p, err
}

// ask calls a method whose answer is JSON.
func ask(ctx context.Context, conn grpc.ClientConnInterface, method string, v any) error {
	var out wrapperspb.BytesValue
	if err := conn.Invoke(ctx, method, &wrapperspb.BytesValue{}, &out); err != nil {
		return err
	}
	if err := json.Unmarshal(out.Value, v); err != nil {
		return fmt.Errorf("the switch tells something else than its state: %w", err)
	}
	return nil
}
