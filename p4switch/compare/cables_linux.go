//go:build linux

package compare

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Ports is how many ports a test on real interfaces has, numbered from 1.
const Ports = 4

// Patience bounds what must come on a busy machine.
const Patience = time.Minute

// Shortest is how short a frame with a tag may be: shorter ones the kernel drops
// before anybody sees them.
const Shortest = 20

// Cables are a pair whose kernel executor has ports on veth pairs in a namespace of its own, and the far ends.
type Cables struct {
	*Pair
	Far [Ports + 1]*afpacket.Socket
	Buf []afpacket.Frame
}

// Namespace keeps the test on a thread in a new network namespace. What runs on
// other threads only uses sockets that were opened here.
func Namespace(t *testing.T) {
	t.Helper()
	privilege.Need(t)
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	ns, err := netns.New() // and enters it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := netns.Set(home); err != nil {
			t.Error(err) // the thread stays locked, so it ends
			return
		}
		_ = ns.Close()
		_ = home.Close()
		runtime.UnlockOSThread()
	})
}

// Lay makes the veth pairs and attaches the near ends. The test must be in a namespace of its own.
func Lay(t *testing.T, p *Pair, attach func(port datapath.Port, name string) error) *Cables {
	t.Helper()
	c := &Cables{Pair: p, Buf: make([]afpacket.Frame, 0, afpacket.BatchSize)}
	for i := 1; i <= Ports; i++ {
		near, far := fmt.Sprintf("near%d", i), fmt.Sprintf("far%d", i)
		Veth(t, near, far)
		if err := attach(datapath.Port(i), near); err != nil {
			t.Fatal(err)
		}
		s, err := afpacket.Open(far)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		c.Far[i] = s
	}
	return c
}

// Veth makes a pair of interfaces that are up.
func Veth(t *testing.T, near, far string) {
	t.Helper()
	err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: near, MTU: 65535}, PeerName: far, PeerMTU: 65535})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{near, far} {
		if err := os.WriteFile("/proc/sys/net/ipv6/conf/"+name+"/disable_ipv6", []byte("1"), 0o600); err != nil {
			t.Fatal(err)
		}
		link, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	// An end that was up before the other drops what it is given to send until a
	// work queue has noticed the carrier; only then is it "up".
	for _, name := range []string{near, far} {
		awaitUp(t, name)
	}
}

// Feature switches features of an interface on or off, by their names for ethtool.
func Feature(t *testing.T, iface string, on bool, names ...string) {
	t.Helper()
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		t.Fatal(err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), unix.NLM_F_ACK)
	req.AddData(&nl.Genlmsg{Command: unix.ETHTOOL_MSG_FEATURES_SET, Version: unix.ETHTOOL_GENL_VERSION})
	device := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_HEADER|unix.NLA_F_NESTED, nil)
	device.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_NAME, nl.ZeroTerminated(iface))
	wanted := nl.NewRtAttr(unix.ETHTOOL_A_FEATURES_WANTED|unix.NLA_F_NESTED, nil)
	bits := wanted.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS|unix.NLA_F_NESTED, nil)
	for _, name := range names {
		bit := bits.AddRtAttr(unix.ETHTOOL_A_BITSET_BITS_BIT|unix.NLA_F_NESTED, nil)
		bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_NAME, nl.ZeroTerminated(name))
		if on {
			bit.AddRtAttr(unix.ETHTOOL_A_BITSET_BIT_VALUE, nil)
		}
	}
	req.AddData(device)
	req.AddData(wanted)
	if _, err := req.Execute(unix.NETLINK_GENERIC, 0); err != nil {
		t.Fatalf("%s: features %v: %v", iface, names, err)
	}
}

func awaitUp(t *testing.T, name string) {
	t.Helper()
	for deadline := time.Now().Add(Patience); ; {
		link, err := netlink.LinkByName(name)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%s does not come up: %v", name, err)
		}
		if link.Attrs().OperState == netlink.OperUp {
			return
		}
		runtime.Gosched()
	}
}

// Check sends a frame and compares what comes out with what the Go executor says.
func (c *Cables) Check(t *testing.T, in datapath.Port, frame []byte, replay string) {
	t.Helper()
	type out struct {
		port  datapath.Port
		frame []byte
	}
	var want []out
	c.Golang.Process(in, bytes.Clone(frame), func(p datapath.Port, f []byte) { want = append(want, out{p, bytes.Clone(f)}) })
	if err := c.Far[in].Send(afpacket.Frame{Data: frame}); err != nil {
		t.Fatal(err)
	}
	for _, w := range want {
		if w.port < 1 || w.port > Ports {
			continue
		}
		if got, ok := c.next(w.port); !ok || !bytes.Equal(got, w.frame) {
			t.Fatalf("port %d, packet of %d bytes %x:\nport %d: kernel %d bytes %x\n           Go %d bytes %x\nreplay: %s",
				in, len(frame), head(frame), w.port, len(got), head(got), len(w.frame), head(w.frame), replay)
		}
	}
}

func head(b []byte) []byte { return b[:min(len(b), 200)] }

// next is the next frame that comes out of a port.
func (c *Cables) next(port datapath.Port) ([]byte, bool) {
	for range 20 {
		got, err := c.Far[port].Receive(c.Buf[:0:1])
		if errors.Is(err, afpacket.ErrTimeout) {
			continue
		}
		if err != nil || len(got.Frames) == 0 {
			return nil, false
		}
		return bytes.Clone(got.Frames[0].Data), true
	}
	return nil, false
}

// Quiet fails if a frame has come out that nothing was said of.
func (c *Cables) Quiet(t *testing.T, replay string) {
	t.Helper()
	for p := 1; p <= Ports; p++ {
		if got, err := c.Far[p].Receive(c.Buf); err == nil && len(got.Frames) > 0 {
			t.Errorf("port %d: %d frames too many: %x\nreplay: %s", p, len(got.Frames), got.Frames[0].Data, replay)
		}
	}
}
