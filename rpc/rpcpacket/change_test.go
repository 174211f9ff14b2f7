package rpcpacket

import (
	"testing"
	"time"
)

func TestAge(t *testing.T) {
	for _, c := range []struct {
		policy  Policy
		age, up time.Duration
		older   bool
	}{
		{PolicyNone, time.Millisecond, time.Millisecond, false},
		{PolicyNone, time.Second, 2 * time.Second, false},
		{PolicyNone, 2 * time.Second, time.Second, true},
		{PolicyNone, time.Hour, 48 * time.Hour, true}, // nobody knows
		{PolicyRecover, time.Hour, time.Second, false},
	} {
		m := sample()
		m.Attempt, m.Flags = 0, m.Flags.WithPolicy(c.policy)
		b := m.Append(nil)
		SetAge(b, c.age)
		got, err := Parse(b)
		if err != nil || got.Older(c.up) != c.older {
			t.Errorf("%+v: attempt %d, older %v, %v", c, got.Attempt, got.Older(c.up), err)
		}
	}
}

func TestSetReleased(t *testing.T) {
	m := sample()
	b := m.Append(nil)
	SetReleased(b, 99)
	got, err := Parse(b)
	if err != nil {
		t.Fatal(err)
	}
	if want := m.Flags | FlagReleased; got.Flags != want || got.CalleeIncarnation != 99 {
		t.Errorf("flags %#x, callee incarnation %d; want %#x, 99", got.Flags, got.CalleeIncarnation, want)
	}
	m.Flags, m.CalleeIncarnation = got.Flags, got.CalleeIncarnation
	if again := m.Append(nil); string(again) != string(b) {
		t.Error("something else changed as well")
	}
}
