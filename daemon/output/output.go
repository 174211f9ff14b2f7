// Package output keeps what the programs of a compute blade print: for each program a
// file and an older one, in which every line has a time. No two lines of a blade have the
// same time, also across restarts of the daemon, so a time is a place to go on reading.
//
//	program ──▶ Writer ──▶ DIR/shop~arrays~1.log      newest lines
//	                       DIR/shop~arrays~1.log.1    older ones
//	              Read ◀── both, of one program or of all whose names begin alike
package output

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rotate"
)

// Every bound, in one place.
const (
	// DefaultSize is how many bytes a program's file has, and its older one.
	DefaultSize = 4 << 20
	// MaxLine is where a longer line is cut, bytes.
	MaxLine = 8 << 10
	// MaxPrograms is of how many programs output is kept: of those that have ended, those
	// that have printed last.
	MaxPrograms = 512
)

// Config says where output is kept.
type Config struct {
	// Dir is a directory of this blade's own; it is made if it is not there.
	Dir string
	// Size is how many bytes a program's file has before it becomes the older one; 0
	// stands for DefaultSize.
	Size int64
	// Each, if set, sees each line as it is printed, without its end. Programs that print at the same time call it at the same time. It
	// must not keep the line.
	Each func(program string, line []byte)
	// Now tells the time; nil stands for time.Now.
	Now func() time.Time
}

// Store is the output of a blade's programs. Methods may be called concurrently.
type Store struct {
	cfg     Config
	dropped atomic.Uint64

	mu      sync.Mutex
	last    int64                // the latest time given to a line, ns since 1970
	writing map[string]int       // programs that run, with how many writers
	seen    map[string]time.Time // when each program's file was last written to
}

// Open opens a blade's output. Whoever prints comes by Writer.
func Open(cfg Config) (*Store, error) {
	if cfg.Size == 0 {
		cfg.Size = DefaultSize
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	if err := os.MkdirAll(cfg.Dir, 0o750); err != nil {
		return nil, fmt.Errorf("output of programs: %w", err)
	}
	s := &Store{cfg: cfg, writing: map[string]int{}, seen: map[string]time.Time{}}
	entries, err := os.ReadDir(cfg.Dir)
	if err != nil {
		return nil, fmt.Errorf("output of programs: %w", err)
	}
	for _, e := range entries {
		program, ok := programOf(e.Name())
		if !ok {
			continue
		}
		info, err := e.Info()
		if err != nil {
			continue // it is gone by now
		}
		s.seen[program] = info.ModTime()
		last, err := lastTime(filepath.Join(cfg.Dir, e.Name()), info.Size())
		if err != nil {
			return nil, fmt.Errorf("output of programs: %w", err)
		}
		s.last = max(s.last, last)
	}
	return s, nil
}

// Dropped is how many lines could not be kept, because the disk was full or failed.
func (s *Store) Dropped() uint64 { return s.dropped.Load() }

const suffix = ".log"

// FileName is the name of the file for a program, APP~PROGRAM~NUMBER.log. No name that is
// deployed has a tilde.
func FileName(program string) string { return strings.ReplaceAll(program, "/", "~") + suffix }

// programOf returns whose output the file of a name is.
func programOf(file string) (program string, ok bool) {
	name, ok := strings.CutSuffix(file, suffix)
	return strings.ReplaceAll(name, "~", "/"), ok && name != ""
}

// Writer takes what one start of a program prints; the caller must Close it. What cannot
// be kept is dropped and counted, so that a full disk stops no program.
func (s *Store) Writer(program string) *Writer {
	s.mu.Lock()
	s.writing[program]++
	s.seen[program] = s.cfg.Now()
	var old []string
	for len(s.seen) > MaxPrograms {
		name, ok := s.oldest()
		if !ok {
			break
		}
		delete(s.seen, name)
		old = append(old, name)
	}
	s.mu.Unlock()
	for _, name := range old {
		if err := rotate.Remove(s.path(name)); err != nil {
			s.dropped.Add(1)
		}
	}
	w := &Writer{store: s, program: program, file: rotate.File{Path: s.path(program), Max: s.cfg.Size}}
	w.Each = w.keep
	return w
}

// oldest is the program that has printed longest ago among those that do not run. The
// caller holds s.mu.
func (s *Store) oldest() (name string, ok bool) {
	for p, at := range s.seen {
		if s.writing[p] == 0 && (!ok || at.Before(s.seen[name])) {
			name, ok = p, true
		}
	}
	return name, ok
}

func (s *Store) path(program string) string { return filepath.Join(s.cfg.Dir, FileName(program)) }

// stamp returns a time that no other line of the blade has.
func (s *Store) stamp(program string) time.Time {
	now := s.cfg.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[program] = now
	s.last = max(s.last+1, now.UnixNano())
	return time.Unix(0, s.last)
}

// Lines divides what is written to it into lines. It is for one goroutine at a time.
type Lines struct {
	// Each takes a line without its end; MaxLine bytes at most. It must not keep it.
	Each func(line []byte)

	rest []byte // a line without an end so far
}

// Write implements io.Writer; it does not fail.
func (l *Lines) Write(b []byte) (int, error) {
	l.rest = append(l.rest, b...)
	for {
		end := bytes.IndexByte(l.rest, '\n')
		switch {
		case end >= 0 && end <= MaxLine:
			l.Each(l.rest[:end])
			l.rest = l.rest[end+1:]
		case len(l.rest) >= MaxLine:
			l.Each(l.rest[:MaxLine])
			l.rest = l.rest[MaxLine:]
		default:
			return len(b), nil
		}
	}
}

// Close implements io.Closer: what came without an end of line is one.
func (l *Lines) Close() error {
	if len(l.rest) > 0 {
		l.Each(l.rest)
		l.rest = nil
	}
	return nil
}

// Writer keeps what a program prints. It is for one goroutine at a time.
type Writer struct {
	Lines
	store   *Store
	program string
	file    rotate.File
}

var _ io.WriteCloser = (*Writer)(nil)

// keep writes one line: its time in nanoseconds since 1970, a space, its text.
func (w *Writer) keep(text []byte) {
	if each := w.store.cfg.Each; each != nil {
		each(w.program, text)
	}
	line := strconv.AppendInt(nil, w.store.stamp(w.program).UnixNano(), 10)
	line = append(append(append(line, ' '), bytes.ToValidUTF8(text, []byte("�"))...), '\n')
	if _, err := w.file.Write(line); err != nil {
		w.store.dropped.Add(1)
	}
}

// Close implements io.Closer.
func (w *Writer) Close() error {
	_ = w.Lines.Close() // it does not fail
	w.store.mu.Lock()
	if w.store.writing[w.program]--; w.store.writing[w.program] == 0 {
		delete(w.store.writing, w.program)
	}
	w.store.mu.Unlock()
	return w.file.Close()
}

// Programs returns the names of the programs of which there is output, in order.
func (s *Store) Programs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for p := range s.seen {
		all = append(all, p)
	}
	slices.Sort(all)
	return all
}

// errMalformed is the error of a file that was not written by a Writer.
var errMalformed = errors.New("the file is not the output of a program as a daemon keeps it")
