package afpacket

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/offload"
	"golang.org/x/sys/unix"
)

// Sizes and times.
const (
	// MaxFrame is the longest frame in bytes: an IP packet of 65,535 bytes (a TCP
	// super-packet is no longer by default) with an Ethernet header and two tags.
	MaxFrame = 65535 + 14 + 8
	// BatchSize is how many frames one receive takes at most.
	BatchSize = 32
	// Timeout is how long a receive blocks at most.
	Timeout = 200 * time.Millisecond
	// socketBuffer is what the kernel may hold for a socket in either direction (it
	// takes twice that, with its own overhead): a hundred of the longest frames, or
	// ten thousand small ones. At a port that gets more than can be worked off,
	// every packet waits behind a full buffer, some 0.1 s.
	socketBuffer = 4 << 20
)

// Errors that a caller can do something about; others are the kernel's.
var (
	// ErrTimeout: nothing was received for Timeout.
	ErrTimeout = errors.New("afpacket: timeout")
	// ErrDown: the interface is down, or gone.
	ErrDown = errors.New("afpacket: interface is down")
	// ErrFull: the interface's queue has no room.
	ErrFull = errors.New("afpacket: queue is full")
	// ErrTooLong: the frame is longer than the interface's MTU.
	ErrTooLong = errors.New("afpacket: frame exceeds the MTU")
	// ErrPermission: packet sockets need CAP_NET_RAW.
	ErrPermission = errors.New("no permission for packet sockets: run as root, or give the program CAP_NET_RAW (setcap cap_net_raw+ep)")
	// ErrNoInterface: there is no such interface in this network namespace.
	ErrNoInterface = errors.New("there is no interface")
	// ErrClosed: the socket has been closed.
	ErrClosed = errors.New("afpacket: closed")
)

// Frame is an Ethernet frame with what its sender left undone.
type Frame struct {
	Data   []byte
	Header offload.Header
	// Outgoing tells that the interface sends the frame (OpenTap).
	Outgoing bool
}

// Socket is a packet socket on one interface. One goroutine at a time may
// receive; any number may send.
type Socket struct {
	name  string
	index int
	tap   bool
	short int // the shortest frame that can be sent, in bytes
	rx    *batch

	mu sync.RWMutex // held for reading while fd is in use
	fd int          // -1 when closed
}

// Open opens a socket on an interface, in promiscuous mode.
func Open(name string) (*Socket, error) { return open(name, false) }

// OpenTap opens a socket that receives what the interface sends as well.
func OpenTap(name string) (*Socket, error) { return open(name, true) }

func open(name string, tap bool) (*Socket, error) {
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("%w %q in this network namespace: ip link shows those that there are", ErrNoInterface, name)
	}
	// Protocol 0 receives nothing until bind says what, so no frame comes in
	// before the options are set.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) {
		return nil, ErrPermission
	}
	if err != nil {
		return nil, fmt.Errorf("packet socket: %w", err)
	}
	s := &Socket{name: name, index: ifi.Index, fd: fd, tap: tap, rx: newBatch()}
	if len(ifi.HardwareAddr) == 6 || ifi.Flags&net.FlagLoopback != 0 {
		s.short = etherLen
	}
	if err := s.configure(); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("packet socket on %q: %w", name, err)
	}
	return s, nil
}

func (s *Socket) configure() error {
	ignore := 1
	if s.tap {
		ignore = 0
	}
	for _, o := range []struct{ opt, value int }{
		{unix.PACKET_VNET_HDR, 1}, {unix.PACKET_IGNORE_OUTGOING, ignore}, {unix.PACKET_AUXDATA, 1},
	} {
		if err := unix.SetsockoptInt(s.fd, unix.SOL_PACKET, o.opt, o.value); err != nil {
			return fmt.Errorf("option %d: %w", o.opt, err)
		}
	}
	for _, o := range []struct{ forced, plain int }{
		{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF},
	} {
		if unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.forced, socketBuffer) != nil { // needs CAP_NET_ADMIN
			_ = unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, o.plain, socketBuffer)
		}
	}
	tv := unix.NsecToTimeval(Timeout.Nanoseconds())
	if err := unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	if err := unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ALL), Ifindex: s.index}); err != nil {
		return err
	}
	return unix.SetsockoptPacketMreq(s.fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP,
		&unix.PacketMreq{Ifindex: int32(s.index), Type: unix.PACKET_MR_PROMISC})
}

// etherLen is the length of an Ethernet header. The kernel drops shorter frames on
// devices that have one; others, such as TUN, carry packets of any length.
const etherLen = 14

// Shortest is the length below which frames are padded with zeros before they are
// sent, as Ethernet does: 0 for devices without an Ethernet header.
func (s *Socket) Shortest() int { return s.short }

// htons is v in network byte order.
func htons(v uint16) uint16 { return v<<8 | v>>8 }

// Gone tells whether the interface that the socket was opened on does not exist
// any more, though another one may have its name.
func (s *Socket) Gone() bool {
	ifi, err := net.InterfaceByName(s.name)
	return err != nil || ifi.Index != s.index
}

// Up tells whether the interface exists, is up and has a carrier.
func (s *Socket) Up() bool {
	ifi, err := net.InterfaceByName(s.name)
	return err == nil && ifi.Index == s.index && ifi.Flags&net.FlagRunning != 0
}

// KernelDrops counts the frames that the kernel has dropped since the last call
// because nobody received them fast enough.
func (s *Socket) KernelDrops() uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	st, err := unix.GetsockoptTpacketStats(s.fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
	if err != nil {
		return 0
	}
	return uint64(st.Drops)
}

// Close closes the socket, after calls under way have returned (which takes at
// most Timeout).
func (s *Socket) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fd < 0 {
		return nil
	}
	err := unix.Close(s.fd)
	s.fd = -1
	return err
}
