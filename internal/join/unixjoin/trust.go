package unixjoin

import (
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// DaemonUserVariable is the environment variable that names the Unix user which the blade's compute daemon runs as,
// if that is neither root nor "bifrost", the user of the packaged services.
const DaemonUserVariable = "BIFROST_DAEMON_USER"

// Anybody may bind a name of an abstract socket while it is free. So a program looks at who listens: only root, the
// daemon's user and the program's own user are believed to be the blade's daemon.

// checkDaemon refuses the other end of a connection, as PermissionDenied, if it runs as somebody else.
func checkDaemon(socket string, conn net.Conn) error {
	who, err := peer(conn)
	if err != nil {
		return &fault.Error{Code: fault.Unavailable, Op: "connect", Msg: "who listens on " + socket, Err: err}
	}
	return checkUser(socket, who.uid, daemonUser())
}

// checkUser refuses a user that is not to be believed.
func checkUser(socket string, uid uint32, daemon string) error {
	if uid == 0 || int(uid) == os.Geteuid() || strconv.FormatUint(uint64(uid), 10) == daemon {
		return nil
	}
	return fault.New(fault.PermissionDenied, "connect", "user %d listens on %s, which is neither root nor the user of the compute daemon: "+
		"if that is the daemon's user, set %s=%d; if not, somebody pretends to be the daemon", uid, socket, DaemonUserVariable, uid)
}

// daemonUser is the number of the daemon's user, "" if there is none but root.
func daemonUser() string {
	name := os.Getenv(DaemonUserVariable)
	if name == "" {
		name = "bifrost"
	}
	if u, err := user.Lookup(name); err == nil {
		return u.Uid
	}
	return name // a number, or nobody's
}
