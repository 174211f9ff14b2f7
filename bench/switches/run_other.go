//go:build !linux

package switches

import (
	"context"
	"errors"
)

// Run needs Linux.
func Run(context.Context, Options) (Result, error) {
	return Result{}, errors.New("switches can be measured on Linux only")
}
