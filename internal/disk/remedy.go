package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble"
)

// RefusedError is the error of a store that is not opened: the reason, and what an operator can
// do.
type RefusedError struct {
	Err    error
	Remedy string
}

// Error implements error.
func (e *RefusedError) Error() string { return e.Err.Error() + "; remedy: " + e.Remedy }

// Unwrap returns the reason.
func (e *RefusedError) Unwrap() error { return e.Err }

// shortenedError is the reason of a store that ends before its tail.
type shortenedError struct {
	error
	tail string // the file
}

func (e *shortenedError) Unwrap() error { return e.error }

// Refuse adds to the reason why a store is not opened what an operator can do, unless that is
// there. away is what moving its directory away means, as a clause. Owners of a store use it for
// what they find in the store.
func Refuse(err error, away string) error {
	if refused := (*RefusedError)(nil); err == nil || errors.As(err, &refused) {
		return err
	}
	return &RefusedError{err, remedy(err, away)}
}

func remedy(err error, away string) string {
	damaged := "restore the directory from a copy of this moment; or move the directory away, " + away
	shortened := (*shortenedError)(nil)
	switch {
	case errors.Is(err, ErrLocked):
		return "end the process that has it open"
	case errors.Is(err, ErrVersion):
		return "start the version of Bifröst that wrote it; or move the directory away, " + away
	case errors.As(err, &shortened):
		return fmt.Sprintf("%s; or remove %s, to go on without the lost commits: calls that they tell of may run again, or be lost", damaged, shortened.tail)
	case errors.Is(err, ErrCorrupt):
		return damaged
	case errors.Is(err, fs.ErrPermission):
		return "the directory and its files must belong to the user that runs this program"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "make room on the disk"
	}
	return "repair the disk, or " + damaged
}

// explain makes Pebble's errors recognisable.
func (s *Store) explain(err error) error {
	path := (*fs.PathError)(nil)
	bug := runtime.Error(nil)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist) && errors.As(err, &path):
		return s.o.corrupt("its file %s is missing", filepath.Base(path.Path))
	case errors.As(err, &bug): // Pebble does not check whether all files are there that name others
		return s.o.corrupt("some of its files are missing (Pebble: %v)", err)
	}
	return s.explainRead(err)
}

// explainRead is explain for what fails once the store is open.
func (s *Store) explainRead(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, pebble.ErrNotFound):
		return ErrNotFound
	case pebble.IsCorruptionError(err):
		return fmt.Errorf("%s is %w: %w", s.o.Name, ErrCorrupt, err)
	case strings.Contains(err.Error(), "written in format major version"):
		return fmt.Errorf("%s is %w: %w", s.o.Name, ErrVersion, err)
	}
	return err
}
