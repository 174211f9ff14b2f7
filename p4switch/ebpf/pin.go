//go:build linux

package ebpf

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"
)

// ErrOtherVersion means that what is pinned was made by another version of this
// package, or for another program.
var ErrOtherVersion = errors.New("pinned by another version")

// errAbsent means that a map is not pinned.
var errAbsent = fmt.Errorf("%w: it is not", ErrOtherVersion)

// pinFS is where the BPF file system is by custom.
const pinFS = "/sys/fs/bpf"

// PinFS is where the BPF file system is that outlives this process. A process with
// mounts of its own, as ip netns exec gives it, may not have it in the customary
// place; then it is that of a process that started this one.
func PinFS() string {
	if isPinFS(pinFS) {
		return pinFS
	}
	if at, _ := outside(); at != "" {
		return at
	}
	return pinFS
}

func isPinFS(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// outside looks at the mounts of the processes that started this one, up to process
// 1. apart tells whether some have other mounts, and at is the topmost BPF file
// system among those; empty if there is none. It stays open, since those processes
// may end.
var outside = sync.OnceValues(func() (at string, apart bool) {
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		return "", false
	}
	for pid := os.Getppid(); pid > 0; pid = parentOf(pid) {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/mnt", pid))
		if err != nil || ns == own {
			continue // not to be seen, or nothing new
		}
		apart = true
		if theirs := fmt.Sprintf("/proc/%d/root%s", pid, pinFS); isPinFS(theirs) {
			at = theirs
		}
	}
	if at == "" {
		return "", apart
	}
	fd, err := unix.Open(at, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", apart
	}
	return fmt.Sprintf("/proc/self/fd/%d", fd), apart
})

// parentOf is the process that has started another one; 0 if there is none.
func parentOf(pid int) int {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // the name before may have spaces
	if len(fields) < 2 {
		return 0
	}
	parent, _ := strconv.Atoi(fields[1])
	return parent
}

// pins are the maps that Pin pins, by name. The slot is one: the kernel empties a
// program array that no process and no pin refers to, and the stubs would find no
// program any more.
type pins map[string]*ebpf.Map

// kept makes a map that holds what packets change and nobody else knows: counters,
// registers, meters, digests that have not been read. An executor that inherits has
// it from the one before, which may still be running.
func (x *Executor) kept(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := x.inherited(name)
	if err == nil && m == nil {
		m, err = newMap(spec)
	} else if err == nil {
		err = fits(m, spec)
	}
	if err != nil {
		return m, fmt.Errorf("%s: %w", name, err)
	}
	x.pins[name] = m
	return m, nil
}

// keptOrNew is kept for what versions before have not pinned: it is new then.
func (x *Executor) keptOrNew(name string, spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := x.kept(name, spec)
	if errors.Is(err, errAbsent) {
		if m, err = newMap(spec); err == nil {
			x.pins[name] = m
		}
	}
	return m, err
}

// inherited opens a map of the executor before; nil if there is none.
func (x *Executor) inherited(name string) (*ebpf.Map, error) {
	if x.inherit == "" {
		return nil, nil //nolint:nilnil // as documented
	}
	pinned, err := ebpf.LoadPinnedMap(filepath.Join(x.inherit, name), nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w in %s", errAbsent, x.inherit)
	}
	if err != nil {
		return nil, err
	}
	m, err := pinned.Clone() // knows no path, so that to pin it does not move the pin
	return m, errors.Join(err, pinned.Close())
}

// fits tells why an inherited map is not what this version makes.
func fits(m *ebpf.Map, spec *ebpf.MapSpec) error {
	type shape struct {
		typ                ebpf.MapType
		key, value, number uint32
		flags              uint32
	}
	const unasked = unix.BPF_F_RDONLY | unix.BPF_F_WRONLY
	got := shape{m.Type(), m.KeySize(), m.ValueSize(), m.MaxEntries(), m.Flags() &^ unasked}
	if want := (shape{spec.Type, spec.KeySize, spec.ValueSize, spec.MaxEntries, spec.Flags}); got != want {
		return fmt.Errorf("%w: it is %v, this version needs %v", ErrOtherVersion, got, want)
	}
	return nil
}

// Pin pins what must outlive this process in a directory of the BPF file system:
// attached to pinned links (Config.Links), the program goes on when the process is
// killed, and another executor can inherit its state. Close removes the directory.
func (x *Executor) Pin(dir string) error {
	if err := makePinDir(dir); err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.pinned = dir
	for name, m := range x.pins {
		if err := m.Pin(filepath.Join(dir, name)); err != nil {
			return fmt.Errorf("ebpf: pin: %w", err)
		}
	}
	for _, t := range x.tables {
		t.endRestore()
	}
	return nil
}

// makePinDir makes a directory in the BPF file system, which it mounts in its
// customary place if it is not there, as tc and bpftool do; unless the mount would end
// with this process.
func makePinDir(dir string) error {
	if rel, err := filepath.Rel(pinFS, dir); err == nil && filepath.IsLocal(rel) && !isPinFS(pinFS) {
		if _, apart := outside(); apart {
			return fmt.Errorf("ebpf: pin: the BPF file system is not mounted, and if this process mounted it, that would end with the process: "+
				"run mount -t bpf bpf %s outside of ip netns exec or the like", pinFS)
		}
		if err := unix.Mount("bpf", pinFS, "bpf", 0, "mode=0700"); err != nil {
			return fmt.Errorf("ebpf: mount the BPF file system at %s: %w", pinFS, err)
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("ebpf: pin: %w", err)
	}
	return nil
}

// unpin removes what Pin has made.
func (x *Executor) unpin() error {
	if x.pinned == "" {
		return nil
	}
	return os.RemoveAll(x.pinned)
}

// pinnedLink is the attachment of a port that outlives the process. The executor
// that comes next makes it its own by putting its program there.
type pinnedLink struct {
	link link.Link
	prog ebpf.ProgramID
}

// attachPinned attaches a program to what an interface receives. If something of
// ours is attached already, it replaces that in one step.
func (x *Executor) attachPinned(num datapath.Port, index int, prog *ebpf.Program) (io.Closer, error) {
	if err := makePinDir(x.linkDir); err != nil {
		return nil, err
	}
	info, err := prog.Info()
	if err != nil {
		return nil, err
	}
	id, _ := info.ID()
	path := filepath.Join(x.linkDir, strconv.Itoa(int(num)))
	if l, err := link.LoadPinnedLink(path, nil); err == nil {
		if at, _ := attachedTo(l); at == index && l.Update(prog) == nil {
			return &pinnedLink{l, id}, nil
		}
		// Of another interface, or of one that is gone.
		_ = errors.Join(l.Unpin(), l.Close())
	}
	l, err := link.AttachTCX(link.TCXOptions{Interface: index, Program: prog, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil, err
	}
	if err := l.Pin(path); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return &pinnedLink{l, id}, nil
}

// attachedTo is the interface and the program of a link; 0 if they are gone.
func attachedTo(l link.Link) (index int, prog ebpf.ProgramID) {
	info, err := l.Info()
	if err != nil || info.TCX() == nil {
		return 0, 0
	}
	return int(info.TCX().Ifindex), info.Program
}

// owned tells whether no other executor has taken the link over.
func (p *pinnedLink) owned() bool {
	_, prog := attachedTo(p.link)
	return prog == 0 || prog == p.prog
}

// Close detaches the program, unless another executor has replaced it.
func (p *pinnedLink) Close() error {
	var err error
	if p.owned() {
		err = p.link.Unpin()
	}
	return errors.Join(err, p.link.Close())
}
