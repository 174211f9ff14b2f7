//go:build !linux

package switches

import (
	"context"
	"errors"
)

var errLinux = errors.New("switches can be measured on Linux only")

// Run needs Linux.
func Run(context.Context, Options) (Result, error) {
	return Result{}, errLinux
}

// Soak needs Linux.
func Soak(context.Context, SoakOptions) (SoakResult, error) {
	return SoakResult{}, errLinux
}
