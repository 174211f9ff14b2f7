package unixjoin

import (
	"os"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/netio"
)

// localLevel is SOL_LOCAL, the level of the options below.
const localLevel = 0

// peerOf is the other end of a Unix socket.
func peerOf(fd int) (process, error) {
	cred, err := unix.GetsockoptXucred(fd, localLevel, unix.LOCAL_PEERCRED)
	if err != nil {
		return process{}, os.NewSyscallError("getsockopt", err)
	}
	pid, err := unix.GetsockoptInt(fd, localLevel, unix.LOCAL_PEERPID)
	return process{pid, cred.Uid}, os.NewSyscallError("getsockopt", err)
}

// adopt refuses a UDP socket: no blade has this system.
func adopt(f *os.File, _ int) (netio.Conn, error) {
	f.Close()
	return nil, fault.New(fault.Unsupported, opListen, "the daemon hands over a UDP socket, which programs use on Linux only")
}
