//go:build linux

package ebpf

import (
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/cilium/ebpf"
)

// skBuff is struct __sk_buff, of which a test may set little.
type skBuff struct {
	_       [12]uint32
	CB      [5]uint32
	_       [27]uint32
	GSOSegs uint32
	_       [3]uint32
	GSOSize uint32
	_       [3]uint32
}

// ErrTestSize tells that a frame is too long to be run with Test.
var ErrTestSize = errors.New("ebpf: frame does not fit a test run")

// maxTest is the longest frame that the kernel takes for a test, about a page.
const maxTest = 3400

// Process is Test, but that frames lost on the way to the program are logged.
func (x *Executor) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	if err := x.Test(in, frame, emit); err != nil {
		x.log.Warn("frame not processed", "port", in, "bytes", len(frame), "error", err)
	}
}

// Test runs one frame through the program as the kernel would, except that
// emit, or the sink, gets what leaves. Frames are at most
// 3,400 bytes long, and one runs at a time.
func (x *Executor) Test(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) error {
	if len(frame) > maxTest {
		return ErrTestSize
	}
	x.testing.Lock()
	defer x.testing.Unlock()
	if in == x.cpu && x.prefix > 0 {
		if len(frame) < x.prefix {
			return fmt.Errorf("frame from the CPU port shorter than its header")
		}
		if err := x.setPrefix(frame[:x.prefix]); err != nil {
			return err
		}
		frame = frame[x.prefix:]
	}
	if len(frame) < minEthernet {
		return nil
	}
	if x.stale {
		if err := x.fill(); err != nil {
			return err
		}
	}
	ctx := skBuff{CB: [5]uint32{uint32(in) | testFlag}}
	out := make([]byte, len(frame)+512)
	var after skBuff
	run := &ebpf.RunOptions{Data: frame, DataOut: out, Context: &ctx, ContextOut: &after}
	if _, err := x.running().Run(run); err != nil {
		return err
	}
	if n := uint64(after.CB[1]); n > 0 {
		x.digest.await(x.tests.Add(n))
	}
	if err := x.testCopies(int(after.CB[4]), emit); err != nil {
		return err
	}
	to := datapath.Port(after.CB[3])
	if to == 0 {
		return nil
	}
	if to--; to == x.cpu && x.cpu != 0 {
		x.sink.PacketIn(append([]byte(nil), run.DataOut[after.CB[2]:]...))
		return nil
	}
	emit(to, run.DataOut)
	return nil
}

// fill fills a packet's state, but for counters, with what an earlier packet could have left there.
func (x *Executor) fill() error {
	var states [][]byte // of every CPU
	if err := x.maps.state.Lookup(uint32(0), &states); err != nil {
		return err
	}
	for _, st := range states {
		for i := range st {
			if counts := i - x.counted; counts < 0 || counts >= tableStat*len(x.prog.Tables) {
				st[i] = byte(0xa5 + i%7)
			}
		}
	}
	return x.maps.state.Put(uint32(0), states)
}

// running is the program that packets run through.
func (x *Executor) running() *ebpf.Program {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.tracing != nil {
		return x.tracing.program
	}
	return x.main
}

// testCopies shows a test the copies that left, when there was more than one.
func (x *Executor) testCopies(n int, emit func(datapath.Port, []byte)) error {
	if n > x.testOutputs {
		x.log.Warn("copies not shown", "lost", n-x.testOutputs)
		n = x.testOutputs
	}
	for i := range n {
		var out sentCopy
		if err := x.maps.outputs.Lookup(uint32(i), &out); err != nil {
			return err
		}
		frame := append([]byte(nil), out.Frame[:out.Len]...)
		if to := datapath.Port(out.Port); to != x.cpu || x.cpu == 0 {
			emit(to, frame)
			continue
		}
		x.sink.PacketIn(frame[out.Pad:])
	}
	return nil
}

// sentCopy is what a test is shown of a copy. Of one for the CPU port the tag that
// tells the padding is beside the frame.
type sentCopy struct {
	Port, Pad, Len uint32
	_              uint32
	Frame          [copyFrame]byte
}

const copyFrame = maxTest + 684 // and what it grows by: a page in all
