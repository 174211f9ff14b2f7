//go:build linux

package ebpf

import (
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/p4/datapath"
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

// ErrTestSize tells that a frame is too long to be run with Process.
var ErrTestSize = errors.New("ebpf: frame does not fit a test run")

// maxTest is the longest frame that the kernel takes for a test, about a page.
const maxTest = 3400

// Process runs one frame through the program as the kernel would, except that
// emit, or the sink, gets what leaves. It is for tests: frames are at most
// 3,400 bytes long, and one runs at a time. Frames lost on the way to it are
// logged.
func (x *Executor) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	if err := x.test(in, frame, 0, emit); err != nil {
		x.log.Warn("frame not processed", "port", in, "bytes", len(frame), "error", err)
	}
}

// test runs one frame; gso, if positive, makes it a super-packet with segments
// of that size.
func (x *Executor) test(in datapath.Port, frame []byte, gso uint32, emit func(datapath.Port, []byte)) error {
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
	ctx := skBuff{CB: [5]uint32{uint32(in) | testFlag}, GSOSize: gso}
	if gso > 0 {
		ctx.GSOSegs = (uint32(len(frame)) + gso - 1) / gso
	}
	out := make([]byte, len(frame)+512)
	var after skBuff
	run := &ebpf.RunOptions{Data: frame, DataOut: out, Context: &ctx, ContextOut: &after}
	if _, err := x.main.Run(run); err != nil {
		return err
	}
	if after.CB[1] == 1 {
		x.digest.await(x.tests.Add(1))
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
