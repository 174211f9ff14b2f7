//go:build linux

package ebpf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/spin"
	"golang.org/x/sys/unix"
)

// A frame to the control plane, as it is read from the TAP device:
//
//	│ 12 bytes │ tag: tapProto, tapMagic<<8 | pad │ rest │
//
// Without the tag it is pad bytes of padding and the deparsed packet. The
// kernel takes no other way to make long frames longer than to push VLAN tags;
// gen.toCPU pushes as many as the packet needs, and then this one.
const (
	tapProto = 0xa888 // 0x88a8 in network byte order
	tapMagic = 0xb1
	tapTagAt = 12
)

// maxFrame is the longest frame to or from the control plane, with room for
// what a program puts in front.
const maxFrame = 1<<16 + 256

// tap is the device between the kernel's packets and the control plane. What is
// sent to it is read here; what is written here comes in at it, on the writing
// thread.
type tap struct {
	x    *Executor
	f    *os.File
	rw   *spin.ReadWriter
	port *port
	out  sync.Mutex // one PacketOut at a time: its prefix lies in a map

	closing atomic.Bool
	done    chan struct{} // closed when nothing is read any more
}

// newTap makes the device, attaches the program to it, and reads from it.
func newTap(x *Executor) (*tap, error) {
	f, name, err := openTap()
	if err != nil {
		return nil, fmt.Errorf("ebpf: TAP device: %w", err)
	}
	t := &tap{x: x, f: f, done: make(chan struct{})}
	if t.rw, err = spin.NewReadWriter(f); err == nil {
		err = t.configure(name)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("ebpf: TAP device %s: %w", name, err), f.Close())
	}
	go t.read()
	return t, nil
}

// openTap makes a device that is gone when its file is closed.
func openTap() (*os.File, string, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, "", err
	}
	req, err := unix.NewIfreq("bfcpu%d")
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		return nil, "", errors.Join(err, unix.Close(fd))
	}
	return os.NewFile(uintptr(fd), req.Name()), req.Name(), nil
}

func (t *tap) configure(name string) error {
	// The kernel itself has nothing to say there.
	path := "/proc/sys/net/ipv6/conf/" + name + "/disable_ipv6"
	if err := os.WriteFile(path, []byte("1"), 0o600); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := t.x.links.setFlag(name, unix.IFF_UP, true); err != nil {
		return err
	}
	var err error
	t.port, err = t.x.newPort(t.x.cpu, name)
	return err
}

func (t *tap) close() error {
	err := t.port.detach()
	t.closing.Store(true)
	err = errors.Join(err, t.f.Close())
	<-t.done
	return err
}

// read brings frames to the sink until the device is closed.
func (t *tap) read() {
	defer close(t.done)
	buf := make([]byte, maxFrame)
	for {
		n, err := t.rw.Read(buf)
		if err != nil {
			if !t.closing.Load() {
				t.x.log.Error("reading from the CPU port fails", "error", err)
			}
			return
		}
		t.x.held.wind(heldTime)
		if frame, ok := punted(buf[:n]); ok {
			t.x.sink.PacketIn(frame)
		}
	}
}

// punted takes the padding off a frame from the device. ok is false for what
// does not come from the program.
func punted(b []byte) (frame []byte, ok bool) {
	if len(b) < tapTagAt+4 || b[tapTagAt] != tapProto&0xff || b[tapTagAt+1] != tapProto>>8 || b[tapTagAt+2] != tapMagic {
		return nil, false
	}
	pad := int(b[tapTagAt+3])
	if len(b)-4 < pad {
		return nil, false
	}
	whole := append(append(make([]byte, 0, len(b)-4), b[:tapTagAt]...), b[tapTagAt+4:]...)
	return whole[pad:], true
}

// PacketOut implements datapath.Datapath. The packet is on its way out when it
// returns.
func (x *Executor) PacketOut(frame []byte) error {
	if x.tap == nil {
		return fmt.Errorf("packet out: %w: the switch has no CPU port", datapath.ErrUnsupported)
	}
	if len(frame) < x.prefix+minEthernet {
		return fmt.Errorf("packet out: %d bytes are no frame", len(frame))
	}
	t := x.tap
	t.out.Lock()
	defer t.out.Unlock()
	if x.prefix > 0 {
		if err := x.setPrefix(frame[:x.prefix]); err != nil {
			return err
		}
	}
	if _, err := t.rw.Write(frame[x.prefix:]); err != nil {
		return fmt.Errorf("packet out: %w", err)
	}
	return nil
}

// setPrefix tells the program what is before the Ethernet header of the next
// frame from the CPU port, right-aligned.
func (x *Executor) setPrefix(b []byte) error {
	p, n := x.maps.prefix, align8(x.prefix)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mem == nil {
		return os.ErrClosed
	}
	clear(p.mem[:n])
	copy(p.mem[n-len(b):n], b)
	return nil
}

// description is a port's description in the kernel (gen.findPort).
func description(index, longest uint32, bare bool) []byte {
	b := make([]byte, portSize)
	binary.NativeEndian.PutUint32(b[portIndex:], index)
	binary.NativeEndian.PutUint32(b[portMTU:], longest)
	if bare {
		binary.NativeEndian.PutUint32(b[portBare:], 1)
	}
	return b
}
