package softswitch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"golang.org/x/sys/unix"
)

// Where what switches keep lies: journals, and what is pinned. Both are gone when
// the machine starts anew.
// In the BPF file system, what is pinned is in a directory of the same name.
const (
	keepRoot = "/run/" + keepBase
	keepBase = "bifrost-switch"
)

// ErrKept means that the name is in use by another switch.
var ErrKept = errors.New("in use by another switch")

// persister keeps a switch's pipeline beyond its process (p4rt.Persister):
//
//	/run/bifrost-switch/NAME/lock           held by the process
//	/run/bifrost-switch/NAME/journal        the program, what controllers wrote, and their highest election ids
//	/run/bifrost-switch/NAME/registers-5    registers of the Go executor of generation 5
//	/sys/fs/bpf/bifrost-switch/NAME/5/…     maps of the executor of generation 5
//	/sys/fs/bpf/bifrost-switch/NAME/ports/3 the attachment of port 3
//
// Each pipeline that is committed is a generation. Its maps are pinned first, or the file of its registers gets its name; then
// the journal that names it replaces the former one, in one step; then the ports
// move to it, one by one; and the former generation's executor removes its pins
// when it is closed. A process that is killed in between leaves pins that no
// journal names, which the next one removes (sweep).
type persister struct {
	dir, pins string
	lock      *os.File
	gen       uint64
	current   datapath.Datapath // what generation gen is of; nil before the first
	journal   *journal
}

// pinner is an executor whose program and maps outlive the process.
type pinner interface {
	// Pin pins them in a directory of the BPF file system, which Close removes.
	Pin(dir string) error
}

var keepName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$`)

// keepDirs are the two directories of a name.
func keepDirs(name string) (dir, pins string, err error) {
	if !keepName.MatchString(name) {
		return "", "", fmt.Errorf("%q cannot name what is kept: use up to 64 letters, digits, - and _", name)
	}
	return filepath.Join(keepRoot, name), filepath.Join(pinFS(), keepBase, name), nil
}

// newPersister takes a name, and finds out where its journal stands.
func newPersister(name string) (*persister, error) {
	dir, pins, err := keepDirs(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("keeping %s: %w", name, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("keeping %s: %w", name, err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			err = ErrKept
		}
		return nil, fmt.Errorf("keeping %s: %w", name, err)
	}
	return &persister{dir: dir, pins: pins, lock: lock}, nil
}

func (k *persister) path() string { return filepath.Join(k.dir, "journal") }

// ports is where the attachments of ports are pinned.
func (k *persister) ports() string { return filepath.Join(k.pins, "ports") }

// generation is where a generation is pinned.
func (k *persister) generation(n uint64) string {
	return filepath.Join(k.pins, strconv.FormatUint(n, 10))
}

// Begin implements p4rt.Persister. After an error nothing is kept, rather than
// something wrong.
func (k *persister) Begin(dp datapath.Datapath, config *p4v1.ForwardingPipelineConfig, state []*p4v1.WriteRequest) error {
	err := k.begin(dp, config, state)
	if err != nil {
		err = errors.Join(err, k.forget())
	}
	return err
}

// forget removes the journal.
func (k *persister) forget() error {
	k.endJournal()
	if err := os.Remove(k.path()); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

func (k *persister) begin(dp datapath.Datapath, config *p4v1.ForwardingPipelineConfig, state []*p4v1.WriteRequest) error {
	gen := k.gen
	if dp != k.current {
		gen++
		if err := k.keepExecutor(dp, gen); err != nil {
			return err
		}
	}
	j, err := createJournal(k.path(), journalHeader{journalFormat, gen}, config, state)
	if err != nil {
		return err
	}
	k.endJournal()
	if gen != k.gen {
		_ = os.Remove(k.registerFile(k.gen)) // if it is left, sweep removes it
	}
	k.gen, k.current, k.journal = gen, dp, j
	return nil
}

// keepExecutor makes what an executor has outlive the process, as a generation.
func (k *persister) keepExecutor(dp datapath.Datapath, gen uint64) error {
	switch x := dp.(type) {
	case pinner:
		return x.Pin(k.generation(gen))
	case *goExecutor:
		return k.keepRegisters(x, gen)
	}
	return nil
}

// registerFile is where the registers of a generation's Go executor are.
func (k *persister) registerFile(n uint64) string {
	return filepath.Join(k.dir, registerFiles+strconv.FormatUint(n, 10))
}

// registerFiles is what the names of files with registers begin with.
const registerFiles = "registers-"

func (k *persister) endJournal() {
	if k.journal != nil {
		_ = k.journal.f.Close()
		k.journal = nil
	}
}

// Append implements p4rt.Persister. After an error nothing is kept until the next
// Begin, rather than something wrong.
func (k *persister) Append(r *p4v1.WriteRequest) (long bool, err error) {
	if k.journal == nil {
		return false, nil // said already
	}
	if long, err = k.journal.add(r); err != nil {
		err = errors.Join(err, k.forget())
	}
	return long, err
}

// sweep removes what is pinned, or has registers, and belongs neither to the current generation nor
// to one of the ports.
func (k *persister) sweep(ports map[string]bool) error {
	var errs []error
	names := func(dir string) []fs.DirEntry {
		es, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
		return es
	}
	for _, e := range names(k.ports()) {
		if !ports[e.Name()] {
			errs = append(errs, os.Remove(filepath.Join(k.ports(), e.Name())))
		}
	}
	for _, e := range names(k.pins) {
		if dir := filepath.Join(k.pins, e.Name()); dir != k.ports() && dir != k.generation(k.gen) {
			errs = append(errs, os.RemoveAll(dir))
		}
	}
	for _, e := range names(k.dir) {
		if path := filepath.Join(k.dir, e.Name()); strings.HasPrefix(e.Name(), registerFiles) && path != k.registerFile(k.gen) {
			errs = append(errs, os.Remove(path))
		}
	}
	return errors.Join(errs...)
}

// close removes all that was kept: the switch has ended as it should.
func (k *persister) close() error {
	k.endJournal()
	return errors.Join(os.RemoveAll(k.pins), os.RemoveAll(k.dir), k.lock.Close())
}

// Discard removes what a killed switch has kept under a name; interfaces that
// still forward stop to do so. It fails with ErrKept if a switch runs that has the
// name. There may be nothing.
func Discard(name string) error {
	dir, _, err := keepDirs(name)
	if err != nil {
		return err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	k, err := newPersister(name)
	if err != nil {
		return err
	}
	return k.close()
}

// Restore takes over the pipeline that a killed switch has kept under the
// configuration's name, with all its entries, and tells which; nil is none. Where
// it ran in the kernel it has gone on, and hands over when interfaces are attached.
func (s *Switch) Restore() (config *p4v1.ForwardingPipelineConfig, err error) {
	if s.keep == nil {
		return nil, nil //nolint:nilnil // there is none
	}
	f, err := os.Open(s.keep.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil //nolint:nilnil // there is none
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := readJournal(f)
	if err == nil {
		s.keep.gen = r.Generation
		s.inherit = s.keep.generation(r.Generation)
		err = s.srv.Restore(r.config, r.next)
		s.inherit = ""
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.keep.dir, err)
	}
	s.restored = true
	return r.config, nil
}
