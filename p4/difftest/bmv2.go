package difftest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
)

// bmv2Name is the program that is bmv2 with P4Runtime.
const bmv2Name = "simple_switch_grpc"

// HasBMv2 tells whether bmv2 is installed.
func HasBMv2() bool {
	_, err := exec.LookPath(bmv2Name)
	return err == nil
}

// device and election are those of our bmv2, which has no other controller.
const device = 1

var election = &p4v1.Uint128{Low: 1}

// BMv2 is a running bmv2 with a program. It has no interfaces: packets come and
// go through its gRPC service for that. Methods are for one goroutine.
type BMv2 struct {
	cmd    *exec.Cmd
	out    bytes.Buffer
	dir    string
	conns  []*grpc.ClientConn
	ctx    context.Context //nolint:containedctx // the process's lifetime
	cancel context.CancelFunc

	info   *p4info.Info
	cpu    datapath.Port
	client p4v1.P4RuntimeClient
	stream p4v1.P4Runtime_StreamChannelClient
	plane  grpc.ClientStream
	sent   uint64 // packets

	events chan event
	all    sync.WaitGroup
}

// StartBMv2 runs bmv2 with a compiled program and its P4Info in text form. It
// ends with Close.
func StartBMv2(program, info []byte, cpu datapath.Port) (*BMv2, error) {
	dir, err := os.MkdirTemp("", "bmv2-")
	if err != nil {
		return nil, err
	}
	b := &BMv2{dir: dir, cpu: cpu, events: make(chan event, 1024)}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	thrift, err := freePort()
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	args := []string{"--no-p4", "--device-id", fmt.Sprint(device), "-L", "off", "--thrift-port", fmt.Sprint(thrift), "--",
		"--grpc-server-addr", "unix:" + dir + "/p4rt", "--dp-grpc-server-addr", "unix:" + dir + "/plane"}
	if cpu != 0 {
		args = append(args, "--cpu-port", fmt.Sprint(cpu))
	}
	b.cmd = exec.Command(bmv2Name, args...)
	b.cmd.Stdout, b.cmd.Stderr = &b.out, &b.out
	if err := b.cmd.Start(); err != nil {
		b.cmd = nil
		return nil, errors.Join(err, b.Close())
	}
	if err := b.setUp(program, info); err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", bmv2Name, err), b.Close())
	}
	return b, nil
}

// freePort is a TCP port that nobody listens at. bmv2's Thrift server, which we do
// not use, would have the same one in all instances.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	return l.Addr().(*net.TCPAddr).Port, l.Close()
}

// startTimeout is how long bmv2 may take to come up on a busy machine.
const startTimeout = 30 * time.Second

func (b *BMv2) setUp(program, infoText []byte) error {
	msg := &configv1.P4Info{}
	if err := prototext.Unmarshal(infoText, msg); err != nil {
		return err
	}
	var err error
	if b.info, err = p4info.Parse(msg); err != nil {
		return err
	}
	control, err := b.dial("p4rt")
	if err != nil {
		return err
	}
	plane, err := b.dial("plane")
	if err != nil {
		return err
	}
	late := time.AfterFunc(startTimeout, b.cancel)
	defer late.Stop()
	if err := b.takeOver(control, msg, program); err != nil {
		return err
	}
	if b.plane, err = openPlane(b.ctx, plane); err != nil {
		return err
	}
	b.all.Go(b.readPlane)
	b.all.Go(b.readStream)
	return b.enableDigests()
}

func (b *BMv2) dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+b.dir+"/"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.WaitForReady(true)), grpc.WithConnectParams(quickly))
	if err == nil {
		b.conns = append(b.conns, conn)
	}
	return conn, err
}

// takeOver becomes primary and loads the program.
func (b *BMv2) takeOver(conn *grpc.ClientConn, info *configv1.P4Info, program []byte) (err error) {
	b.client = p4v1.NewP4RuntimeClient(conn)
	if b.stream, err = b.client.StreamChannel(b.ctx); err != nil {
		return err
	}
	err = b.stream.Send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{
		Arbitration: &p4v1.MasterArbitrationUpdate{DeviceId: device, ElectionId: election},
	}})
	if err != nil {
		return err
	}
	if _, err := b.stream.Recv(); err != nil {
		return err
	}
	_, err = b.client.SetForwardingPipelineConfig(b.ctx, &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: device, ElectionId: election, Action: p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: program},
	})
	return err
}

// enableDigests asks for every digest at once and by itself.
func (b *BMv2) enableDigests() error {
	for _, d := range b.info.DigestOrder {
		e := &p4v1.DigestEntry{DigestId: d.ID, Config: &p4v1.DigestEntry_Config{MaxListSize: 1}}
		if err := b.write(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_DigestEntry{DigestEntry: e}}); err != nil {
			return err
		}
	}
	return nil
}

func (b *BMv2) write(op p4v1.Update_Type, e *p4v1.Entity) error {
	_, err := b.client.Write(b.ctx, &p4v1.WriteRequest{
		DeviceId: device, ElectionId: election, Updates: []*p4v1.Update{{Type: op, Entity: e}},
	})
	if err == nil {
		return nil
	}
	return fmt.Errorf("%w: %v", err, status.Convert(err).Details()) // it has what is wrong
}

// Apply makes an update to a table's entries, as datapath.Datapath does.
func (b *BMv2) Apply(op datapath.Op, e datapath.Entry) error {
	t := b.info.TableByName(e.Table)
	if t == nil {
		return fmt.Errorf("table %q: %w", e.Table, datapath.ErrNotFound)
	}
	m := &p4v1.TableEntry{TableId: t.ID, Match: p4info.MatchFields(t.Fields, e.Match), Priority: e.Priority}
	if op != datapath.Delete {
		m.Action = &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: b.info.ActionMessage(*e.Action)}}
	}
	typ := map[datapath.Op]p4v1.Update_Type{
		datapath.Insert: p4v1.Update_INSERT, datapath.Modify: p4v1.Update_MODIFY, datapath.Delete: p4v1.Update_DELETE,
	}[op]
	return b.write(typ, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: m}})
}

// Counters reads cells of a counter, which it returns in the order in which they are named.
func (b *BMv2) Counters(name string, indexes ...int) (all []datapath.Counts, err error) {
	for _, def := range b.info.CounterOrder {
		if def.Name != name {
			continue
		}
		q := &p4v1.ReadRequest{DeviceId: device}
		for _, i := range indexes {
			q.Entities = append(q.Entities, &p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{
				CounterEntry: &p4v1.CounterEntry{CounterId: def.ID, Index: &p4v1.Index{Index: int64(i)}},
			}})
		}
		stream, err := b.client.Read(b.ctx, q)
		for err == nil && len(all) < len(indexes) {
			var m *p4v1.ReadResponse
			m, err = stream.Recv()
			for _, e := range m.GetEntities() {
				d := e.GetCounterEntry().GetData()
				all = append(all, datapath.Counts{Packets: uint64(d.GetPacketCount()), Bytes: uint64(d.GetByteCount())})
			}
		}
		return all, err
	}
	return nil, fmt.Errorf("counter %q: %w", name, datapath.ErrNotFound)
}

// Close ends bmv2 and returns when nothing of it is left.
func (b *BMv2) Close() error {
	b.cancel()
	for _, c := range b.conns {
		_ = c.Close()
	}
	b.all.Wait()
	var err error
	if b.cmd != nil {
		err = b.cmd.Process.Kill()
		_ = b.cmd.Wait() // says that it was killed
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}
