package rack

import (
	"errors"
	"os"

	"github.com/bifrost-rack/bifrost/rack/internal/kernel"
)

// What goes wrong with racks; errors.Is tells them apart.
var (
	ErrNotRoot  = errors.New("not root")
	ErrExists   = errors.New("already there")
	ErrNotUp    = errors.New("not up")
	ErrBusy     = errors.New("busy")
	ErrMissing  = errors.New("program not found")
	ErrNotReady = errors.New("not ready")
	ErrNoBlade  = errors.New("no such blade")
	ErrHidden   = kernel.ErrHidden
)

// Error is what the operations of this package fail with: what is wrong and
// what to do about it.
type Error struct {
	Rack   string // "" if it is about none in particular
	Msg    string
	Remedy string // "" if there is nothing the user can do
	Err    error  // the kind or the cause
}

// Error implements error.
func (e *Error) Error() string {
	s := e.Msg
	if e.Rack != "" {
		s = "rack " + e.Rack + ": " + s
	}
	if e.Remedy != "" {
		s += ": " + e.Remedy
	}
	return s
}

// Unwrap returns the kind or the cause.
func (e *Error) Unwrap() error { return e.Err }

// needRoot refuses what only root can do.
func needRoot() error {
	if os.Geteuid() != 0 {
		return &Error{
			Msg: "network namespaces need root", Remedy: "run it with sudo, or try `bifrost demo`, which needs no privileges", Err: ErrNotRoot,
		}
	}
	return nil
}
