package history

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rotate"
)

// Sizes of the files, in bytes. Each has an older one of the same size beside it.
const (
	callBytes   = 2 << 20
	minuteBytes = 256 << 10
	// maxBatch is how much larger a file may be, since what is written at a time is not divided.
	maxBatch = 2 << 20
	// maxLine bounds a line that is read: a call has 24 steps at most.
	maxLine = 64 << 10
)

// files are the files of a history.
type files struct {
	directory                string
	calls, failures, minutes *file
}

// file is one of them, with the older one.
type file struct {
	rotate.File
	trouble error // why it cannot be written at present; under History.mu
}

func newFiles(directory string) *files {
	of := func(name string, size int64) *file {
		return &file{File: rotate.File{Path: filepath.Join(directory, name), Max: size}}
	}
	return &files{directory: directory, calls: of("calls", callBytes), failures: of("failures", callBytes), minutes: of("minutes", minuteBytes)}
}

func (f *files) all() []*file { return []*file{f.calls, f.failures, f.minutes} }

// close closes the files; nil has none.
func (f *files) close() {
	if f == nil {
		return
	}
	for _, one := range f.all() {
		_ = one.Close() // what is written is with the operating system
	}
}

// write appends lines. They begin with an empty one: what a Gatekeeper that was killed has left
// of a line does not spoil the next one.
func (f *file) write(b *batch) error {
	if err := os.MkdirAll(filepath.Dir(f.Path), 0o700); err != nil {
		return err
	}
	_, err := f.Write(append([]byte{'\n'}, b.text...))
	return err
}

// read reads all that is not older than MaxAge, and says what it has left out.
func (f *files) read(now time.Time) (all []entry, err error) {
	for _, one := range f.all() {
		for _, path := range []string{one.Path + rotate.Older, one.Path} {
			entries, problem := readFile(path, one.Max+maxBatch, now)
			all = append(all, entries...)
			if problem != nil {
				err = errors.Join(err, fmt.Errorf("%s: %w", path, problem))
			}
		}
	}
	return all, err
}

// readFile reads the lines of a file that can be read.
func readFile(path string, size int64, now time.Time) (all []entry, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	lines := bufio.NewReaderSize(io.LimitReader(f, size), maxLine)
	n, bad := 0, 0
	for {
		text, err := lines.ReadSlice('\n')
		whole := true
		for errors.Is(err, bufio.ErrBufferFull) { // too long: the next line is behind it
			whole = false
			_, err = lines.ReadSlice('\n')
		}
		switch e, wrong := readLine(text); {
		case len(text) <= 1: // between two batches, or the end
		case !whole || wrong != nil:
			bad++
		case now.Sub(e.at) <= MaxAge && e.at.Sub(now) < time.Hour: // an hour: somebody has set the clock
			all = append(all, e)
		}
		if n++; n%breath == 0 {
			runtime.Gosched()
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return all, err
		}
	}
	if bad > 0 {
		return all, fmt.Errorf("%d lines are damaged", bad)
	}
	return all, nil
}
