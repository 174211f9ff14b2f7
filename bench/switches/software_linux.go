package switches

import (
	"errors"
	"net"

	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/prototext"
)

// startSoftware runs the software switch in this process.
func startSoftware(load softswitch.Loader, p program, dir string) (*joint, error) {
	sw, err := softswitch.New(softswitch.Config{DeviceID: deviceID, CPUPort: p4.CPUPort, Load: load})
	if err != nil {
		return nil, err
	}
	// Here and not by P4Runtime, whose threads are in another namespace.
	info := &configv1.P4Info{}
	if err = prototext.Unmarshal(p.info, info); err == nil {
		err = sw.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: info, P4DeviceConfig: p.json})
	}
	if err != nil {
		return nil, errors.Join(err, sw.Close())
	}
	for i := range hosts {
		if err := sw.AttachInterface(datapath.Port(i+1), near(i)); err != nil {
			return nil, errors.Join(err, sw.Close())
		}
	}
	l, err := net.Listen("unix", dir+"/p4runtime")
	if err != nil {
		return nil, errors.Join(err, sw.Close())
	}
	served := make(chan error, 1)
	go func() { served <- sw.Serve(l) }()
	return &joint{addr: "unix:" + dir + "/p4runtime", loaded: true, stop: func() error { return errors.Join(sw.Close(), <-served) }}, nil
}
