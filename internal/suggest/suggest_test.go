package suggest

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	many := strings.Fields("b1 b2 b3 b4 b5 b6 b7 b8 b9 b10 b11 b12 b13")
	for _, tc := range []struct {
		name  string
		names []string
		want  string
	}{
		{"m9", []string{"c1", "m1", "m2"}, " (did you mean m1 or m2?)"},
		{"M1", []string{"c1", "m1", "m2"}, " (did you mean m1?)"},
		{"memory", []string{"c1", "m1", "m2"}, " (there are c1, m1 and m2)"},
		{"x", []string{"compute-1"}, " (there is compute-1)"},
		{"blade-1", []string{"balde-1", "blade-22", "blade-2"}, " (did you mean blade-2?)"},
		{"something", many, ""},
		{"b0", many, " (did you mean b1, b2 or b3?)"},
		{"x", nil, ""},
		{"", []string{"m1"}, " (there is m1)"},
	} {
		if got := Text(tc.name, tc.names); got != tc.want {
			t.Errorf("%q of %q: %q, want %q", tc.name, tc.names, got, tc.want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, tc := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"kitten", "sitting", 3}, {"ü", "u", 1}, {"same", "same", 0}} {
		if got := distance(tc.a, tc.b); got != tc.want {
			t.Errorf("%q to %q: %d, want %d", tc.a, tc.b, got, tc.want)
		}
	}
}
