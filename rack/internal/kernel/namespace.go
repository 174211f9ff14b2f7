// Package kernel is all that the rack asks of Linux: named network namespaces,
// the wires between them, and the processes inside. Namespaces are named as by
// iproute2, under /run/netns, so `ip netns` sees them too. Everything here needs
// root; errors name the namespace, link or process they are about.
package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// directory is where named namespaces are kept.
const directory = "/run/netns"

// Namespace is an open network namespace. Methods may be called concurrently.
type Namespace struct {
	name   string
	handle netns.NsHandle
	id     netnsID
}

// netnsID tells namespaces apart: the device and inode of their file.
type netnsID struct{ dev, ino uint64 }

// CreateNamespace makes a named namespace with its loopback interface up. It
// fails with fs.ErrExist if the name is taken.
func CreateNamespace(name string) error {
	if Exists(name) {
		return fmt.Errorf("network namespace %s: %w", name, fs.ErrExist)
	}
	if err := shareDirectory(); err != nil {
		return err
	}
	err := excursion(func() error {
		handle, err := netns.NewNamed(name) // moves the thread there
		if err == nil {
			err = handle.Close()
		}
		return err
	})
	if err != nil {
		return errors.Join(fmt.Errorf("create network namespace %s: %w", name, err), DeleteNamespace(name))
	}
	if err := loopbackUp(name); err != nil {
		return errors.Join(err, DeleteNamespace(name))
	}
	return nil
}

// shareDirectory makes the directory a mount of its own, and a shared one, as iproute2 does
// (ip-netns(8)). Else the next `ip netns add` did so: it binds the directory over itself, and the
// mounts that were there before are hidden below, where nobody can end them.
func shareDirectory() error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return fmt.Errorf("make the directory of network namespaces: %w", err)
	}
	dir, err := os.Open(directory)
	if err != nil {
		return fmt.Errorf("open the directory of network namespaces: %w", err)
	}
	defer func() { _ = dir.Close() }()                              // which also unlocks it
	if err := unix.Flock(int(dir.Fd()), unix.LOCK_EX); err != nil { // iproute2 does the same meanwhile
		return fmt.Errorf("lock %s: %w", directory, err)
	}
	share := func() error { return unix.Mount("", directory, "none", unix.MS_SHARED|unix.MS_REC, "") }
	err = share()
	if errors.Is(err, unix.EINVAL) { // it is no mount yet
		if err = unix.Mount(directory, directory, "none", unix.MS_BIND|unix.MS_REC, ""); err == nil {
			err = share()
		}
	}
	if err != nil {
		return fmt.Errorf("make %s a shared mount: %w", directory, err)
	}
	return nil
}

func loopbackUp(name string) error {
	ns, err := OpenNamespace(name)
	if err != nil {
		return err
	}
	defer ns.close()
	h, err := netlink.NewHandleAt(ns.handle)
	if err != nil {
		return fmt.Errorf("network namespace %s: %w", name, err)
	}
	defer h.Close()
	lo, err := h.LinkByName("lo")
	if err == nil {
		err = h.LinkSetUp(lo)
	}
	if err != nil {
		return fmt.Errorf("loopback of %s: %w", name, err)
	}
	return nil
}

// Exists reports whether the name is taken, be it by what is left of a namespace.
func Exists(name string) bool {
	_, err := os.Lstat(filepath.Join(directory, name))
	return err == nil
}

// Namespaces returns the names that begin with prefix, sorted.
func Namespaces(prefix string) ([]string, error) {
	entries, err := os.ReadDir(directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list network namespaces: %w", err)
	}
	var names []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// ErrHidden says that something was mounted over the directory of namespaces, and hides the mount
// of one, which keeps its name.
var ErrHidden = errors.New("hidden by what was mounted over " + directory)

// DeleteNamespace removes a name, and with the last process or descriptor in it
// the namespace and its links. A name that is not there is no error. It fails with ErrHidden
// if only UncoverNamespace can remove the name.
func DeleteNamespace(name string) error {
	path := filepath.Join(directory, name)
	err := unix.Unmount(path, unix.MNT_DETACH)
	if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) { // EINVAL: only the file was made
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	switch err := os.Remove(path); {
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("network namespace %s is %w", name, ErrHidden)
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("delete network namespace %s: %w", name, err)
	}
	return nil
}

// UncoverNamespace removes a name as DeleteNamespace does, also where its mount is hidden. It
// does so on a thread whose mounts are its own, and private: there it ends what is mounted over
// the directory, and then removes the name. The kernel ends the mounts of a removed name in all
// other mount namespaces. Nothing else changes there.
func UncoverNamespace(name string) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its mounts
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
				return fmt.Errorf("make a mount namespace: %w", err)
			}
			if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
				return fmt.Errorf("make its mounts private: %w", err)
			}
			for {
				err := DeleteNamespace(name)
				if !errors.Is(err, ErrHidden) {
					return err
				}
				if under := unix.Unmount(directory, unix.MNT_DETACH); under != nil {
					return errors.Join(err, fmt.Errorf("unmount %s: %w", directory, under))
				}
			}
		}()
	}()
	return <-done
}

// OpenNamespace opens a named namespace; close it after use.
func OpenNamespace(name string) (*Namespace, error) {
	handle, err := netns.GetFromName(name)
	if err != nil {
		return nil, fmt.Errorf("open network namespace %s: %w", name, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(handle), &st); err != nil {
		return nil, errors.Join(fmt.Errorf("open network namespace %s: %w", name, err), handle.Close())
	}
	return &Namespace{name: name, handle: handle, id: netnsID{st.Dev, st.Ino}}, nil
}

// Close releases the descriptor; the namespace stays.
func (n *Namespace) Close() error { return n.handle.Close() }

// close is Close where nothing was written that an error could be about.
func (n *Namespace) close() { _ = n.handle.Close() }

// Do runs f on a thread that is inside the namespace. Sockets that f opens and
// processes that it starts belong to the namespace.
func (n *Namespace) Do(f func() error) error {
	return excursion(func() error {
		if err := netns.Set(n.handle); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", n.name, err)
		}
		return f()
	})
}

// excursion runs f, which may change its thread's namespace, and takes the
// thread home. That matters most for the process's first thread: it never ends,
// and where it is the whole process seems to be. If the way home fails, the
// goroutine ends locked, so that no other runs on that thread.
func excursion(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("this thread's network namespace: %w", err)
			return
		}
		err = f()
		back := netns.Set(home)
		if back == nil {
			runtime.UnlockOSThread()
		}
		done <- errors.Join(err, back, home.Close())
	}()
	return <-done
}

// Enter moves the calling process's current thread into the namespace for good;
// what it executes next runs there.
func (n *Namespace) Enter() error {
	runtime.LockOSThread()
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.name, err)
	}
	return nil
}

// DoAs runs f as a user without privileges, on a thread inside the namespace that ends
// with it: sockets that f opens are that user's.
func (n *Namespace) DoAs(uid uint32, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		done <- func() error {
			if err := netns.Set(n.handle); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", n.name, err)
			}
			id := uintptr(uid) // of this thread alone
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, id, id, id); errno != 0 {
				return fmt.Errorf("become user %d: %w", uid, errno)
			}
			return f()
		}()
	}()
	return <-done
}
