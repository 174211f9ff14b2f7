package host

import "syscall"

// attributes are those of the child's process. It is in a group of its own, so that what ends the host's group (Ctrl-C, a daemon's SIGTERM)
// lets it finish its calls. The kernel kills it when the host is gone.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
