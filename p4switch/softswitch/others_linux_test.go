package softswitch

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	ebpflink "github.com/cilium/ebpf/link"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	"github.com/vishvananda/netlink"
)

// Other network functions on a port's interface go on: one in front of the switch
// sees what comes in, one behind it what goes out, and both stay when it goes.
func TestKernel_BesideOtherFunctions(t *testing.T) {
	needRoot(t)
	r := newSwitchOn(t, LoadEBPF, sample.JSON, sample.Info, sample.Prefix)
	a, b := newLab(t, 1500), newLab(t, 1500)
	a.knows(b)
	b.knows(a)
	in, out := counting(t, a, ebpf.AttachTCXIngress), counting(t, b, ebpf.AttachTCXEgress)
	r.plugIn(1, a)
	r.plugIn(2, b)
	ca, cb := a.udp(1000), b.udp(7)
	before := [2]uint64{in(), out()}
	for range 3 {
		sendUDP(t, ca, []byte("x"), b, 7)
		receive(t, cb, 10)
	}
	if i, o := in()-before[0], out()-before[1]; i < 3 || o < 3 {
		t.Errorf("the others saw %d packets come and %d go, of 3", i, o)
	}
	if n := attached(t, a, b); n != 3 {
		t.Errorf("%d programs at the ingress of the ports, not the switch's two and one", n)
	}
	if err := r.sw.Close(); err != nil {
		t.Fatal(err)
	}
	if n := attached(t, a, b); n != 1 {
		t.Errorf("%d programs are left, not the other's one", n)
	}
}

// counting attaches a program that counts packets and lets the next one have them.
func counting(t *testing.T, h *lab, where ebpf.AttachType) func() uint64 {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	must(err)
	t.Cleanup(func() { _ = m.Close() })
	const next = -1 // TCX_NEXT
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "Apache-2.0", Instructions: asm.Instructions{
		asm.StoreImm(asm.R10, -4, 0, asm.Word),
		asm.Mov.Reg(asm.R2, asm.R10), asm.Add.Imm(asm.R2, -4),
		asm.LoadMapPtr(asm.R1, m.FD()),
		asm.FnMapLookupElem.Call(),
		asm.JEq.Imm(asm.R0, 0, "done"),
		asm.Mov.Imm(asm.R1, 1),
		asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
		asm.Mov.Imm(asm.R0, next).WithSymbol("done"),
		asm.Return(),
	}})
	must(err)
	defer prog.Close()
	l, err := netlink.LinkByName(h.iface)
	must(err)
	at, err := ebpflink.AttachTCX(ebpflink.TCXOptions{Interface: l.Attrs().Index, Program: prog, Attach: where})
	must(err)
	t.Cleanup(func() { _ = at.Close() })
	return func() uint64 {
		var n uint64
		must(m.Lookup(uint32(0), &n))
		return n
	}
}

// A program that eBPF cannot run is run by the Go executor, and the log says what
// it uses.
func TestLoadAuto_FallsBackAndSaysWhy(t *testing.T) {
	needRoot(t)
	program, err := os.ReadFile("../interp/testdata/loop.json")
	if err != nil {
		t.Fatal(err)
	}
	info, err := p4info.Parse(&configv1.P4Info{})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	x, err := LoadAuto(program, Env{Info: info, Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Error(err)
	}
	if _, ok := x.(*goExecutor); !ok {
		t.Errorf("a %T runs it", x)
	}
	for _, want := range []string{"the Go executor, not eBPF", "arithmetic with more than 64 bits"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log says nothing of %q: %s", want, log.String())
		}
	}
}
