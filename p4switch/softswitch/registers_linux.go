package softswitch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"unsafe"

	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"golang.org/x/sys/unix"
)

// registerFile is a file that is mapped into memory and has the registers of a Go executor, in the byte order of the machine. What packets write
// is there at once, so nothing is lost when the process is killed. The file has holes where nothing was written.
type registerFile struct {
	file *os.File
	mem  []byte
}

// mapRegisters makes the registers of a program that lie in a file. The file stays open as long as somebody has them.
func mapRegisters(f *os.File, prog *v1model.Program) (*interp.Registers, error) {
	words := interp.RegisterWords(prog)
	mem, err := unix.Mmap(int(f.Fd()), 0, 8*words, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("map registers: %w", err), f.Close())
	}
	r := &registerFile{f, mem}
	runtime.AddCleanup(r, func(mem []byte) { _ = errors.Join(unix.Munmap(mem), f.Close()) }, mem)
	return interp.NewRegisters(prog, unsafe.Slice((*uint64)(unsafe.Pointer(&mem[0])), words), r), nil
}

// newRegisters makes registers that can be kept, in a file that has no name yet.
func (k *persister) newRegisters(prog *v1model.Program) (*interp.Registers, error) {
	fd, err := unix.Open(k.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("a file for registers in %s: %w", k.dir, err)
	}
	f := os.NewFile(uintptr(fd), k.dir+" (registers)")
	if err := f.Truncate(int64(8 * interp.RegisterWords(prog))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return mapRegisters(f, prog)
}

// inheritRegisters opens the registers of the generation that is restored. If its executor was none of Go, there are none, and they are empty.
func (k *persister) inheritRegisters(prog *v1model.Program) (*interp.Registers, error) {
	f, err := os.OpenFile(k.registerFile(k.gen), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return k.newRegisters(prog)
	}
	if err != nil {
		return nil, err
	}
	if info, err := f.Stat(); err != nil || info.Size() != int64(8*interp.RegisterWords(prog)) {
		return nil, errors.Join(fmt.Errorf("%w: %s has not the size of the program's registers", ErrOtherVersion, f.Name()), err, f.Close())
	}
	return mapRegisters(f, prog)
}

// keepRegisters gives the file of a Go executor's registers the name of a generation, beside those that it has.
func (k *persister) keepRegisters(x *goExecutor, gen uint64) error {
	r, ok := x.Executor.Registers().Owner().(*registerFile)
	if !ok {
		return nil
	}
	path := k.registerFile(gen)
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) { // of a process that was killed
		return err
	}
	err := unix.Linkat(unix.AT_FDCWD, fmt.Sprintf("/proc/self/fd/%d", r.file.Fd()), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	runtime.KeepAlive(r)
	if err != nil {
		return fmt.Errorf("keep registers as %s: %w", path, err)
	}
	return nil
}
