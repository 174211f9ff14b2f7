package softswitch

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/internal/sample"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch/afpacket"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// queuesRack is a switch with the program testdata/queues.p4 between two hosts. What leaves to the second one waits in a queue, if there is one.
type queuesRack struct {
	*rack
	t    *testing.T
	a, b *lab
	out  *afpacket.Socket // of host a
	used []byte           // the program
	info []byte
}

func newQueuesRack(t *testing.T, on Loader) *queuesRack {
	t.Helper()
	needRoot(t)
	q := &queuesRack{t: t}
	var err error
	if q.used, err = os.ReadFile("testdata/queues.json"); err != nil {
		t.Fatal(err)
	}
	if q.info, err = os.ReadFile("testdata/queues.p4info.txt"); err != nil {
		t.Fatal(err)
	}
	q.rack = newSwitchOn(t, on, q.used, q.info, "E.")
	q.a, q.b = newLab(t, 1500), newLab(t, 1500)
	q.attach(1, q.a)
	q.attach(2, q.b)
	q.out = rawSocket(t, q.a)
	return q
}

func (q *queuesRack) attach(num datapath.Port, h *lab) {
	q.t.Helper()
	if err := q.sw.AttachInterface(num, h.iface); err != nil {
		q.t.Fatal(err)
	}
}

// limit gives port 2's interface a queue from which so many bytes a second leave. (netlink.Tbf knows no bursts of more than 4 s.)
func (q *queuesRack) limit(rate uint32) {
	q.t.Helper()
	link, err := netlink.LinkByName(q.b.iface)
	if err != nil {
		q.t.Fatal(err)
	}
	const burst = 200 // bytes: three frames
	tbf := nl.TcTbfQopt{Rate: nl.TcRateSpec{Rate: rate}, Limit: 64 << 20}
	options := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
	options.AddRtAttr(nl.TCA_TBF_PARMS, tbf.Serialize())
	options.AddRtAttr(nl.TCA_TBF_BURST, nl.Uint32Attr(burst))
	req := nl.NewNetlinkRequest(unix.RTM_NEWQDISC, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(link.Attrs().Index), Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT})
	req.AddData(nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated("tbf")))
	req.AddData(options)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		q.t.Fatal(err)
	}
}

// Rates of the queue: a frame a minute, and so much that none waits for long.
const (
	slow = 1
	fast = 1 << 20
)

// waiting is how many packets wait in port 2's queue, as the kernel says.
func (q *queuesRack) waiting() uint32 {
	q.t.Helper()
	link, err := netlink.LinkByName(q.b.iface)
	if err != nil {
		q.t.Fatal(err)
	}
	all, err := netlink.QdiscList(link)
	if err != nil {
		q.t.Fatal(err)
	}
	for _, d := range all {
		if d.Attrs().Parent == netlink.HANDLE_ROOT {
			return d.Attrs().Statistics.Queue.Qlen
		}
	}
	return 0
}

// seen is the depth that the last frame to port 2 has met.
func (q *queuesRack) seen() uint32 {
	q.t.Helper()
	v, err := q.sw.Register("E.depth", 2)
	if err != nil {
		q.t.Fatal(err)
	}
	return binary.BigEndian.Uint32(v)
}

// send has host a send a frame to host b.
func (q *queuesRack) send() {
	q.t.Helper()
	frame := make([]byte, 60)
	frame[5], frame[12], frame[13] = 2, 0x99, 0x99
	copy(frame[14:], bytes.Repeat([]byte{0xff}, 8))
	if err := q.out.Send(afpacket.Frame{Data: frame}); err != nil {
		q.t.Fatal(err)
	}
}

// sent is how many frames the switch has sent to host b.
func (q *queuesRack) sent() uint64 { return q.sw.port(2).stats().TxPackets }

// probe has host a send a frame to host b, and returns when the program has run.
func (q *queuesRack) probe() {
	q.t.Helper()
	before := q.sent()
	q.send()
	until(q.t, func() bool { return q.sent() > before })
}

// meets sends frames until one has met as many packets as waited before it, and at least so many.
func (q *queuesRack) meets(least uint32) (depth uint32) {
	q.t.Helper()
	until(q.t, func() bool {
		depth = q.waiting()
		q.probe()
		return depth >= least && q.seen() == depth
	})
	return depth
}

// rests is meets, but that no frame comes for longer than what the executor is told of a queue holds.
func (q *queuesRack) rests(least uint32) (depth uint32) {
	q.t.Helper()
	const holds = time.Second
	depth = q.meets(least)
	until(q.t, func() bool {
		depth = q.waiting()
		rest := time.Now()
		until(q.t, func() bool { return time.Since(rest) > holds+holds/4 })
		q.probe()
		return q.seen() == depth
	})
	return depth
}

// empty sends frames until one has met no packet.
func (q *queuesRack) empty() {
	q.t.Helper()
	until(q.t, func() bool {
		q.probe()
		return q.seen() == 0
	})
}

// arrives sends frames until one arrives at host b that tells a depth.
func (q *queuesRack) arrives(in *afpacket.Socket, depth uint32) {
	q.t.Helper()
	told := binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32([]byte{0x99, 0x99}, depth), depth)
	frames := make([]afpacket.Frame, 0, afpacket.BatchSize)
	until(q.t, func() bool {
		q.probe()
		got, _ := in.Receive(frames)
		for _, f := range got.Frames {
			if len(f.Data) >= 22 && bytes.Equal(f.Data[12:22], told) {
				return true
			}
		}
		return false
	})
}

// A frame is told how many packets wait in the queue of its egress port's interface, in the kernel and in Go, whatever becomes of the
// interface, the port and the program.
func TestQueues(t *testing.T) {
	for name, on := range map[string]Loader{"go": LoadGo, "ebpf": LoadEBPF} {
		t.Run(name, func(t *testing.T) {
			q := newQueuesRack(t, on)
			in := rawSocket(t, q.b)
			q.arrives(in, 0) // there is no queue
			q.limit(slow)
			depth := q.rests(3)
			q.limit(fast) // the frames that wait go on
			q.arrives(in, depth)
			q.empty()

			q.limit(slow)
			q.meets(3)
			q.load(q.used, q.info) // another executor
			q.meets(3)
			if err := q.sw.Detach(2); err != nil {
				t.Fatal(err)
			}
			q.attach(2, q.b)
			q.meets(3)

			gone := q.sw.port(2).stats().Vanished
			q.b.unplug()
			until(t, func() bool { return q.sw.port(2).stats().Vanished > gone })
			q.b.plug(1500)
			before := q.sent()
			until(t, func() bool { // frames go there again
				q.send()
				return q.sent() > before
			})
			q.empty()
			q.limit(slow)
			q.meets(3)
		})
	}
}

// The kernel is asked about queues only while the program uses them. (TestMain looks for goroutines that are left.)
func TestQueues_UnlessUsed(t *testing.T) {
	q := newQueuesRack(t, LoadGo)
	asks := func() bool {
		q.sw.moving.Lock()
		defer q.sw.moving.Unlock()
		return q.sw.queues.stop != nil
	}
	if !asks() {
		t.Error("the kernel is not asked")
	}
	q.load(sample.JSON, sample.Info)
	if asks() {
		t.Error("the kernel is asked for a program that does not use the depths of queues")
	}
	q.sw.queues.done.Wait()
	q.load(q.used, q.info)
	if !asks() {
		t.Error("the kernel is not asked any more")
	}
}
