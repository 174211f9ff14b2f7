package softswitch

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/cilium/ebpf"
	ebpflink "github.com/cilium/ebpf/link"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"github.com/vishvananda/netlink"
)

// newKernelRack is the sample program on the kernel executor between two hosts.
func newKernelRack(t testing.TB, mtu int) (r *rack, a, b *lab) {
	t.Helper()
	return newKernelRackWith(t, Config{}, mtu)
}

func newKernelRackWith(t testing.TB, cfg Config, mtu int) (r *rack, a, b *lab) {
	t.Helper()
	needRoot(t)
	cfg.Load = LoadEBPF
	r = newSwitchWith(t, cfg, sample.JSON, sample.Info, sample.Prefix)
	a, b = newLab(t, mtu), newLab(t, mtu)
	a.knows(b)
	b.knows(a)
	r.plugIn(1, a)
	r.plugIn(2, b)
	return r, a, b
}

func sendUDP(t *testing.T, c *net.UDPConn, data []byte, to *lab, port uint16) {
	t.Helper()
	if _, err := c.WriteToUDPAddrPort(data, netip.AddrPortFrom(to.addr, port)); err != nil {
		t.Fatal(err)
	}
}

// The whole way of a packet of any length: forwarded, and held, released and
// forwarded. The controller gets it with its checksum finished.
func TestKernel_ForwardHoldAndRelease(t *testing.T) {
	r, a, b := newKernelRack(t, 65535)
	ca, plain, control := a.udp(1000), b.udp(7), b.udp(sample.PortControl)
	for _, n := range []int{0, 1, 100, 1400, 9000, 30000, 62000, 65535 - 48} {
		data := make([]byte, n)
		_, _ = rand.Read(data)
		sendUDP(t, ca, data, b, 7)
		if got := receive(t, plain, 65535); !bytes.Equal(got, data) {
			t.Fatalf("%d bytes came as %d others", n, len(got))
		}
		sendUDP(t, ca, data, b, sample.PortControl)
		in := r.next().GetPacket()
		u, err := frame.ParseUDP6(in.GetPayload()) // which checks the checksum
		if err != nil || !bytes.Equal(u.Payload, data) {
			t.Fatalf("%d bytes held as %d: %v", n, len(u.Payload), err)
		}
		if m := in.GetMetadata(); len(m) != 3 || !bytes.Equal(m[0].GetValue(), []byte{1}) || !bytes.Equal(m[1].GetValue(), []byte{1}) {
			t.Fatalf("metadata %v", m)
		}
		r.release(in)
		if got := receive(t, control, 65535); !bytes.Equal(got, data) {
			t.Fatalf("%d bytes released as %d others", n, len(got))
		}
	}
}

// release hands a held packet back.
func (r *rack) release(in *p4v1.PacketIn) {
	r.t.Helper()
	r.send(&p4v1.StreamMessageRequest{Update: &p4v1.StreamMessageRequest_Packet{Packet: &p4v1.PacketOut{
		Payload:  in.GetPayload(),
		Metadata: []*p4v1.PacketMetadata{{MetadataId: 1, Value: []byte{0}}, {MetadataId: 2, Value: []byte{0}}},
	}}})
}

// UDP super-packets of which the program reads the payload are dropped and counted, others pass.
func TestKernel_UDPSuperPackets(t *testing.T) {
	r, a, b := newKernelRack(t, 1500)
	ca, calls, plain := a.udp(1000), b.udp(sample.PortCall), b.udp(7)
	data := make([]byte, 5300)
	_, _ = rand.Read(data)
	oob := unixSegment(make([]byte, 24), 1000)
	ports := []uint16{sample.PortCall, sample.PortMemory, 7} // the program reads behind UDP's header, but for the last
	for _, port := range ports {
		if _, _, err := ca.WriteMsgUDPAddrPort(data, oob, netip.AddrPortFrom(b.addr, port)); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	for len(got) < len(data) {
		got = append(got, receive(t, plain, 65535)...)
	}
	if !bytes.Equal(got, data) {
		t.Error("the data differs")
	}
	if n := r.sw.Ports()[0].RxOffload; n != uint64(len(ports)-1) {
		t.Errorf("%d super-packets were counted as dropped, want %d", n, len(ports)-1)
	}
	_ = calls.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	if n, err := calls.Read(make([]byte, 10)); err == nil {
		t.Errorf("%d bytes of a super-packet came through", n)
	}
}

// TCP super-packets stay whole.
func TestKernel_TCPSuperPackets(t *testing.T) {
	r, a, b := newKernelRack(t, 1500)
	n, in, err := transfer(t, a, b, 16<<20)
	if err != nil || n != 16<<20 || !in {
		t.Fatalf("%d bytes, intact %v, %v", n, in, err)
	}
	if p := r.sw.Ports()[0]; p.RxBytes/p.RxPackets < 3000 {
		t.Errorf("%d bytes in %d packets: super-packets were cut", p.RxBytes, p.RxPackets)
	}
}

// transfer sends size bytes by TCP from one host to another.
func transfer(t testing.TB, a, b *lab, size int64) (n int64, intact bool, err error) {
	t.Helper()
	var l net.Listener
	var c net.Conn
	within(t, b.ns, func() { l, err = net.Listen("tcp", netip.AddrPortFrom(b.addr, 3000).String()) })
	if err != nil {
		return 0, false, err
	}
	defer l.Close()
	within(t, a.ns, func() { c, err = net.DialTimeout("tcp", l.Addr().String(), patience) })
	if err != nil {
		return 0, false, err
	}
	sent := sha256.New()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer c.Close()
		_, _ = io.CopyN(io.MultiWriter(c, sent), rand.Reader, size)
	}()
	in, err := l.Accept()
	if err != nil {
		return 0, false, err
	}
	defer in.Close()
	got := sha256.New()
	if err := in.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, false, err
	}
	n, err = io.Copy(got, in)
	<-done
	return n, bytes.Equal(got.Sum(nil), sent.Sum(nil)), err
}

// verdict counts the packets of the rack's ports that had a verdict.
func (r *rack) verdict(v sample.Verdict) (n uint64) {
	r.t.Helper()
	for _, p := range r.sw.Ports() {
		c, err := (*r.sw.exec.Load()).Counter("SampleIngress.verdicts", v.Cell(uint16(p.Port)))
		if err != nil {
			r.t.Fatal(err)
		}
		n += c.Packets
	}
	return n
}

// Short frames and VLAN tags are judged as the program says.
func TestKernel_ShortAndTaggedFrames(t *testing.T) {
	r, a, b := newKernelRack(t, 1500)
	out := rawSocket(t, a)
	whole := frame.UDP6{
		DstMAC: frame.MAC{2, 0, 0, 0, 0, 0xff}, SrcMAC: frame.MAC(a.mac), Payload: []byte("hi"),
		Src: netip.AddrPortFrom(a.addr, 1000), Dst: netip.AddrPortFrom(b.addr, 7),
	}.Append(nil)
	tagged := append(append(bytes.Clone(whole[:12]), 0x81, 0, 0, 7), whole[12:]...)
	for _, tc := range []struct {
		frame   []byte
		verdict sample.Verdict
	}{
		{whole, sample.Forwarded}, {whole[:62], sample.Forwarded}, {whole[:61], sample.Malformed}, {whole[:54], sample.Malformed}, {whole[:53], sample.Malformed},
		{whole[:20], sample.Malformed}, {whole[:14], sample.Malformed}, {tagged, sample.Unsupported}, {tagged[:20], sample.Unsupported},
	} {
		before := r.verdict(tc.verdict)
		if err := out.Send(afpacket.Frame{Data: tc.frame}); err != nil {
			t.Fatal(err)
		}
		got := func() bool { return r.verdict(tc.verdict) > before }
		t.Run(fmt.Sprint(len(tc.frame)), func(t *testing.T) { until(t, got) })
	}
}

// An interface that vanishes and returns is taken up again.
func TestKernel_VanishesAndReturns(t *testing.T) {
	r, a, b := newKernelRack(t, 1500)
	b.unplug()
	until(t, func() bool { p := r.sw.Ports()[1]; return !p.Up && p.Vanished == 1 })
	ca := a.udp(1000)
	sendUDP(t, ca, []byte("lost"), b, 7)
	until(t, func() bool { return r.sw.Lost() > 0 })
	b.plug(1500)
	b.knows(a)
	until(t, func() bool { return r.sw.Ports()[1].Up })
	cb := b.udp(7)
	sendUDP(t, ca, []byte("hello"), b, 7)
	if got := receive(t, cb, 100); string(got) != "hello" {
		t.Fatalf("got %q", got)
	}
}

// A frame that is longer than the egress interface's MTU is dropped and counted.
func TestKernel_TooLong(t *testing.T) {
	r, a, b := newKernelRack(t, 9000)
	link, err := netlink.LinkByName(b.iface)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMTU(link, 1500); err != nil {
		t.Fatal(err)
	}
	ca := a.udp(1000)
	until(t, func() bool {
		sendUDP(t, ca, make([]byte, 5000), b, 7)
		return r.sw.Ports()[1].TxTooLong > 0
	})
}

// What a port of the kernel executor receives and sends is captured, also when
// its interface has been gone, and lookups are counted by table.
func TestKernel_Capture(t *testing.T) {
	dir := t.TempDir()
	r, a, b := newKernelRackWith(t, Config{CaptureDir: dir}, 1500)
	ca := a.udp(1000)
	holds := func(iface, dir2 string, want []byte) bool {
		got, err := os.ReadFile(filepath.Join(dir, iface+dir2+".pcap"))
		if err != nil {
			t.Fatal(err)
		}
		return bytes.Contains(got, want)
	}
	crosses := func(data string, port uint16) {
		t.Helper()
		b.udp(port) // or an error with the data in it would come back
		until(t, func() bool {
			sendUDP(t, ca, []byte(data), b, port)
			return holds(a.iface, "_in", []byte(data)) && holds(b.iface, "_out", []byte(data))
		})
		if holds(a.iface, "_out", []byte(data)) || holds(b.iface, "_in", []byte(data)) {
			t.Error("captured in the wrong direction")
		}
	}
	crosses("before it vanished", 7)
	b.unplug()
	until(t, func() bool { return r.sw.Ports()[1].Vanished == 1 })
	b.plug(1500)
	b.knows(a)
	until(t, func() bool { return r.sw.Ports()[1].Up })
	crosses("after it returned", 8)
	for _, n := range r.sw.Tables() {
		if n.Table == "SampleIngress.next_hop" && n.Hits > 0 && n.Misses == 0 {
			return
		}
	}
	t.Errorf("lookups: %+v", r.sw.Tables())
}

// Nothing is left behind: no goroutine (TestMain looks), no program, no descriptor
// and with it no TAP device.
func TestKernel_CloseLeavesNothingBehind(t *testing.T) {
	needRoot(t)
	before := descriptors(t)
	t.Run("switch", func(t *testing.T) {
		r, a, b := newKernelRack(t, 1500)
		ca, cb := a.udp(1000), b.udp(7)
		sendUDP(t, ca, []byte("x"), b, 7)
		receive(t, cb, 10)
		if n := attached(t, a, b); n != 2 {
			t.Fatalf("%d programs while it runs", n)
		}
		if err := r.sw.Close(); err != nil {
			t.Fatal(err)
		}
		if n := attached(t, a, b); n != 0 {
			t.Errorf("%d programs are left", n)
		}
	})
	if after := descriptors(t); after > before {
		t.Errorf("%d descriptors are open, %d were", after, before)
	}
}

// attached counts the programs on the interfaces of hosts' cables.
func attached(t *testing.T, hosts ...*lab) (programs int) {
	t.Helper()
	for _, h := range hosts {
		l, err := netlink.LinkByName(h.iface)
		if err != nil {
			t.Fatal(err)
		}
		q, err := ebpflink.QueryPrograms(ebpflink.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			t.Fatal(err)
		}
		programs += len(q.Programs)
	}
	return programs
}

// The pipeline can be replaced under traffic; ports move from executor to
// executor of either kind, and go on counting.
func TestKernel_PortsMoveBetweenExecutors(t *testing.T) {
	needRoot(t)
	var load Loader = LoadGo
	r := newSwitchOn(t, func(c []byte, e Env) (Executor, error) { return load(c, e) }, sample.JSON, sample.Info, sample.Prefix)
	a, b := newLab(t, 1500), newLab(t, 1500)
	a.knows(b)
	b.knows(a)
	ca, cb := a.udp(1000), b.udp(7)
	r.plugIn(1, a)
	r.plugIn(2, b)
	for i, next := range []Loader{LoadGo, LoadEBPF, LoadEBPF, LoadGo, LoadAuto} {
		load = next
		r.commit()
		r.tell(1, a)
		r.tell(2, b)
		sendUDP(t, ca, []byte{byte(i)}, b, 7)
		if got := receive(t, cb, 10); got[0] != byte(i) {
			t.Fatalf("pipeline %d: got % x", i, got)
		}
		until(t, func() bool { // what is sent is counted when it is gone
			ports := r.sw.Ports()
			return ports[0].RxPackets > uint64(i) && ports[1].TxPackets > uint64(i)
		})
	}
	if r.sw.kernel() == nil {
		t.Error("auto has not chosen eBPF")
	}
	if err := r.sw.Attach(3, func([]byte) {}); err == nil || !strings.Contains(err.Error(), "Go executor") {
		t.Errorf("attached in process: %v", err)
	}
}

// commit loads the program again.
func (r *rack) commit() {
	r.t.Helper()
	_, err := r.client.SetForwardingPipelineConfig(context.Background(), r.config)
	if err != nil {
		r.t.Fatal(err)
	}
}

// A load of revocations: once the answer to a Write has come, no packet is
// forwarded by the old rule any more.
func TestKernel_AnsweredDeleteIsInForce(t *testing.T) {
	r, a, b := newKernelRack(t, 1500)
	out := rawSocket(t, a)
	batch := make([]afpacket.Frame, afpacket.BatchSize)
	for i := range batch {
		batch[i].Data = frame.UDP6{
			SrcMAC: frame.MAC(a.mac), Payload: binary.BigEndian.AppendUint32(nil, uint32(i)),
			Src: netip.AddrPortFrom(a.addr, 1000), Dst: netip.AddrPortFrom(b.addr, 7),
		}.Append(nil)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		errs := make([]error, len(batch))
		for {
			select {
			case <-stop:
				return
			default:
				out.SendAll(batch, errs)
			}
		}
	}()
	defer func() { close(stop); <-stopped }()
	addr := b.addr.As16()
	route := r.entry("l3", "to_hop", [][]byte{{0, 2}}, datapath.Match{Value: addr[:], PrefixLen: 128})
	for range 30 {
		before := r.verdict(sample.Forwarded)
		until(t, func() bool { return r.verdict(sample.Forwarded) > before+100 })
		r.write(p4v1.Update_DELETE, route)
		before, dropped := r.verdict(sample.Forwarded), r.verdict(sample.NoRoute)
		until(t, func() bool { return r.verdict(sample.NoRoute) > dropped+100 })
		if after := r.verdict(sample.Forwarded); after != before {
			t.Fatalf("%d packets were forwarded by a deleted rule", after-before)
		}
		r.write(p4v1.Update_INSERT, route)
	}
}

// A packet that goes round without end is counted at the port by which it came.
func TestKernel_Looped(t *testing.T) {
	needRoot(t)
	program, err := os.ReadFile("../ebpf/testdata/stacks.json")
	if err != nil {
		t.Fatal(err)
	}
	info, err := p4info.Parse(&configv1.P4Info{})
	if err != nil {
		t.Fatal(err)
	}
	x, err := LoadEBPF(program, Env{Info: info, Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	kernel := x.(*ebpfExecutor)
	name, end := openVeth(t, 1)
	if err := kernel.AttachPort(1, name, false); err != nil {
		t.Fatal(err)
	}
	packet := make([]byte, 100)
	packet[14] = 5 // resubmitted each time
	end.send(t, packet)
	until(t, func() bool {
		p := port{num: 1}
		kernel.portStats(1, &p.n)
		return p.n.looped.Load() == 1 && p.stats().Looped == 1
	})
}
