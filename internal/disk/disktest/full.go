// Package disktest has file systems that fail, for tests of what is kept on disk.
package disktest

import (
	"errors"
	"strings"
	"sync/atomic"

	"github.com/cockroachdb/pebble/vfs"
)

// ErrFull is what writing to a full disk fails with.
var ErrFull = errors.New("no space left on device")

// FS is a file system in memory that takes nothing more for its write-ahead log once it is
// full. It may be used concurrently.
type FS struct {
	vfs.FS
	Full *atomic.Bool
}

// New returns a file system with room.
func New() FS { return FS{vfs.NewMem(), new(atomic.Bool)} }

// Create implements vfs.FS.
func (fs FS) Create(name string) (vfs.File, error) {
	f, err := fs.FS.Create(name)
	if err != nil || !strings.HasSuffix(name, ".log") {
		return f, err
	}
	return file{f, fs.Full}, nil
}

type file struct {
	vfs.File
	full *atomic.Bool
}

func (f file) Write(b []byte) (int, error) {
	if f.full.Load() {
		return 0, ErrFull
	}
	return f.File.Write(b)
}
