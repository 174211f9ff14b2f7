package switches

import "errors"

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
