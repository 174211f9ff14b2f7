package switches

import (
	"os/exec"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	"github.com/vishvananda/netlink"
)

// contender is a way to join the hosts of a lab.
type contender struct {
	name   string
	direct bool     // without anything in the middle
	needs  []string // programs that must be installed; without them it is left out
	// plain tells that it needs whole packets: the hosts do without offload.
	plain bool
	// start joins the hosts; it runs in the middle namespace, on a thread that
	// stays there. It may leave files in dir.
	start func(dir string) (*joint, error)
}

// joint is what joins two hosts while it runs.
type joint struct {
	addr   string // where it serves P4Runtime; empty if it does not
	loaded bool   // it runs Bifröst's program already
	stop   func() error
}

// all are the contenders, in the order in which they have their turns.
func all() []contender { return allWith(bifrostProgram) }

// allWith are the contenders, of which P4 switches run a program.
func allWith(p program) []contender {
	return []contender{
		{name: "cable", direct: true, start: func(string) (*joint, error) { return &joint{stop: nothing}, nil }},
		{name: "bridge", start: startBridge},
		{name: "ebpf", start: func(dir string) (*joint, error) { return startSoftware(softswitch.LoadEBPF, p, dir) }},
		{name: "go", start: func(dir string) (*joint, error) { return startSoftware(softswitch.LoadGo, p, dir) }},
		{name: "ovs", needs: []string{"ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl"}, start: startOVS},
		{name: "bmv2", needs: []string{"simple_switch_grpc", "ethtool"}, plain: true, start: startBMv2},
	}
}

func nothing() error { return nil }

// missing is the first program that a contender needs and that is not installed.
func (c *contender) missing() string {
	for _, name := range c.needs {
		if _, err := exec.LookPath(name); err != nil {
			return name
		}
	}
	return ""
}

func startBridge(string) (*joint, error) {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge", MTU: mtu}}
	if err := netlink.LinkAdd(br); err != nil {
		return nil, err
	}
	for i := range hosts {
		l, err := netlink.LinkByName(near(i))
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			return nil, err
		}
	}
	return &joint{stop: nothing}, netlink.LinkSetUp(br)
}
