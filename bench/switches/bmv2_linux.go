package switches

import "strconv"

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
