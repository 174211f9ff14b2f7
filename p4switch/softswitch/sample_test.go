package softswitch

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
)

// rack is a switch that runs the sample program, and its controller.
type rack struct {
	t      testing.TB
	sw     *Switch
	info   *p4info.Info
	prefix string // of the program's names
	client p4v1.P4RuntimeClient
	stream p4v1.P4Runtime_StreamChannelClient
	in     chan *p4v1.StreamMessageResponse
	config *p4v1.SetForwardingPipelineConfigRequest // what was loaded
}

const testDevice = 1

// patience bounds what must come on a busy machine.
const patience = time.Minute

var electionID = &p4v1.Uint128{Low: 1}

// newRack starts a switch with the sample program.
func newRack(t testing.TB) *rack {
	t.Helper()
	return newSwitch(t, sample.JSON, sample.Info, sample.Prefix)
}

// newSwitch starts a switch with a program loaded through P4Runtime, on the Go
// executor. The CPU port is 510.
func newSwitch(t testing.TB, program, infoText []byte, prefix string) *rack {
	t.Helper()
	return newSwitchOn(t, LoadGo, program, infoText, prefix)
}

func newSwitchOn(t testing.TB, load Loader, program, infoText []byte, prefix string) *rack {
	t.Helper()
	return newSwitchWith(t, Config{Load: load}, program, infoText, prefix)
}

// newSwitchWith starts a switch with more of a configuration.
func newSwitchWith(t testing.TB, cfg Config, program, infoText []byte, prefix string) *rack {
	t.Helper()
	cfg.DeviceID, cfg.CPUPort = testDevice, sample.CPUPort
	sw, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- sw.Serve(l) }()
	t.Cleanup(func() {
		if err := sw.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	r := connect(t, socket, prefix)
	r.sw = sw
	r.lead()
	r.load(program, infoText)
	return r
}

// connect is a controller of the switch at a socket.
func connect(t testing.TB, socket, prefix string) *rack {
	t.Helper()
	conn, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	r := &rack{t: t, prefix: prefix, client: p4v1.NewP4RuntimeClient(conn), in: make(chan *p4v1.StreamMessageResponse, 64)}
	ctx, cancel := context.WithCancel(context.Background())
	if r.stream, err = r.client.StreamChannel(ctx); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go r.receive(done)
	t.Cleanup(func() {
		cancel()
		<-done
		_ = conn.Close()
	})
	return r
}

func (r *rack) receive(done chan struct{}) {
	defer close(done)
	defer close(r.in)
	for {
		m, err := r.stream.Recv()
		if err != nil {
			return
		}
		r.in <- m
	}
}

// lead becomes primary.
func (r *rack) lead() {
	r.t.Helper()
	if !r.elected("", electionID.GetLow()) {
		r.t.Fatal("not primary")
	}
}

// elected asks to be a role's primary, and reports whether it is.
func (r *rack) elected(name string, id uint64) bool {
	r.t.Helper()
	m := &p4v1.MasterArbitrationUpdate{DeviceId: testDevice, ElectionId: &p4v1.Uint128{Low: id}}
	if name != "" {
		m.Role = &p4v1.Role{Name: name}
	}
	r.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Arbitration{Arbitration: m}})
	answer := r.next().GetArbitration()
	if answer == nil {
		r.t.Fatal("no answer to an arbitration message")
	}
	return answer.GetStatus().GetCode() == 0
}

// load loads a program.
func (r *rack) load(program, infoText []byte) {
	r.t.Helper()
	info := &configv1.P4Info{}
	if err := prototext.Unmarshal(infoText, info); err != nil {
		r.t.Fatal(err)
	}
	r.config = &p4v1.SetForwardingPipelineConfigRequest{
		DeviceId: testDevice, ElectionId: electionID, Action: p4v1.SetForwardingPipelineConfigRequest_VERIFY_AND_COMMIT,
		Config: &p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: program},
	}
	_, err := r.client.SetForwardingPipelineConfig(context.Background(), r.config)
	if err != nil {
		r.t.Fatal(err)
	}
	if r.info, err = p4info.Parse(info); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rack) send(m *p4v1.StreamMessageRequest) {
	r.t.Helper()
	if err := r.stream.Send(m); err != nil {
		r.t.Fatal(err)
	}
}

func (r *rack) next() *p4v1.StreamMessageResponse {
	r.t.Helper()
	select {
	case m, ok := <-r.in:
		if !ok {
			r.t.Fatal("the stream has ended")
		}
		return m
	case <-time.After(patience):
		r.t.Fatal("no message has come")
		return nil
	}
}

// entry builds an entry from the data plane's words.
func (r *rack) entry(table string, action string, params [][]byte, match ...datapath.Match) *p4v1.Entity {
	r.t.Helper()
	t := r.info.TableByName(r.prefix + table)
	a := r.info.ActionMessage(datapath.Action{Name: r.prefix + action, Params: params})
	if t == nil || a == nil {
		r.t.Fatalf("no table %q or action %q", table, action)
	}
	return &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: &p4v1.TableEntry{
		TableId: t.ID, Match: p4info.MatchFields(t.Fields, match),
		Action: &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: a}},
	}}}
}

func (r *rack) write(op p4v1.Update_Type, es ...*p4v1.Entity) {
	r.t.Helper()
	req := &p4v1.WriteRequest{DeviceId: testDevice, ElectionId: electionID}
	for _, e := range es {
		req.Updates = append(req.Updates, &p4v1.Update{Type: op, Entity: e})
	}
	if _, err := r.client.Write(context.Background(), req); err != nil {
		r.t.Fatal(err, status.Convert(err).Details())
	}
}

// host makes port p, with address addr behind it, known to the program.
func (r *rack) host(p byte, addr netip.Addr, out func([]byte)) {
	r.t.Helper()
	if err := r.sw.Attach(datapath.Port(p), out); err != nil {
		r.t.Fatal(err)
	}
	a := addr.As16()
	whole := datapath.Match{Value: a[:], PrefixLen: 128}
	mac := func(last byte) []byte { return []byte{2, 0, 0, 0, 0, last} }
	r.write(p4v1.Update_INSERT,
		r.entry("identity", "known", sample.Row(0), datapath.Match{Value: []byte{0, p}}, whole),
		r.entry("l3", "to_hop", [][]byte{{0, p}}, whole),
		r.entry("next_hop", "forward", [][]byte{{0, p}, mac(p), mac(0xff)}, datapath.Match{Value: []byte{0, p}}))
}

var (
	addr1 = netip.MustParseAddr("fd00::1")
	addr2 = netip.MustParseAddr("fd00::2")
)

func datagram(port uint16, payload string) []byte {
	return frame.UDP6{
		DstMAC: frame.MAC{2, 0, 0, 0, 0, 0xff}, SrcMAC: frame.MAC{2, 0, 0, 0, 0, 1},
		Src: netip.AddrPortFrom(addr1, port), Dst: netip.AddrPortFrom(addr2, port), Payload: []byte(payload),
	}.Append(nil)
}

// The whole way of a held packet: it comes in, goes to the controller, and goes
// on when the controller says so.
func TestSample_HoldAndRelease(t *testing.T) {
	r := newRack(t)
	var got [][]byte
	r.host(1, addr1, func([]byte) { t.Error("a frame went back") })
	arrived := make(chan struct{}, 1)
	r.host(2, addr2, func(b []byte) { got = append(got, bytes.Clone(b)); arrived <- struct{}{} })

	r.sw.Input(1, datagram(7, "plain"))
	<-arrived
	u, err := frame.ParseUDP6(got[0])
	if err != nil || string(u.Payload) != "plain" || u.DstMAC != (frame.MAC{2, 0, 0, 0, 0, 2}) {
		t.Fatalf("got %+v, %v", u, err)
	}

	held := datagram(sample.PortControl, "for the Gatekeeper")
	r.sw.Input(1, held)
	in := r.next().GetPacket()
	if !bytes.Equal(in.GetPayload(), held) || len(in.GetMetadata()) != 3 || !bytes.Equal(in.GetMetadata()[0].GetValue(), []byte{1}) {
		t.Fatalf("got %v", in)
	}
	r.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{
		Payload:  in.GetPayload(),
		Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{0}}, {MetadataId: 2, Value: []byte{0}}},
	}}})
	select {
	case <-arrived:
	case m := <-r.in:
		t.Fatalf("the controller got %v", m)
	case <-time.After(patience):
		t.Fatal("the packet has not been released")
	}
	if u, err := frame.ParseUDP6(got[1]); err != nil || string(u.Payload) != "for the Gatekeeper" {
		t.Fatalf("got %+v, %v", u, err)
	}
}

// A rule that is gone stops the very next packet.
func TestSample_DeletedRuleIsInForce(t *testing.T) {
	r := newRack(t)
	got := 0
	r.host(1, addr1, func([]byte) {})
	r.host(2, addr2, func([]byte) { got++ })
	r.sw.Input(1, datagram(7, "x"))
	a := addr1.As16()
	r.write(p4v1.Update_DELETE, r.entry("identity", "known", sample.Row(0),
		datapath.Match{Value: []byte{0, 1}}, datapath.Match{Value: a[:], PrefixLen: 128}))
	r.sw.Input(1, datagram(7, "x"))
	if got != 1 {
		t.Errorf("%d packets have arrived, want 1", got)
	}
}

// Counters are read as the program counts.
func TestSample_Counters(t *testing.T) {
	r := newRack(t)
	r.host(1, addr1, func([]byte) {})
	r.host(2, addr2, func([]byte) {})
	frame := datagram(7, "x")
	for range 3 {
		r.sw.Input(1, frame)
	}
	read := func(e *p4v1.Entity) *p4v1.Entity {
		t.Helper()
		s, err := r.client.Read(context.Background(), &p4v1.ReadRequest{DeviceId: testDevice, Entities: []*p4v1.Entity{e}})
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.Recv()
		if err != nil || len(m.GetEntities()) == 0 {
			t.Fatalf("got %v, %v", m, err)
		}
		return m.GetEntities()[0]
	}
	hop := r.entry("next_hop", "no_hop", nil, datapath.Match{Value: []byte{0, 2}}).GetTableEntry()
	hop.Action, hop.CounterData = nil, &p4v1.CounterData{}
	want := &p4v1.CounterData{PacketCount: 3, ByteCount: int64(3 * len(frame))}
	if got := read(&p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: hop}}).GetTableEntry(); !proto.Equal(got.GetCounterData(), want) {
		t.Errorf("direct counter: %v, want %v", got.GetCounterData(), want)
	}
	verdicts := r.info.CounterOrder[0].ID
	got := read(&p4v1.Entity{Entity: &p4v1.Entity_CounterEntry{CounterEntry: &p4v1.CounterEntry{CounterId: verdicts, Index: &p4v1.Index{Index: int64(sample.Forwarded.Cell(1))}}}})
	if c := got.GetCounterEntry().GetData(); c.GetPacketCount() != 3 {
		t.Errorf("forwarded: %v", c)
	}
}

func portOf(i int) datapath.Port { return datapath.Port(i) }

// ids maps the program's names to ids, as text.
func (r *rack) ids() map[string]string {
	m := map[string]string{}
	r.info.Each(func(id uint32, name string) { m[name] = fmt.Sprint(id) })
	return m
}
