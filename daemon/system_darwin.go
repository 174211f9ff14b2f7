package daemon

import (
	"os"
	"syscall"
	"time"
)

// ownProgram is the daemon's own program.
func ownProgram() (string, error) { return os.Executable() }

// dropPrivileges has nothing to do: processes have no capabilities here.
func dropPrivileges() {}

// changed is when a file's content or attributes have changed last.
func changed(s *syscall.Stat_t) time.Time { return time.Unix(s.Ctimespec.Unix()) }

// used is when a file was used last.
func used(s *syscall.Stat_t) time.Time { return time.Unix(s.Atimespec.Unix()) }
