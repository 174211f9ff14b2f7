package disk

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"hash/fnv"
	"os"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/vfs"
)

// A write-ahead log ends where its checksums end: after damage as after a commit whose
// writing was cut off. So the number of each commit is in the store, and a note of the
// last one that was acknowledged stands in a file of its own, the tail, which is written
// after each commit. A store that ends before its tail has lost acknowledged commits.
//
// Only a loss of power may do that, and only to a log that is not synced: its last
// commits may be gone where the tail is not. The tail tells in which boot of the machine
// it was written, and whether all was synced then.
//
//	0  4  magic 0xB10C7A11
//	4  4  CRC-32C of what follows
//	8  8  number of the last commit that was acknowledged
//	16 8  hash of the machine's boot id
//	24 1  1 if the disk had all commits
const (
	tailMagic = 0xB10C7A11
	tailSize  = 25
)

// thisBoot is the machine's boot id; "" if it does not tell, which counts as one boot.
func thisBoot() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// TailName is the name of the note in the store's directory.
const TailName = "acknowledged"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// tail is the note of the last commit.
type tail struct {
	file vfs.File
	name string
	boot uint64
	o    *Options
	buf  [tailSize]byte
}

func bootHash(id string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(id)) // has no errors
	return h.Sum64()
}

// openTail compares a store's last commit with the tail, and opens that. A store without
// one is taken as it is: it is new, or somebody has decided so.
func openTail(directory string, commits uint64, o *Options) (*tail, error) {
	t := &tail{boot: bootHash(o.Boot), name: filepath.Join(directory, TailName), o: o}
	_, err := o.FS.Stat(t.name)
	fresh := errors.Is(err, os.ErrNotExist)
	if t.file, err = o.FS.OpenReadWrite(t.name); err != nil {
		return nil, err
	}
	if !fresh {
		err = t.check(commits)
	}
	if err == nil {
		err = t.note(commits)
	}
	if err != nil {
		return nil, errors.Join(err, t.file.Close())
	}
	return t, nil
}

// check refuses a store that ends before its tail.
func (t *tail) check(commits uint64) error {
	b := make([]byte, tailSize)
	n, err := t.file.ReadAt(b, 0)
	be := binary.BigEndian
	if n < tailSize || be.Uint32(b) != tailMagic || be.Uint32(b[4:]) != crc32.Checksum(b[8:], castagnoli) {
		if n == 0 {
			return nil // whoever made it was cut off before the first commit
		}
		return errors.Join(t.lost("%s, the note of the last commit, is damaged; the store ends with commit %d", t.name, commits), ignoreEOF(err, n))
	}
	last, synced := be.Uint64(b[8:]), b[24] == 1
	if commits >= last || be.Uint64(b[16:]) != t.boot && !synced {
		return nil
	}
	return t.lost("it ends with commit %d, and %d were acknowledged: a file of it was damaged or shortened", commits, last)
}

// lost is the error of a store that may have lost commits.
func (t *tail) lost(format string, args ...any) error {
	return &shortenedError{t.o.corrupt(format, args...), t.name}
}

func ignoreEOF(err error, n int) error {
	if n > 0 && n < tailSize {
		return nil // it is too short, as was said
	}
	return err
}

// note writes down that a commit, and all before it, can be acknowledged.
func (t *tail) note(commit uint64) error { return t.write(commit, t.o.Sync) }

func (t *tail) write(commit uint64, synced bool) error {
	be := binary.BigEndian
	b := t.buf[:]
	be.PutUint32(b, tailMagic)
	be.PutUint64(b[8:], commit)
	be.PutUint64(b[16:], t.boot)
	if b[24] = 0; synced {
		b[24] = 1
	}
	be.PutUint32(b[4:], crc32.Checksum(b[8:], castagnoli))
	_, err := t.file.WriteAt(b, 0)
	return err
}

// close says that the disk has all commits.
func (t *tail) close(commit uint64) error {
	return errors.Join(t.write(commit, true), t.file.Sync(), t.file.Close())
}
