package softswitch

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// To run p4c's test scripts over devices, and all that a script writes through
// P4Runtime, where a program NAME.json has its P4Info beside it, NAME.p4info.txt:
//
//	go test ./p4switch/softswitch -run TestSTF -stf 'p4_16_samples/*.stf' -stf-programs compiled
var (
	stfScripts  = flag.String("stf", "../interp/testdata/*.stf", "scripts to run, a pattern")
	stfPadded   = flag.Bool("stf-padded", false, "send what is too short for Ethernet with zeros behind it, which are taken off what comes out; else such scripts are for devices without Ethernet header")
	stfPrograms = flag.String("stf-programs", "../interp/testdata", "where the scripts' programs are")
)

// The scripts of the Go executor hold when packets come and go by interfaces, with
// an Ethernet header or without one.
func TestSTF(t *testing.T) {
	needRoot(t)
	scripts, err := filepath.Glob(*stfScripts)
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts %s: %v", *stfScripts, err)
	}
	for kind, open := range map[string]func(*testing.T, int) (string, wire){"veth": openVeth, "tun": openTun} {
		for _, script := range scripts {
			name := strings.TrimSuffix(filepath.Base(script), ".stf")
			t.Run(kind+"/"+name, func(t *testing.T) { runOver(t, script, name, open) })
		}
	}
}

// wire is the far end of a port's interface.
type wire interface {
	// send sends a frame and tells how many bytes had to be put behind it.
	send(t *testing.T, frame []byte) (padding int)
	receive() ([]byte, error)
}

func runOver(t *testing.T, script, name string, open func(*testing.T, int) (string, wire)) {
	program, err := os.ReadFile(filepath.Join(*stfPrograms, name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the program is not compiled")
	}
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.ReadFile(filepath.Join(*stfPrograms, name+".p4info.txt"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	prog, err := v1model.Load(program)
	if err != nil {
		t.Fatal(err)
	}
	runner := stf.New(prog)
	d := &devices{t: t, prog: prog, ends: map[datapath.Port]wire{}, done: make(chan []left, 1), direct: len(info) == 0}
	load := func(c []byte, env Env) (Executor, error) {
		if d.direct {
			env.Sink = runner
		}
		x, err := LoadGo(c, env)
		d.Executor = x
		return watched{x, d.done}, err
	}
	d.rack = newSwitchWith(t, Config{Load: load}, program, info, "")
	for _, p := range scriptPorts(t, script) {
		name, end := open(t, int(p))
		if err := d.sw.AttachInterface(p, name); err != nil {
			t.Fatal(err)
		}
		d.ends[p] = end
	}
	f, err := os.Open(script)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	runner.Attach(d)
	if err := runner.Run(f); err != nil {
		t.Error(err)
	}
}

// scriptPorts are the ports that a script mentions.
func scriptPorts(t *testing.T, script string) []datapath.Port {
	t.Helper()
	b, err := os.ReadFile(script)
	if err != nil {
		t.Fatal(err)
	}
	var used []datapath.Port
	seen := map[int]bool{}
	for line := range strings.Lines(string(b)) {
		var verb string
		var port int
		if _, err := fmt.Sscan(line, &verb, &port); err != nil || verb != "packet" && verb != "expect" || seen[port] {
			continue
		}
		seen[port] = true
		used = append(used, portOf(port))
	}
	return used
}

// watched tells, when a packet has been processed, where all that became of it
// leaves.
type watched struct {
	Executor
	done chan []left
}

// left is a frame that the switch has sent.
type left struct {
	port   datapath.Port
	length int
}

func (w watched) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	var out []left
	w.Executor.Process(in, frame, func(p datapath.Port, b []byte) {
		out = append(out, left{p, len(b)})
		emit(p, b)
	})
	w.done <- out
}

// devices is a switch behind interfaces, written to through P4Runtime if its program
// has a P4Info; it is what a script is run against.
type devices struct {
	*rack
	Executor // for what is not written through P4Runtime

	t      *testing.T
	prog   *v1model.Program
	direct bool
	ends   map[datapath.Port]wire
	done   chan []left
}

// Process implements stf.Switch. What Ethernet puts behind short frames is taken off
// again, in both directions: the script does not know of it.
func (d *devices) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	padding := d.ends[in].send(d.t, frame)
	if padding > 0 && !*stfPadded {
		d.t.Skip("the script has packets too short for Ethernet")
	}
	select {
	case out := <-d.done:
		for _, o := range out {
			if d.ends[o.port] == nil {
				continue // the script does not mention it
			}
			b, err := d.ends[o.port].receive()
			if err != nil {
				d.t.Errorf("port %d: %v", o.port, err)
				continue
			}
			length := min(len(b), o.length)
			for range padding {
				if length > 0 && b[length-1] == 0 {
					length--
				}
			}
			if strings.Trim(string(b[length:]), "\x00") != "" {
				d.t.Errorf("port %d: padding that is not zero: % x", o.port, b)
			}
			emit(o.port, b[:length])
		}
	case <-time.After(patience):
		d.t.Fatal("the packet has not come in")
	}
}

// Apply implements stf.Switch.
func (d *devices) Apply(op datapath.Op, e datapath.Entry) error {
	if d.direct {
		return d.Executor.Apply(op, e)
	}
	t := d.info.TableByName(e.Table)
	if t == nil {
		return fmt.Errorf("P4Info has no table %q", e.Table)
	}
	m := &p4v1.TableEntry{TableId: t.ID, Match: p4info.MatchFields(t.Fields, e.Match), Priority: priority(t, e), Action: d.action(e.Action)}
	return d.update(p4v1.Update_INSERT, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{TableEntry: m}})
}

// priority is what an entry of a script has in P4Runtime, which has none where it decides nothing.
func priority(t *p4info.Table, e datapath.Entry) int32 {
	if !t.NeedsPriority {
		return 0
	}
	return e.Priority + 1
}

// EntryCounts implements stf.Switch.
func (d *devices) EntryCounts(e datapath.Entry) (datapath.Counts, error) {
	if !d.direct {
		e.Priority = priority(d.info.TableByName(e.Table), e)
	}
	return d.Executor.EntryCounts(e)
}

func (d *devices) action(a *datapath.Action) *p4v1.TableAction {
	return &p4v1.TableAction{Type: &p4v1.TableAction_Action{Action: d.info.ActionMessage(*a)}}
}

// SetDefault implements stf.Switch.
func (d *devices) SetDefault(table string, a *datapath.Action) error {
	if d.direct {
		return d.Executor.SetDefault(table, a)
	}
	t := d.info.TableByName(table)
	if t == nil {
		return fmt.Errorf("P4Info has no table %q", table)
	}
	return d.update(p4v1.Update_MODIFY, &p4v1.Entity{Entity: &p4v1.Entity_TableEntry{
		TableEntry: &p4v1.TableEntry{TableId: t.ID, IsDefaultAction: true, Action: d.action(a)},
	}})
}

func (d *devices) update(op p4v1.Update_Type, e *p4v1.Entity) error {
	_, err := d.client.Write(d.t.Context(), &p4v1.WriteRequest{
		DeviceId: testDevice, ElectionId: electionID, Updates: []*p4v1.Update{{Type: op, Entity: e}},
	})
	return err
}

// Close implements datapath.Datapath; the switch closes its executor.
func (d *devices) Close() error { return nil }

var wires atomic.Int32

// vethEnd is the far end of a veth pair.
type vethEnd struct {
	*afpacket.Socket
	come []afpacket.Frame // not asked for yet
}

func openVeth(t *testing.T, port int) (string, wire) {
	t.Helper()
	name := fmt.Sprintf("bft%d.%d", os.Getpid()%10000, wires.Add(1))
	far := name + "x"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(port, err)
		}
	}
	must(netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: far}))
	t.Cleanup(func() {
		if l, err := netlink.LinkByName(name); err == nil {
			_ = netlink.LinkDel(l)
		}
	})
	for _, n := range []string{name, far} {
		must(os.WriteFile("/proc/sys/net/ipv6/conf/"+n+"/disable_ipv6", []byte("1"), 0o600))
		l, err := netlink.LinkByName(n)
		must(err)
		must(netlink.LinkSetUp(l))
	}
	until(t, func() bool {
		l, err := netlink.LinkByName(name)
		must(err)
		return l.Attrs().OperState == netlink.OperUp
	})
	s, err := afpacket.Open(far)
	must(err)
	t.Cleanup(func() { _ = s.Close() })
	return name, &vethEnd{Socket: s}
}

func (v *vethEnd) send(t *testing.T, frame []byte) int {
	t.Helper()
	padding := max(v.Shortest()-len(frame), 0)
	if err := v.Send(afpacket.Frame{Data: append(frame, make([]byte, padding)...)}); err != nil {
		t.Fatal(err)
	}
	return padding
}

func (v *vethEnd) receive() ([]byte, error) {
	for try := 0; len(v.come) == 0; try++ {
		got, err := v.Receive(nil)
		if err != nil && !errors.Is(err, afpacket.ErrTimeout) || try > 50 {
			return nil, fmt.Errorf("nothing has come: %w", err)
		}
		v.come = got.Frames
	}
	f := v.come[0].Data
	v.come = v.come[1:]
	return f, nil
}

// tunEnd is the far end of a TUN device, with the four bytes in front that tell the
// protocol: without them, only IP is taken.
type tunEnd struct{ io.ReadWriter }

func openTun(t *testing.T, port int) (string, wire) {
	t.Helper()
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("bft%d.%d", os.Getpid()%10000, wires.Add(1))
	req, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	req.SetUint16(unix.IFF_TUN)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		t.Fatal(port, err)
	}
	f := os.NewFile(uintptr(fd), name)
	t.Cleanup(func() { _ = f.Close() })
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := netlink.LinkByName(name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := f.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	return name, tunEnd{f}
}

// tunProtocol is an EtherType that nobody has.
var tunProtocol = []byte{0, 0, 0x88, 0xb5}

func (e tunEnd) send(t *testing.T, frame []byte) int {
	t.Helper()
	if _, err := e.Write(append(append([]byte{}, tunProtocol...), frame...)); err != nil {
		t.Fatal(err)
	}
	return 0
}

func (e tunEnd) receive() ([]byte, error) {
	b := make([]byte, 1<<16)
	n, err := e.Read(b)
	if n < 4 {
		return nil, fmt.Errorf("%d bytes: %w", n, err)
	}
	return b[4:n], nil
}
