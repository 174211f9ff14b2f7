package wal

import (
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/internal/disk"
)

// The errors of a log; compare with errors.Is.
var (
	// ErrFull: the batch would make the log exceed Options.Limit. Deletions are
	// always taken.
	ErrFull = errors.New("the log is full")
	// ErrBusy: too much waits to be logged; try again when some of it is.
	ErrBusy = errors.New("the log's queue is full")
	// ErrClosed: the log was closed; the batch is not logged.
	ErrClosed = errors.New("the log is closed")
	// ErrFailed: the log could not write and takes nothing any more. Whether the
	// batch is logged is not known.
	ErrFailed = errors.New("the log has failed")
	// ErrLocked: another process, or another Log in this one, has the log open.
	ErrLocked = disk.ErrLocked
	// ErrTooLarge: the batch exceeds MaxBatch; it can never be logged.
	ErrTooLarge = errors.New("the batch is too large")
	// ErrCorrupt: what was read is not what was written.
	ErrCorrupt = disk.ErrCorrupt
	// ErrVersion: another version of Bifröst wrote the log.
	ErrVersion = disk.ErrVersion
)

// corruptf returns an error that wraps ErrCorrupt and says what and where.
func corruptf(format string, args ...any) error {
	return fmt.Errorf("the log is %w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
}

// versionError says which version of what was found.
func versionError(what string, found, known uint64) error {
	return fmt.Errorf("the log is %w: %s has version %d, this program knows %d", ErrVersion, what, found, known)
}

// away is what it means to move a log's directory away.
const away = "which begins a new rack"

// Refuse adds to the reason why a log is not used what an operator can do.
func Refuse(err error) error { return disk.Refuse(err, away) }
