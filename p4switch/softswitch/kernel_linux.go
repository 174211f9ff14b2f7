package softswitch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/ebpf"
)

// errKeptByGo means that the process before ran the program by the Go executor, so no state of the kernel's is kept.
var errKeptByGo = errors.New("the process before ran it in Go, and has kept the registers there")

// LoadEBPF builds the kernel executor, package ebpf. It is a Loader. It fails with ErrOtherVersion if the executor before is
// pinned, and has another layout.
func LoadEBPF(deviceConfig []byte, env Env) (Executor, error) {
	if err := env.suits(); err != nil {
		return nil, err
	}
	prog, err := LoadProgram(deviceConfig, env.Info)
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(env.Inherit); env.Inherit != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, errKeptByGo
	}
	cfg := ebpf.Config{CPUPort: env.CPUPort, Sink: env.Sink, Inherit: env.Inherit, Links: env.Links, Log: env.Log}
	if former, ok := env.Former.(*ebpfExecutor); ok {
		cfg.Former = former.Executor
	}
	x, err := ebpf.New(prog, cfg)
	if errors.Is(err, ebpf.ErrOtherVersion) {
		return nil, fmt.Errorf("%w: %w", ErrOtherVersion, err)
	}
	if err != nil {
		return nil, err
	}
	env.Log.Info("datapath: eBPF")
	return &ebpfExecutor{Executor: x, declared: declared{prog}}, nil
}

// ebpfExecutor fits ebpf.Executor to this package's interfaces.
type ebpfExecutor struct {
	*ebpf.Executor
	declared
}

// HasRegistersOf makes the P4Runtime server leave registers alone that the executor has already.
func (x *ebpfExecutor) HasRegistersOf(dp datapath.Datapath) bool {
	o, ok := dp.(*ebpfExecutor)
	return ok && x.Executor.HasRegistersOf(o.Executor)
}

// pinFS is where the BPF file system is.
func pinFS() string { return ebpf.PinFS() }

// portStats implements kernelExecutor.
func (x *ebpfExecutor) portStats(num datapath.Port, c *counters) bool {
	n := x.PortCounts(num)
	c.rxPackets.Store(n.RxPackets)
	c.rxBytes.Store(n.RxBytes)
	c.txPackets.Store(n.TxPackets)
	c.txBytes.Store(n.TxBytes)
	c.rxOffload.Store(n.RxOffload)
	c.rxShort.Store(n.RxShort)
	c.txTooLong.Store(n.TxTooLong)
	c.txOffload.Store(n.TxResize)
	c.looped.Store(n.Looped)
	c.vanished.Store(n.Vanished)
	return n.Up
}

// lost implements kernelExecutor.
func (x *ebpfExecutor) lost() uint64 { return x.Lost() }
