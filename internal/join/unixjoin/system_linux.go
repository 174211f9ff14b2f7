package unixjoin

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/netio"
	"github.com/bifrost-rack/bifrost/internal/netio/linux"
)

// peerOf is the other end of a Unix socket.
func peerOf(fd int) (process, error) {
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return process{}, os.NewSyscallError("getsockopt", err)
	}
	return process{int(cred.Pid), cred.Uid}, nil
}

// adopt makes an endpoint of a UDP socket that the daemon has made.
func adopt(f *os.File, mtu int) (netio.Conn, error) { return linux.Adopt(f, mtu) }
