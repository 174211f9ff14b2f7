package unixjoin

import (
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// peer returns who is at the other end of a Unix socket: the process and user that
// connected.
func peer(conn net.Conn) (cred *unix.Ucred, err error) {
	uc, ok := conn.(*net.UnixConn)
	if !ok {
		return nil, fmt.Errorf("%s is no Unix socket", conn.LocalAddr())
	}
	raw, err := uc.SyscallConn()
	if err != nil {
		return nil, err
	}
	if e := raw.Control(func(fd uintptr) { cred, err = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); e != nil {
		return nil, e
	}
	return cred, err
}
