package rack

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// state is what is recorded of a rack while it is up.
type state struct {
	Plan    plan.Plan `json:"plan"`
	Created time.Time `json:"created"`
	// Running maps process names to what was started last.
	Running map[string]kernel.Process `json:"running"`
	// Complete is set once the whole rack has been ready.
	Complete bool `json:"complete"`
}

// lockedRack is a rack's directory, locked against other commands. It is the
// only way to write its state.
type lockedRack struct {
	name string
	dir  string
	lock *os.File
}

func statePath(dir string) string         { return filepath.Join(dir, "state.json") }
func logPath(dir, process string) string  { return plan.ProcessLog(dir, process) }
func notifyPath(dir, name string) string  { return filepath.Join(dir, "notify", name) }
func (l *lockedRack) save(s *state) error { return writeState(l.dir, s) }

// create makes a rack's directory and locks it; it must not exist yet.
func (h *Host) create(name string) (*lockedRack, error) {
	dir := h.dir(name)
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return nil, fmt.Errorf("rack %s: %w", name, err)
	}
	err := os.Mkdir(dir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		return nil, h.taken(name)
	}
	if err != nil {
		return nil, fmt.Errorf("rack %s: %w", name, err)
	}
	l, err := h.lock(name)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"log", "notify"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, errors.Join(fmt.Errorf("rack %s: %w", name, err), l.remove())
		}
	}
	return l, nil
}

// taken says why a rack's name is not free.
func (h *Host) taken(name string) error {
	e := &Error{Rack: name, Msg: "it is up already", Remedy: h.downCommand(name) + " ends it", Err: ErrExists}
	if s, err := readState(h.dir(name)); err != nil || !s.Complete {
		e.Msg, e.Remedy = "it is starting, or a killed run left it half made", h.downCommand(name)+" clears it away"
	}
	return e
}

func (h *Host) downCommand(name string) string { return "`bifrost rack down --rack " + name + "`" }

// lockPatience is how long lock waits for another command, and for a child that
// a killed one was just starting, which holds the lock until it executes.
const lockPatience = time.Second

// lock locks an existing rack's directory; fs.ErrNotExist if there is none.
func (h *Host) lock(name string) (*lockedRack, error) {
	dir := h.dir(name)
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("rack %s: %w", name, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockPatience)
	defer cancel()
	if poll(ctx, func() bool { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil }) != nil {
		f.Close()
		return nil, &Error{
			Rack: name, Msg: "another bifrost rack command is changing it", Remedy: "wait until that has ended, or end it", Err: ErrBusy,
		}
	}
	// The directory may have been removed, even made anew, before it was locked.
	if now, err := os.Stat(dir); err != nil || !sameFile(f, now) {
		f.Close()
		return nil, fmt.Errorf("rack %s: %w", name, fs.ErrNotExist)
	}
	return &lockedRack{name: name, dir: dir, lock: f}, nil
}

func sameFile(f *os.File, info fs.FileInfo) bool {
	open, err := f.Stat()
	return err == nil && os.SameFile(open, info)
}

// unlock gives the lock back.
func (l *lockedRack) unlock() { l.lock.Close() }

// remove deletes the directory, and that of all racks with the last, and unlocks.
func (l *lockedRack) remove() error {
	defer l.unlock()
	if err := os.RemoveAll(l.dir); err != nil {
		return fmt.Errorf("rack %s: %w", l.name, err)
	}
	_ = os.Remove(filepath.Dir(l.dir)) // fails while there are other racks
	return nil
}

// open reads the state of a rack that is up.
func (h *Host) open(name string) (*state, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	s, err := readState(h.dir(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Rack: name, Msg: "it is not up", Remedy: "start it with `bifrost rack up`", Err: ErrNotUp}
	}
	return s, err
}

func readState(dir string) (*state, error) {
	b, err := os.ReadFile(statePath(dir))
	if err != nil {
		return nil, err
	}
	s := &state{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("%s: %w", statePath(dir), err)
	}
	return s, nil
}

// writeState replaces the state as a whole, so that no reader sees half of it.
func writeState(dir string, s *state) error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("rack state: %w", err)
	}
	path := statePath(dir)
	if err := os.WriteFile(path+".new", append(b, '\n'), 0o644); err != nil {
		return fmt.Errorf("rack state: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("rack state: %w", err)
	}
	return nil
}
