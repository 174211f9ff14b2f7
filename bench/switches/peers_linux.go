package switches

import (
	"errors"
	"strconv"
)

// startBMv2 runs P4's reference software switch, without the debugging and
// logging that slow it down.
func startBMv2(dir string) (*joint, error) {
	addr := "unix:" + dir + "/p4runtime"
	p, err := launch(nil, "simple_switch_grpc", "--no-p4", "--device-id", strconv.Itoa(deviceID), "-L", "off",
		"-i", "1@"+near(0), "-i", "2@"+near(1), "--", "--grpc-server-addr", addr, "--cpu-port", "510")
	if err != nil {
		return nil, err
	}
	return &joint{addr: addr, stop: p.end}, nil
}

// ovsSchema is where Open vSwitch's packages have its database's schema.
const ovsSchema = "/usr/share/openvswitch/vswitch.ovsschema"

// startOVS runs an Open vSwitch of its own, database and all, as a learning
// switch in user space.
func startOVS(dir string) (*joint, error) {
	db, env := dir+"/db.sock", []string{"OVS_RUNDIR=" + dir, "OVS_LOGDIR=" + dir}
	if err := call("ovsdb-tool", "create", dir+"/conf.db", ovsSchema); err != nil {
		return nil, err
	}
	server, err := launch(env, "ovsdb-server", dir+"/conf.db", "--remote=punix:"+db, "--unixctl="+dir+"/db.ctl", "--no-chdir", "-vconsole:off")
	if err != nil {
		return nil, err
	}
	vsctl := func(args ...string) error {
		return call("ovs-vsctl", append([]string{"--db=unix:" + db, "--timeout=10"}, args...)...)
	}
	// TCP super-packets stay whole, as with all other contenders that can.
	err = vsctl("--no-wait", "--retry", "--", "init", "--", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true")
	if err != nil {
		return nil, errors.Join(err, server.end())
	}
	daemon, err := launch(env, "ovs-vswitchd", "unix:"+db, "--unixctl="+dir+"/ovs.ctl", "--no-chdir", "-vconsole:off")
	stop := func() error { return errors.Join(daemon.end(), server.end()) }
	if err == nil {
		err = vsctl("add-br", "br0", "--", "set", "bridge", "br0", "datapath_type=netdev",
			"--", "add-port", "br0", near(0), "--", "add-port", "br0", near(1))
	}
	if err != nil {
		return nil, errors.Join(err, stop())
	}
	return &joint{stop: stop}, nil
}
