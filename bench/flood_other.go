//go:build !linux

package bench

import (
	"context"
	"errors"
)

// FloodClasses are what Flood floods with.
var FloodClasses = []string{}

// Flood needs Linux.
func Flood(context.Context, string, int) (uint64, error) { return 0, errors.New("floods need Linux") }
