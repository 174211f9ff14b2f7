package rpc

import (
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm"
	"github.com/bifrost-rack/bifrost/rpc/direct"
)

func TestLimits(t *testing.T) {
	l, err := Limits{Slots: 7, Lifetime: time.Minute}.withDefaults()
	want := DefaultLimits
	want.Slots, want.Lifetime = 7, time.Minute
	if err != nil || l != want {
		t.Errorf("%+v, %v; want %+v", l, err, want)
	}
	if l, err = (Limits{}).withDefaults(); err != nil || l.callee() != direct.DefaultLimits {
		t.Errorf("%+v, %v; want %+v", l.callee(), err, direct.DefaultLimits)
	}
	for text, l := range map[string]Limits{"Limits.Slots of -1": {Slots: -1}, "Limits.Window of -2": {Memory: dsm.Limits{Window: -2}}, "Limits.GiveUp of -1": {Memory: dsm.Limits{GiveUp: -1}}, "Limits.Lifetime of -1ns": {Lifetime: -1}} {
		if _, err := l.withDefaults(); CodeOf(err) != BadRequest || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
