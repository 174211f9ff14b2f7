package daemon

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// ownProgram is the daemon's own program, also when its file has been replaced.
func ownProgram() (string, error) { return "/proc/self/exe", nil }

// dropPrivileges has this thread start processes that have none of the daemon's privileges.
func dropPrivileges() {
	_ = unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0) // there are none where the kernel refuses
}

// changed is when a file's content or attributes have changed last.
func changed(s *syscall.Stat_t) time.Time { return time.Unix(s.Ctim.Unix()) }

// used is when a file was used last.
func used(s *syscall.Stat_t) time.Time { return time.Unix(s.Atim.Unix()) }
