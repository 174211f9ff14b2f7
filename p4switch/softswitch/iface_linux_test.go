package softswitch

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
)

// cable is an executor that joins ports 1 and 2.
type cable struct{ datapath.Datapath }

func (cable) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	emit(3-in, frame)
}
func (cable) PacketOut([]byte) error { return nil }
func (cable) Close() error           { return nil }

// joined is two hosts on a switch that joins them.
func joined(t testing.TB, mtu int) (s *Switch, a, b *lab) {
	t.Helper()
	needRoot(t)
	s, err := New(Config{DeviceID: 1, CPUPort: 510, Load: func([]byte, Env) (Executor, error) { return cable{}, nil }})
	if err != nil {
		t.Fatal(err)
	}
	a, b = newLab(t, mtu), newLab(t, mtu)
	a.knows(b)
	b.knows(a)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{}}); err != nil {
		t.Fatal(err)
	}
	for i, h := range []*lab{a, b} {
		if err := s.AttachInterface(datapath.Port(i+1), h.iface); err != nil {
			t.Fatal(err)
		}
	}
	return s, a, b
}

func receive(t *testing.T, c *net.UDPConn, n int) []byte {
	t.Helper()
	buf := make([]byte, n)
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return buf[:got]
}

// A kernel leaves UDP checksums to the veth device, which never computes them.
func TestInterface_UDPWithPartialChecksums(t *testing.T) {
	_, a, b := joined(t, 65535)
	ca, cb := a.udp(1000), b.udp(2000)
	for _, n := range []int{0, 1, 100, 1400, 9000, 62000, 65535 - 48} {
		data := make([]byte, n)
		_, _ = rand.Read(data)
		if _, err := ca.WriteToUDPAddrPort(data, netip.AddrPortFrom(b.addr, 2000)); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, cb, 65535); !bytes.Equal(got, data) {
			t.Fatalf("datagram of %d bytes came as %d others", n, len(got))
		}
	}
}

// A UDP super-packet is cut into datagrams, each of which the program sees.
func TestInterface_UDPSegmentation(t *testing.T) {
	s, a, b := joined(t, 1500)
	ca, cb := a.udp(1000), b.udp(2000)
	data := make([]byte, 10*1000+300)
	_, _ = rand.Read(data)
	cmsg := make([]byte, unix.CmsgSpace(2))
	oob := unixSegment(cmsg, 1000)
	if _, _, err := ca.WriteMsgUDPAddrPort(data, oob, netip.AddrPortFrom(b.addr, 2000)); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < len(data) {
		got = append(got, receive(t, cb, 65535)...)
	}
	if !bytes.Equal(got, data) {
		t.Fatal("the data differs")
	}
	until(t, func() bool { return s.Ports()[1].TxPackets >= 11 }) // what is sent is counted afterwards
}

// TCP super-packets stay whole, or a stream would be ten times the packets.
func TestInterface_TCPSuperPackets(t *testing.T) {
	s, a, b := joined(t, 1500)
	var l net.Listener
	var c net.Conn
	var err error
	within(t, b.ns, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(b.addr, 3000).String()) })
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	within(t, a.ns, func() { c, err = net.DialTimeout("tcp", l.Addr().String(), patience) })
	if err != nil {
		t.Fatal(err)
	}
	const size = 16 << 20
	sent, over := sha256.New(), make(chan struct{})
	go func() {
		defer close(over)
		defer c.Close()
		_, _ = io.CopyN(io.MultiWriter(c, sent), rand.Reader, size)
	}()
	in, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := in.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	got := sha256.New()
	n, err := io.Copy(got, in)
	if err != nil || n != size {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if <-over; !bytes.Equal(got.Sum(nil), sent.Sum(nil)) {
		t.Fatal("other bytes than were sent")
	}
	if p := s.Ports()[0]; p.RxBytes/p.RxPackets < 3000 {
		t.Errorf("%d bytes in %d packets: super-packets were cut", p.RxBytes, p.RxPackets)
	}
}

// An interface that vanishes and returns is taken up again.
func TestInterface_VanishesAndReturns(t *testing.T) {
	s, a, b := joined(t, 1500)
	b.unplug()
	until(t, func() bool { p := s.Ports()[1]; return !p.Up && p.Vanished == 1 })
	ca := a.udp(1000)
	if _, err := ca.WriteToUDPAddrPort([]byte("lost"), netip.AddrPortFrom(b.addr, 2000)); err != nil {
		t.Fatal(err)
	}
	until(t, func() bool { return s.Ports()[1].TxDown > 0 })
	b.plug(1500)
	b.knows(a)
	until(t, func() bool { return s.Ports()[1].Up })
	cb := b.udp(2000)
	if _, err := ca.WriteToUDPAddrPort([]byte("hello"), netip.AddrPortFrom(b.addr, 2000)); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, cb, 100); string(got) != "hello" {
		t.Fatalf("got %q", got)
	}
}

// until waits for a condition that the kernel brings about.
func until(t testing.TB, cond func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-deadline:
			t.Fatal("it has not happened")
		case <-tick.C:
		}
	}
}

// unixSegment is the control message that makes a send a UDP super-packet.
func unixSegment(b []byte, size uint16) []byte {
	h := (*unix.Cmsghdr)(unsafe.Pointer(&b[0]))
	h.Level, h.Type = unix.SOL_UDP, unix.UDP_SEGMENT
	h.SetLen(unix.CmsgLen(2))
	binary.NativeEndian.PutUint16(b[unix.CmsgLen(0):], size)
	return b
}

// A VLAN tag, which the kernel takes off a frame on its way to a socket, is seen
// by the program and reaches the other side.
func TestInterface_VLAN(t *testing.T) {
	s, a, b := joined(t, 1500)
	out, in := rawSocket(t, a), rawSocket(t, b)
	payload := bytes.Repeat([]byte("vlan"), 50)
	sent := append([]byte{2, 0, 0, 0, 1, 2, 2, 0, 0, 0, 1, 1, 0x81, 0, 0x20, 5, 0x88, 0xb5}, payload...)
	if err := out.Send(afpacket.Frame{Data: sent}); err != nil {
		t.Fatal(err)
	}
	buf := make([]afpacket.Frame, 0, afpacket.BatchSize)
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		got, err := in.Receive(buf)
		if errors.Is(err, afpacket.ErrTimeout) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range got.Frames {
			if bytes.Equal(f.Data, sent) {
				if n := s.Ports()[0].RxBytes; n < uint64(len(sent)) {
					t.Errorf("the switch has seen %d bytes", n)
				}
				return
			}
		}
	}
	t.Fatal("the frame has not come")
}

// rawSocket opens a packet socket on the host's interface.
func rawSocket(t testing.TB, h *lab) *afpacket.Socket {
	t.Helper()
	var s *afpacket.Socket
	within(t, h.ns, func() {
		var err error
		if s, err = afpacket.Open("host"); err != nil {
			t.Fatal(err)
		}
	})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// Nothing is left behind: no goroutine (TestMain looks), no descriptor.
func TestInterface_CloseLeavesNothingBehind(t *testing.T) {
	before := descriptors(t)
	t.Run("switch", func(t *testing.T) {
		s, _, b := joined(t, 1500)
		if err := s.Detach(1); err != nil {
			t.Fatal(err)
		}
		b.unplug()
		until(t, func() bool { return !s.Ports()[0].Up })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if err := s.Attach(3, func([]byte) {}); !errors.Is(err, ErrClosed) {
			t.Errorf("attached to a closed switch: %v", err)
		}
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

func descriptors(t *testing.T) int {
	t.Helper()
	ds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(ds)
}

func TestAttachInterface_Refuses(t *testing.T) {
	needRoot(t)
	s := newHub(t)
	if err := s.AttachInterface(1, "no-such-thing"); !errors.Is(err, afpacket.ErrNoInterface) {
		t.Errorf("got %v", err)
	}
	h := newLab(t, 1500)
	if err := s.AttachInterface(1, h.iface); err != nil {
		t.Fatal(err)
	}
	if err := s.AttachInterface(1, h.iface); err == nil {
		t.Error("a port was attached twice")
	}
	if err := s.AttachInterface(511, h.iface); err == nil {
		t.Error("the drop port was attached")
	}
}

func TestCapture(t *testing.T) {
	dir := t.TempDir()
	s, err := New(Config{DeviceID: 1, Load: loadHub, CaptureDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Server().LoadConfig(&p4v1.ForwardingPipelineConfig{P4Info: &configv1.P4Info{}}); err != nil {
		t.Fatal(err)
	}
	for _, p := range []datapath.Port{1, 2} {
		if err := s.Attach(p, func([]byte) {}); err != nil {
			t.Fatal(err)
		}
	}
	frame := append([]byte{2}, bytes.Repeat([]byte("x"), 30)...)
	s.Input(1, frame)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, n := range map[string]int{"port1_in": 1, "port1_out": 0, "port2_in": 0, "port2_out": 1} {
		b, err := os.ReadFile(filepath.Join(dir, name+".pcap"))
		if err != nil || len(b) != 24+n*(16+len(frame)) || n > 0 && !bytes.HasSuffix(b, frame) {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
}
