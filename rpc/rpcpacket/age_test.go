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
