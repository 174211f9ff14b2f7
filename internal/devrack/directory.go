package devrack

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// directory is what a rack keeps in files.
type directory struct {
	path      string // absolute
	temporary bool
	lock      *os.File
}

// lockName marks a directory of ours. Whoever has the lock of the file has the directory; the file says which process that is.
const lockName = "bifrost-dev.lock"

// openDirectory takes a directory, which is made if it is not there; "" makes one that goes when it is closed.
func openDirectory(path string) (d *directory, err error) {
	d = &directory{path: path, temporary: path == ""}
	if d.temporary {
		d.path, err = os.MkdirTemp("", "bifrost-dev-")
	} else if d.path, err = filepath.Abs(path); err == nil {
		err = os.MkdirAll(d.path, 0o700)
	}
	if err == nil {
		err = d.take()
	}
	if err == nil {
		err = d.tidy()
	}
	if err != nil {
		return nil, errors.Join(err, d.close())
	}
	return d, nil
}

// take locks the directory, if it is ours or empty.
func (d *directory) take() error {
	name := d.file(lockName)
	if _, err := os.Lstat(name); errors.Is(err, os.ErrNotExist) {
		if there, err := os.ReadDir(d.path); err != nil || len(there) > 0 {
			return errors.Join(err, fmt.Errorf("directory %s has other files (%s): name a new directory for the rack's state", d.path, firstOf(there)))
		}
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		pid, _ := io.ReadAll(io.LimitReader(f, 20))
		return errors.Join(fmt.Errorf("directory %s belongs to another bifrost dev that runs (process %s): end that one, or name another directory", d.path, bytes.TrimSpace(pid)), f.Close())
	}
	if err == nil {
		err = f.Truncate(0)
	}
	if err == nil {
		_, err = fmt.Fprintln(f, os.Getpid())
	}
	if err != nil {
		return errors.Join(fmt.Errorf("lock %s: %w", d.path, err), f.Close())
	}
	d.lock = f
	return nil
}

func firstOf(entries []os.DirEntry) string {
	if len(entries) == 0 {
		return "none"
	}
	return entries[0].Name()
}

// tidy removes the sockets of a rack that was killed.
func (d *directory) tidy() error {
	old, err := filepath.Glob(d.file("*.sock"))
	for _, name := range old {
		err = errors.Join(err, os.Remove(name))
	}
	return err
}

// file is the path of something in the directory.
func (d *directory) file(name ...string) string {
	return filepath.Join(append([]string{d.path}, name...)...)
}

// socket is the path of a socket. It fails if the system takes no path that long.
func (d *directory) socket(name string) (string, error) {
	// The admin API makes its socket in a directory beside it first.
	const beside = len("/.admin0123456789/s")
	path := d.file(name + ".sock")
	if most := len(syscall.RawSockaddrUnix{}.Path) - 1; max(len(path), len(d.path)+beside) > most {
		return "", fmt.Errorf("directory %s: the path of a socket in it has up to %d bytes, and the system takes %d: name a directory with a shorter path",
			d.path, max(len(path), len(d.path)+beside), most)
	}
	return path, nil
}

// close gives the directory up, and removes it if it is temporary.
func (d *directory) close() (err error) {
	if d.lock != nil {
		err = d.lock.Close()
	}
	if d.temporary && d.path != "" {
		err = errors.Join(err, os.RemoveAll(d.path))
	}
	return err
}
