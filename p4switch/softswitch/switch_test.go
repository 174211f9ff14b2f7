package softswitch

import (
	"slices"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if keptSwitch != nil && keptSwitch() {
		return
	}
	goleak.VerifyTestMain(m)
}

// keptSwitch makes this process the switch of a test that kills it, where there are
// such tests, if it is asked to be.
var keptSwitch func() bool

// hub is an executor that sends each frame to the port in its first byte.
type hub struct {
	datapath.Datapath
	env Env
}

func (h *hub) Process(_ datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	emit(datapath.Port(frame[0]), frame)
}

func (h *hub) PacketOut(frame []byte) error {
	h.Process(h.env.CPUPort, frame, h.env.Emit)
	return nil
}

func (h *hub) Close() error { return nil }

func loadHub(_ []byte, env Env) (Executor, error) { return &hub{env: env}, nil }

// newHub is a switch that runs a hub.
func newHub(t testing.TB) *Switch {
	t.Helper()
	s, err := New(Config{DeviceID: 1, CPUPort: 510, Load: loadHub})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{}}); err != nil {
		t.Fatal(err)
	}
	return s
}

func TestInProcessPorts(t *testing.T) {
	s := newHub(t)
	var got [][]byte
	keep := func(b []byte) { got = append(got, slices.Clone(b)) }
	for _, p := range []datapath.Port{1, 2} {
		if err := s.Attach(p, keep); err != nil {
			t.Fatal(err)
		}
	}
	frame := append([]byte{2}, make([]byte, 20)...)
	s.Input(1, frame)
	s.Input(1, frame[:1]) // the shortest
	s.Input(3, frame)     // no such port
	s.Input(1, append([]byte{9}, make([]byte, 20)...))
	if len(got) != 2 || !slices.Equal(got[0], frame) || !slices.Equal(got[1], frame[:1]) {
		t.Fatalf("got % x", got)
	}
	st := s.Ports()
	if len(st) != 2 || st[0].RxPackets != 3 || st[1].TxPackets != 2 || st[1].TxBytes != 22 {
		t.Errorf("counters %+v", st)
	}
	if s.Lost() != 2 {
		t.Errorf("%d frames lost, want 2", s.Lost())
	}
	if err := s.Detach(2); err != nil {
		t.Fatal(err)
	}
	s.Input(1, frame)
	if len(got) != 2 || s.Lost() != 3 {
		t.Errorf("a detached port has sent: %d, %d lost", len(got), s.Lost())
	}
}

func TestAttachRefuses(t *testing.T) {
	s := newHub(t)
	for name, p := range map[string]datapath.Port{"CPU port": 510, "drop port": 511, "out of range": 512} {
		if err := s.Attach(p, func([]byte) {}); err == nil {
			t.Errorf("%s: attached", name)
		}
	}
	if err := s.Attach(1, func([]byte) {}); err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(1, func([]byte) {}); err == nil {
		t.Error("attached twice")
	}
	if err := s.Detach(7); err == nil {
		t.Error("detached what was not attached")
	}
}

var _ p4rt.LoadFunc = (&Switch{}).load
