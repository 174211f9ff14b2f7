package main

import (
	"io"
	"maps"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/bifrost-rack/bifrost/dsm/memory"
	"github.com/bifrost-rack/bifrost/dsm/memory/store"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// TestBladeErrors: what is wrong is said before anything is touched, with what to
// do about it.
func TestBladeErrors(t *testing.T) {
	cases := map[string]string{
		"memory --capacity lots":           "--capacity lots: want a number of bytes, such as 512MiB",
		"memory --capacity 0":              "want a number of bytes",
		"memory --machine 256":             "256",
		"memory --log-level loud":          "choose debug, info, warn, error or off",
		"memory --iface nowhere0":          "there is no interface nowhere0",
		"memory --iface lo":                "it has no Ethernet address",
		"compute --nodes 0":                "--nodes 0: want 1 at least",
		"compute --blade c1 extra":         "unknown command",
		"compute --iface nowhere0":         "there is no interface nowhere0",
		"compute status --nodes 3":         "unknown flag",
		"compute --iface lo --address ::1": "it has no Ethernet address",
	}
	for args, want := range cases {
		root := newRoot()
		root.SetArgs(strings.Fields(args))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if err := root.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", args, err, want)
		}
	}
}

// TestBladeOnAnInterface: the address to say hello from, and what is missing.
func TestBladeOnAnInterface(t *testing.T) {
	privilege.Need(t)
	runtime.LockOSThread() // the thread ends with the test, and the namespace with it
	ns, err := netns.New()
	must(t, err)
	defer ns.Close()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "eth0", []byte{2, 0, 0, 0, 0x12, 0x34}
	must(t, netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "port1"}))
	link, err := netlink.LinkByName("eth0")
	must(t, err)
	must(t, netlink.LinkSetUp(link))

	o := bladeOptions{name: "b", iface: "eth0", logging: process.LogOptions{Level: "off", Format: "text"}}
	if _, _, err := o.open(); err == nil || !strings.Contains(err.Error(), "ip -6 route add fd00:b1f0::/48") {
		t.Errorf("no route: %v", err)
	}
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{
		IP: rackaddr.RackPrefix.Addr().AsSlice(), Mask: net.CIDRMask(rackaddr.RackPrefix.Bits(), 128),
	}}))
	for flag, want := range map[string]string{"": "fd00:b1f0:0:1:0:200:0:1234", "fd00:b1f0:0:1::7": "fd00:b1f0:0:1::7"} {
		o.address = flag
		b, stack, err := o.open()
		must(t, err)
		if b.Address.String() != want || b.Name != "b" || b.MAC.String() != "02:00:00:00:12:34" {
			t.Errorf("--address %q: %s of %s, want %s", flag, b.Address, b.MAC, want)
		}
		must(t, stack.Close())
	}
	o.address = "fd00::1"
	if _, _, err := o.open(); err == nil || !strings.Contains(err.Error(), "want an address in") {
		t.Errorf("foreign address: %v", err)
	}
}

func TestComputeStatusIsReadable(t *testing.T) {
	s := join.Status{
		Blade: "s2", Registered: true,
		Nodes: []join.NodeStatus{
			{Name: "arrays", Address: rackaddr.Node(1), Incarnation: 2, PID: 77, Services: []string{"Arrays", "Ping"}},
			{Name: "client", Address: rackaddr.Node(2), Incarnation: 1, PID: 78, Instance: "app-1"},
		},
		Programs: []join.ProgramStatus{{Name: "app-1", PID: 78, Args: []string{"client", "--fast"}}},
	}
	want := `blade s2, registered
NODE    ADDRESS           INCARNATION  PID  PROGRAM  SERVICES
arrays  fd00:b1f0:0:2::1  2            77   -        Arrays,Ping
client  fd00:b1f0:0:2::2  1            78   app-1    -
PROGRAM  PID  COMMAND
app-1    78   client --fast
`
	var out strings.Builder
	must(t, (&computeStatusOptions{}).print(&out, s))
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	out.Reset()
	must(t, (&computeStatusOptions{json: true}).print(&out, s))
	if !strings.Contains(out.String(), `"registered": true`) {
		t.Errorf("JSON %s", out.String())
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestMemoryCounts: what a memory server counts of undo is told to Prometheus, and each metric is described.
func TestMemoryCounts(t *testing.T) {
	described := make(chan *prometheus.Desc, 100)
	memoryMetrics{}.Describe(described)
	close(described)
	missing := memoryCounts(&memory.Metrics{Undo: store.UndoStats{Commits: 1, Rollbacks: 2, Refused: 3, Forgotten: 4}})
	if got, want := missing[metricUndo], map[string]uint64{"committed": 1, "taken back": 2, "refused": 3, "forgotten": 4}; !maps.Equal(got, want) {
		t.Errorf("undo: %v, want %v", got, want)
	}
	for d := range described {
		delete(missing, d)
	}
	if len(missing) > 0 {
		t.Errorf("%v are not described", missing)
	}
}
