package machine

import (
	"encoding/binary"
	"fmt"
	"os"
)

// latencyFile takes the longest time, in microseconds as a 32-bit number, that an idle CPU
// may need to wake up. It holds for the whole machine while the file is open
// (Documentation/power/pm_qos_interface.rst).
const latencyFile = "/dev/cpu_dma_latency"

// Awake keeps idle CPUs from sleeping until the function that it returns is called: they
// poll, so that what is measured is the work and not the wake-ups. It needs root.
func Awake() (sleep func(), err error) {
	f, err := os.OpenFile(latencyFile, os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("low latency: %w: run it as root on a machine whose kernel has CPU idle states, or without --low-latency", err)
	}
	if _, err := f.Write(binary.NativeEndian.AppendUint32(nil, 0)); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("low latency: write %s: %w", latencyFile, err)
	}
	return func() { _ = f.Close() }, nil
}
