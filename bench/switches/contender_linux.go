package switches

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/softswitch"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/vishvananda/netlink"
	"google.golang.org/protobuf/encoding/prototext"
)

// contender joins the hosts of a lab.
type contender struct {
	name   string
	direct bool // without anything in the middle
	// start joins the hosts; it runs in the middle namespace. The function it
	// returns ends it. exec is the executor whose rules can be measured, or nil.
	start func(rules int) (exec datapath.Datapath, stop func() error, err error)
}

var contenders = []contender{
	{name: "cable", direct: true, start: func(int) (datapath.Datapath, func() error, error) {
		return nil, func() error { return nil }, nil
	}},
	{name: "bridge", start: startBridge},
	{name: "ebpf", start: starter(softswitch.LoadEBPF)},
	{name: "go", start: starter(softswitch.LoadGo)},
}

func startBridge(int) (datapath.Datapath, func() error, error) {
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "bridge", MTU: mtu}}
	if err := netlink.LinkAdd(br); err != nil {
		return nil, nil, err
	}
	for i := range hosts {
		l, err := netlink.LinkByName(near(i))
		if err == nil {
			err = netlink.LinkSetMaster(l, br)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return nil, func() error { return nil }, netlink.LinkSetUp(br)
}

// starter makes a contender of the software switch on one of its executors.
func starter(load softswitch.Loader) func(int) (datapath.Datapath, func() error, error) {
	return func(rules int) (datapath.Datapath, func() error, error) {
		var exec softswitch.Executor
		sw, err := softswitch.New(softswitch.Config{
			DeviceID: 1, CPUPort: p4.CPUPort,
			Load: func(c []byte, env softswitch.Env) (softswitch.Executor, error) {
				x, err := load(c, env)
				exec = x
				return x, err
			},
		})
		if err != nil {
			return nil, nil, err
		}
		if err := startSwitch(sw); err != nil {
			return nil, nil, errors.Join(err, sw.Close())
		}
		if err := program(exec, rules); err != nil {
			return nil, nil, errors.Join(err, sw.Close())
		}
		return exec, sw.Close, nil
	}
}

func startSwitch(sw *softswitch.Switch) error {
	info := &configv1.P4Info{}
	if err := prototext.Unmarshal(p4.Info, info); err != nil {
		return err
	}
	if err := sw.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: p4.JSON}); err != nil {
		return err
	}
	for i := range hosts {
		if err := sw.AttachInterface(datapath.Port(i+1), near(i)); err != nil {
			return err
		}
	}
	return nil
}

// program tells Bifröst's program of the hosts, and of rules that permit accesses
// to memory.
func program(x datapath.Datapath, rules int) error {
	for i, h := range hosts {
		port := []byte{0, byte(i + 1)}
		addr := h.addr.As16()
		whole := datapath.Match{Value: addr[:], PrefixLen: 128}
		for _, e := range []datapath.Entry{
			entry("identity", "known", [][]byte{{0}}, datapath.Match{Value: port}, whole),
			entry("l3", "to_hop", [][]byte{port}, whole),
			entry("next_hop", "forward", [][]byte{port, h.mac, {2, 0, 0, 0, 0, 0xff}}, datapath.Match{Value: port}),
		} {
			if err := x.Apply(datapath.Insert, e); err != nil {
				return err
			}
		}
	}
	for i := range rules {
		if err := x.Apply(datapath.Insert, rule(i)); err != nil {
			return fmt.Errorf("rule %d: %w", i, err)
		}
	}
	return nil
}

// rule is one of many access rules: of a hundred nodes, to regions of 64 KiB.
func rule(i int) datapath.Entry {
	node := binary.BigEndian.AppendUint64(make([]byte, 8), uint64(i%100))
	region := binary.BigEndian.AppendUint64(nil, uint64(i)<<16)
	return entry("dsm_access", "permit", nil, datapath.Match{Value: node}, datapath.Match{Value: []byte{2}},
		datapath.Match{Value: []byte{1}}, datapath.Match{Value: region, PrefixLen: 48})
}

func entry(table, action string, params [][]byte, match ...datapath.Match) datapath.Entry {
	return datapath.Entry{
		Table: "BifrostIngress." + table, Match: match,
		Action: &datapath.Action{Name: "BifrostIngress." + action, Params: params},
	}
}
