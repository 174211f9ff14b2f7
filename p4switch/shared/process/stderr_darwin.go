package process

import (
	"os"

	"golang.org/x/sys/unix"
)

// becomeStderr makes a file the standard error of this process.
func becomeStderr(f *os.File) error { return unix.Dup2(int(f.Fd()), unix.Stderr) }
