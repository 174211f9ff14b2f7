package p4rtclient

import (
	"errors"
	"fmt"
	"strings"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors of sessions.
var (
	// ErrNotPrimary: another controller with a higher election id is primary.
	ErrNotPrimary = errors.New("another controller is primary")
	// ErrBusy: the queue towards the switch is full; the packet was dropped.
	ErrBusy = errors.New("the queue towards the switch is full")
	// ErrClosed: the session has ended.
	ErrClosed = errors.New("the session with the switch has ended")
)

// UpdateError is what the switch says about one update of a batch.
type UpdateError struct {
	Index   int // in the batch
	Code    codes.Code
	Message string
}

// BatchError says which updates of a batch failed; all others are in force.
type BatchError struct{ Updates []UpdateError }

// Error implements error.
func (e *BatchError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d updates failed", len(e.Updates))
	for i, u := range e.Updates {
		if i == 3 {
			b.WriteString("; …")
			break
		}
		fmt.Fprintf(&b, "; update %d: %s: %s", u.Index, u.Code, u.Message)
	}
	return b.String()
}

// batchError turns the error of a Write of n updates into a BatchError, if the
// switch says something about each of them.
func batchError(err error, n int) error {
	st, ok := status.FromError(err)
	if !ok || st.Code() != codes.Unknown || len(st.Details()) != n {
		return fmt.Errorf("write: %w", err)
	}
	out := &BatchError{}
	for i, d := range st.Details() {
		e, ok := d.(*p4v1.Error)
		if !ok {
			return fmt.Errorf("write: %w", err)
		}
		if code := codes.Code(e.GetCanonicalCode()); code != codes.OK { //nolint:gosec // canonical codes are small
			out.Updates = append(out.Updates, UpdateError{i, code, e.GetMessage()})
		}
	}
	if len(out.Updates) == 0 {
		return fmt.Errorf("write: %w", err)
	}
	return out
}
