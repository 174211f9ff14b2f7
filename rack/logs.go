package rack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
)

// Log is one process's output.
type Log struct {
	Process string
	Path    string
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
			logs = append(logs, Log{Process: d.Name, Path: programLog(h.dir(rack), &d)})
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
	f, err := os.Open(l.Path)
	if err != nil {
		return fmt.Errorf("log of %s: %w", l.Process, err)
	}
	defer f.Close()
	if err := tail(w, f, n); err != nil {
		return fmt.Errorf("log of %s: %w", l.Process, err)
	}
	for follow && ctx.Err() == nil {
		copied, err := io.Copy(w, f)
		if err != nil {
			return fmt.Errorf("log of %s: %w", l.Process, err)
		}
		if _, err := os.Stat(l.Path); copied == 0 && errors.Is(err, os.ErrNotExist) {
			return nil
		}
		select {
		case <-ctx.Done():
		case <-time.After(followInterval):
		}
	}
	return nil
}

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
