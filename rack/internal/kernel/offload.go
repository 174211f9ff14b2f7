package kernel

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtoolValue and ethtoolRequest are struct ethtool_value and the part of
// struct ifreq that SIOCETHTOOL uses (linux/ethtool.h, linux/if.h).
type ethtoolValue struct{ cmd, data uint32 }

type ethtoolRequest struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// setChecksumOffload says whether the stack may leave UDP and TCP checksums to
// the interface, in this thread's namespace. A veth never fills them in: it
// passes packets on with a note that only kernels read, so a switch in user
// space would forward them broken. Without it the kernel also stops handing
// down super-packets.
func setChecksumOffload(iface string, on bool) error {
	value := ethtoolValue{cmd: unix.ETHTOOL_STXCSUM}
	if on {
		value.data = 1
	}
	req := ethtoolRequest{data: unsafe.Pointer(&value)}
	copy(req.name[:unix.IFNAMSIZ-1], iface)
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("checksum offload of %s: %w", iface, err)
	}
	defer closeFD(fd)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	runtime.KeepAlive(&value)
	if errno != 0 {
		return fmt.Errorf("checksum offload of %s: %w", iface, errno)
	}
	return nil
}
