//go:build !linux

// Package privilege tells tests what they may do on this machine.
package privilege

import (
	"errors"
	"testing"
)

// Need skips a test that needs Linux.
func Need(t testing.TB) { t.Helper(); t.Skip("NOT CHECKED: ", Missing()) }

// Missing says that there are no network namespaces.
func Missing() error { return errors.New("network namespaces need Linux") }
