package rpc

import "testing"

// The caller's word goes before the IDL's, what is said of a method before what is
// said of all, and the last word of a source before its earlier ones.
func TestPolicySources(t *testing.T) {
	for _, c := range []struct {
		options []ClientOption
		want    Policy
	}{
		{nil, DefaultPolicy},
		{[]ClientOption{WithPolicy(PolicyTainted)}, PolicyTainted},
		{[]ClientOption{withDeclaredPolicy(PolicyTainted, "other")}, DefaultPolicy},
		{[]ClientOption{withDeclaredPolicy(PolicyFateShare), withDeclaredPolicy(PolicyTainted, "m")}, PolicyTainted},
		{[]ClientOption{withDeclaredPolicy(PolicyFateShare, "m"), WithPolicy(PolicyTainted)}, PolicyTainted},
		{[]ClientOption{withDeclaredPolicy(PolicyFateShare, "m"), WithPolicy(PolicyTainted, "other")}, PolicyFateShare},
		{[]ClientOption{WithPolicy(PolicyFateShare, "m"), WithPolicy(PolicyTainted)}, PolicyFateShare},
		{[]ClientOption{WithPolicy(PolicyFateShare, "m"), WithPolicy(PolicyTainted, "m")}, PolicyTainted},
	} {
		var config clientConfig
		for _, o := range c.options {
			o.applyClient(&config)
		}
		if got := config.policy("m"); got != c.want {
			t.Errorf("%d options: %s, want %s", len(c.options), got, c.want)
		}
	}
}
