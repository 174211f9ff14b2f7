package gatekeeper

import (
	"maps"
	"testing"
)

// What the switch has is what the Gatekeeper wants it to have.
func TestRules_ReadBack(t *testing.T) {
	inSmall(t, func(s *small) {
		s.m1.alloc(s.a, 1, 1)
		got, err := s.gk.Rules(s.t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var want base
		if err := s.gk.do(s.t.Context(), func() { want = maps.Clone(s.gk.ctl.base) }); err != nil {
			t.Fatal(err)
		}
		if revoke, grant := reconcile(want, got); len(revoke)+len(grant) != 0 || len(got) != len(want) {
			t.Errorf("%d rules, wanted %d: revoke %v, grant %v", len(got), len(want), revoke, grant)
		}
		control, err := s.gk.Rules(s.t.Context(), "control_rule")
		if err != nil || len(control) != 1 {
			t.Errorf("control rules %v, %v", control, err)
		}
		if _, err := s.gk.Rules(s.t.Context(), "nonsense"); err == nil {
			t.Error("a table that does not exist has rules")
		}
	})
}
