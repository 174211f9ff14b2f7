package gatekeeper

import (
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	l, err := Limits{Held: 7}.withDefaults()
	if want := DefaultLimits; err != nil || l.Held != 7 {
		t.Errorf("%+v, %v", l, err)
	} else if want.Held = 7; l != want {
		t.Errorf("%+v, want %+v", l, want)
	}
	if _, err := (Limits{Scan: -1}).withDefaults(); err == nil || !strings.Contains(err.Error(), "Limits.Scan of -1") {
		t.Errorf("a negative limit: %v", err)
	}
}
