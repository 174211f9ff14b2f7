package rack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/daemon/output"
)

// Log is one process's output.
type Log struct {
	Process string
	Path    string
	// Kept are the directories in which blades keep what the program Instance prints; there
	// is no Path then.
	Kept     []string
	Instance string
}

// Logs returns the logs of a blade's processes, or of the process of that name. A
// program's has all that it has printed, on whichever blades.
func (h *Host) Logs(rack, name string) ([]Log, error) {
	s, err := h.open(rack)
	if err != nil {
		return nil, err
	}
	var logs []Log
	for _, p := range s.Plan.Processes {
		if p.Blade == name || p.Name == name {
			logs = append(logs, Log{Process: p.Name, Path: logPath(h.dir(rack), p.Name)})
		}
	}
	for _, d := range s.Plan.Deployed {
		if d.Name == name || d.Blades[0] == name {
			logs = append(logs, programLog(h.dir(rack), &s.Plan, &d))
		}
	}
	if len(logs) == 0 {
		return nil, noBlade(rack, name, s.Plan)
	}
	return logs, nil
}

// Print writes the log's last n lines, and with follow what is added until ctx
// ends or the rack goes down.
func (l Log) Print(ctx context.Context, w io.Writer, n int, follow bool) error {
	if l.Path == "" {
		return l.printKept(ctx, w, n, follow)
	}
	f, err := os.Open(l.Path)
	if err != nil {
		return fmt.Errorf("log of %s: %w", l.Process, err)
	}
	defer func() { _ = f.Close() }() // it was only read
	if err := tail(w, f, n); err != nil {
		return fmt.Errorf("log of %s: %w", l.Process, err)
	}
	for follow && ctx.Err() == nil {
		copied, err := io.Copy(w, f)
		if err != nil {
			return fmt.Errorf("log of %s: %w", l.Process, err)
		}
		next, err := os.Open(l.Path)
		switch {
		case errors.Is(err, os.ErrNotExist) && copied == 0:
			return nil
		case err == nil && copied == 0 && !same(f, next): // it has become the older one
			_ = f.Close()
			f = next
			continue
		case err == nil:
			_ = next.Close()
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
	return nil
}

// same reports whether two names have been those of one file.
func same(a, b *os.File) bool {
	x, err := a.Stat()
	y, err2 := b.Stat()
	return err == nil && err2 == nil && os.SameFile(x, y)
}

// printKept is Print for what blades keep of a program.
func (l Log) printKept(ctx context.Context, w io.Writer, n int, follow bool) error {
	lines, err := l.kept(output.Query{Last: n})
	var last time.Time
	for {
		if err != nil {
			return fmt.Errorf("log of %s: %w", l.Process, err)
		}
		for _, line := range lines {
			if _, err := fmt.Fprintln(w, line.Text); err != nil {
				return err
			}
			last = line.Time
		}
		if _, err := os.Stat(l.Kept[0]); !follow || ctx.Err() != nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
		lines, err = l.kept(output.Query{After: last})
	}
}

// kept reads what the blades keep of a program, in the order of its times.
func (l Log) kept(q output.Query) (all []output.Line, err error) {
	q.Name, q.Max = l.Instance, maxKept
	for _, dir := range l.Kept {
		if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
			continue // nothing has run there
		}
		s, err := output.Open(output.Config{Dir: dir})
		if err != nil {
			return nil, err
		}
		lines, _, err := s.Read(q)
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	slices.SortStableFunc(all, func(a, b output.Line) int { return a.Time.Compare(b.Time) })
	if q.Last > 0 && len(all) > q.Last {
		all = all[len(all)-q.Last:]
	}
	return all, nil
}

// maxKept is how many bytes of a program's lines are read at a time.
const maxKept = 1 << 20

// followInterval is how often a followed log is looked at.
const followInterval = 100 * time.Millisecond

// tailBlock is how much tail reads at a time, bytes.
const tailBlock = 64 << 10

// tail copies the last n lines of f to w and leaves f at its end.
func tail(w io.Writer, f io.ReadSeeker, n int) error {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	start, err := lineStart(f, end, n)
	if err != nil {
		return err
	}
	if _, err := f.Seek(start, io.SeekStart); err != nil {
		return err
	}
	_, err = io.CopyN(w, f, end-start)
	return err
}

// lineStart returns where the last n lines before end begin. It reads backwards,
// so a long log costs no more than its tail.
func lineStart(f io.ReadSeeker, end int64, n int) (int64, error) {
	block := make([]byte, tailBlock)
	for at := end; at > 0; {
		size := min(at, tailBlock)
		at -= size
		if _, err := f.Seek(at, io.SeekStart); err != nil {
			return 0, err
		}
		b := block[:size]
		if _, err := io.ReadFull(f, b); err != nil {
			return 0, err
		}
		if at+size == end && b[size-1] == '\n' {
			b = b[:size-1] // the newline of the last line begins no other
		}
		for i := bytes.LastIndexByte(b, '\n'); i >= 0; i = bytes.LastIndexByte(b[:i], '\n') {
			if n--; n <= 0 {
				return at + int64(i) + 1, nil
			}
		}
	}
	return 0, nil
}
