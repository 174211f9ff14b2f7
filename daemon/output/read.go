package output

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rotate"
)

// Line is one line that a program has printed.
type Line struct {
	Program string
	Time    time.Time
	Text    string
}

// Query says which lines are wanted.
type Query struct {
	// Name is that of a program, or what the names of several begin with: "shop" has
	// shop/arrays/1 and shop/store/1. "" has all.
	Name string
	// After leaves out lines up to this time; zero leaves out none.
	After time.Time
	// Last, unless it is 0, asks for the latest lines instead of the first ones.
	Last int
	// Max is how many bytes of files the answer may be made of.
	Max int
}

// Read returns lines in the order of their times. With more there are further ones: before
// them if the last were asked for, else behind them.
func (s *Store) Read(q Query) (lines []Line, more bool, err error) {
	for _, program := range s.Programs() {
		if !Matches(program, q.Name) {
			continue
		}
		some, further, err := s.readProgram(program, &q)
		if err != nil {
			return nil, false, err
		}
		lines, more = append(lines, some...), more || further
	}
	slices.SortStableFunc(lines, func(a, b Line) int { return cmp.Compare(a.Time.UnixNano(), b.Time.UnixNano()) })
	if q.Last > 0 {
		slices.Reverse(lines)
	}
	used := 0
	cut := slices.IndexFunc(lines, func(l Line) bool {
		used += len(l.Text) + overhead
		return used > max(q.Max, MaxLine+overhead)
	})
	if q.Last > 0 && len(lines) > q.Last && (cut < 0 || cut > q.Last) {
		cut = q.Last
	}
	if cut >= 0 {
		lines, more = lines[:cut], true
	}
	if q.Last > 0 {
		slices.Reverse(lines)
	}
	return lines, more, nil
}

// overhead is what a line takes in a file beside its text.
const overhead = 21

// Matches reports whether a program is meant by a name: its own, or the beginning of its
// own up to a slash.
func Matches(program, name string) bool {
	rest, ok := strings.CutPrefix(program, name)
	return ok && (name == "" || rest == "" || rest[0] == '/')
}

// readProgram reads as many lines of a program as may be wanted.
func (s *Store) readProgram(program string, q *Query) (lines []Line, more bool, err error) {
	room := max(q.Max, MaxLine+overhead)
	paths := []string{s.path(program) + rotate.Older, s.path(program)}
	if q.Last > 0 {
		slices.Reverse(paths)
	}
	for _, path := range paths {
		if room <= 0 {
			return lines, true, nil
		}
		b, further, err := readFile(path, q, room)
		if err != nil {
			return nil, false, err
		}
		room -= len(b)
		some, err := parse(b, program, path)
		if err != nil {
			return nil, false, err
		}
		if q.Last > 0 {
			lines = append(some, lines...)
		} else {
			lines = append(lines, some...)
		}
		if further {
			return lines, true, nil
		}
	}
	return lines, false, nil
}

// readFile returns whole lines of a file, room bytes at most but one at least. A file
// that is not there has none. One that becomes the older file meanwhile is read as it was.
func readFile(path string, q *Query, room int) (b []byte, more bool, err error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, false, err
	}
	size := info.Size()
	from, err := firstAfter(f, size, q.After.UnixNano(), q.After.IsZero())
	if err != nil {
		return nil, false, fmt.Errorf("%s: %w", path, err)
	}
	to := size
	room = max(room, MaxLine+overhead)
	switch {
	case size-from <= int64(room):
	case q.Last > 0:
		more = true
		if from, err = nextLine(f, size, size-int64(room)); err != nil {
			return nil, false, err
		}
	default:
		more, to = true, from+int64(room)
	}
	b = make([]byte, to-from)
	n, err := f.ReadAt(b, from)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, false, err
	}
	b = b[:n]
	return b[:bytes.LastIndexByte(b, '\n')+1], more, nil // the last line may be under way
}

// parse reads lines of a file.
func parse(b []byte, program, path string) (lines []Line, err error) {
	for line := range bytes.Lines(b) {
		stamp, text, ok := bytes.Cut(bytes.TrimSuffix(line, []byte("\n")), []byte(" "))
		ns, err := strconv.ParseInt(string(stamp), 10, 64)
		if !ok || err != nil {
			return nil, fmt.Errorf("%s: %w", path, errMalformed)
		}
		lines = append(lines, Line{Program: program, Time: time.Unix(0, ns), Text: string(text)})
	}
	return lines, nil
}

// firstAfter is where the first line begins that is later than a time.
func firstAfter(f io.ReaderAt, size, after int64, all bool) (int64, error) {
	if all {
		return 0, nil
	}
	var failed error
	n := sort.Search(int(size), func(i int) bool { // of positions: the line that begins there or behind
		at, err := nextLine(f, size, int64(i))
		if err != nil || at >= size {
			failed = errors.Join(failed, err)
			return true
		}
		t, err := timeAt(f, at)
		failed = errors.Join(failed, err)
		return err != nil || t > after
	})
	if failed != nil {
		return 0, failed
	}
	return nextLine(f, size, int64(n))
}

// nextLine is where the first line begins at a position or behind it; size if none does.
func nextLine(f io.ReaderAt, size, at int64) (int64, error) {
	if at <= 0 {
		return 0, nil
	}
	b := make([]byte, MaxLine+overhead)
	for at--; at < size; at += int64(len(b)) {
		n, err := f.ReadAt(b, at)
		if err != nil && !errors.Is(err, io.EOF) {
			return 0, err
		}
		if i := bytes.IndexByte(b[:n], '\n'); i >= 0 {
			return at + int64(i) + 1, nil
		}
	}
	return size, nil
}

// timeAt is the time of the line that begins at a position.
func timeAt(f io.ReaderAt, at int64) (int64, error) {
	b := make([]byte, overhead)
	n, err := f.ReadAt(b, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, err
	}
	stamp, _, ok := bytes.Cut(b[:n], []byte(" "))
	ns, err := strconv.ParseInt(string(stamp), 10, 64)
	if !ok || err != nil {
		return 0, errMalformed
	}
	return ns, nil
}

// lastTime is the time of a file's last line, 0 if it has none.
func lastTime(path string, size int64) (int64, error) {
	b, _, err := readFile(path, &Query{Last: 1}, MaxLine+overhead)
	if err != nil || size == 0 {
		return 0, err
	}
	b = bytes.TrimSuffix(b, []byte("\n"))
	b = b[bytes.LastIndexByte(b, '\n')+1:]
	stamp, _, _ := bytes.Cut(b, []byte(" "))
	ns, err := strconv.ParseInt(string(stamp), 10, 64)
	if err != nil && len(b) > 0 {
		return 0, fmt.Errorf("%s: %w", path, errMalformed)
	}
	return ns, nil
}
