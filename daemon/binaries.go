package daemon

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// maxBinaries is how many files of programs a blade keeps; those that it has run last stay.
const maxBinaries = 16

// Binaries keeps the files of programs by their content, so that a program can be started
// again after its file has been replaced: the next node of one that has calls to finish runs
// what the last one ran, and a deployment can be rolled back. At most 16 are kept. Methods
// may be called concurrently.
type Binaries struct {
	dir string

	mu    sync.Mutex
	known map[string]seen // by path
}

// seen is the content that a file had when it was last read, and by what a change of it would
// be noticed.
type seen struct {
	inode   uint64
	size    int64
	changed time.Time
	hash    string
}

// OpenBinaries uses a directory, which is made if it is not there. Nobody else may write to it.
func OpenBinaries(dir string) (*Binaries, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil { // whoever a program runs as executes it
		return nil, fmt.Errorf("directory for the files of programs: %w", err)
	}
	return &Binaries{dir: dir, known: map[string]seen{}}, nil
}

// Find returns the file to run for a program: the program's own, if it has the content with
// a hash (SHA-256 in hexadecimal), or else one with that content that was found here before.
// What is found is kept.
func (b *Binaries) Find(program, hash string) (string, error) {
	path, err := exec.LookPath(locate(program))
	if err != nil {
		return b.kept(program, hash, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	now, err := b.hash(path)
	switch {
	case err != nil:
		return "", err
	case now != hash:
		return b.keptLocked(program, hash, fmt.Errorf("%s has other content (SHA-256 %.12s…) than was deployed (%.12s…)", path, now, hash))
	}
	if err := b.keep(path, hash); err != nil {
		return "", fmt.Errorf("keep %s: %w", path, err)
	}
	return path, nil
}

// kept returns the file with a content that was kept before; otherwise says why the program's
// own will not do.
func (b *Binaries) kept(program, hash string, otherwise error) (string, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.keptLocked(program, hash, otherwise)
}

func (b *Binaries) keptLocked(program, hash string, otherwise error) (string, error) {
	path := filepath.Join(b.dir, hash)
	now, err := b.hash(path)
	if err != nil || now != hash {
		return "", fmt.Errorf("%w, and this blade has not kept the file that was deployed: deploy %s again", otherwise, filepath.Base(program))
	}
	return path, errors.Join(os.Chtimes(path, time.Now(), time.Time{}))
}

// hash returns the hash of a file's content, which is read only if the file has changed.
func (b *Binaries) hash(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", err
	}
	now := seen{size: info.Size(), changed: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		now.inode, now.changed = s.Ino, changed(s)
	}
	if was, ok := b.known[path]; ok {
		if now.hash = was.hash; now == was {
			return was.hash, nil
		}
	}
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	now.hash = hex.EncodeToString(h.Sum(nil))
	b.known[path] = now
	return now.hash, nil
}

// keep copies a file, unless that content is there.
func (b *Binaries) keep(path, hash string) error {
	to := filepath.Join(b.dir, hash)
	now := time.Now()
	if err := os.Chtimes(to, now, time.Time{}); err == nil {
		return nil
	}
	from, err := os.Open(path)
	if err != nil {
		return err
	}
	defer from.Close()
	f, err := os.CreateTemp(b.dir, "new-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone, unless something has failed
	_, err = io.Copy(f, from)
	if err = errors.Join(err, f.Chmod(0o755), f.Close()); err != nil {
		return err
	}
	return errors.Join(os.Rename(f.Name(), to), b.prune())
}

// prune removes the files that were not used for the longest time.
func (b *Binaries) prune() error {
	all, err := os.ReadDir(b.dir)
	if err != nil {
		return err
	}
	type file struct {
		name string
		used time.Time
	}
	var files []file
	for _, e := range all {
		info, err := e.Info()
		switch {
		case errors.Is(err, fs.ErrNotExist) || strings.HasPrefix(e.Name(), "new-"):
			continue
		case err != nil:
			return err
		}
		last := info.ModTime()
		if s, ok := info.Sys().(*syscall.Stat_t); ok {
			last = used(s)
		}
		files = append(files, file{e.Name(), last})
	}
	slices.SortFunc(files, func(a, b file) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.name, b.name)) })
	for _, f := range files[min(len(files), maxBinaries):] {
		if rerr := os.Remove(filepath.Join(b.dir, f.name)); !errors.Is(rerr, fs.ErrNotExist) { // another blade has removed it
			err = errors.Join(err, rerr)
		}
	}
	return err
}
