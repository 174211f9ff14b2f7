package main

import (
	"regexp"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// Copies are taken away and given, and what cannot be is refused with the way out.
func TestMirror(t *testing.T) {
	address, _ := watched(t)
	for _, step := range []struct{ command, want, refused string }{
		{"mirror m1 m1", "", `name two blades`},
		{"mirror m1 m2", "", `has two copies, m1 and m2, already`},
		{"mirror m1 m3", "", `machine 1 has two copies: bifrost unmirror m1 or m2 first`},
		{"mirror m1 m9", "", `did you mean m1, m2 or m3\?`},
		{"mirror m1 c1", "", `"c1" is a compute blade`},
		{"unmirror m3", "", `has the only copy of machine 2: bifrost drain m3`},
		{"unmirror m2 --cause dust", `^machine 1 \(m1 \+ m2\): one copy: dust\n$`, ""},
		{"machines", `\n1 +m1 \+ m2 +1 .* one copy: dust\n`, ""},
		{"mirror m1 m2 --wait", `^machine 1 \(m1 \+ m2\): mirrored\n$`, ""},
		{"unmirror m2 --cause dust", `one copy: dust\n$`, ""},
		{"unmirror m1", "", `has the only copy of machine 1: bifrost drain m1`},
		{"fail m2", `^m2 is failed: `, ""},
		{"mirror m1 m2", "", `blade m2 must be in service: bifrost return m2`},
	} {
		got, err := bifrost(t, append(strings.Fields(step.command), "--admin-addr", address)...)
		switch {
		case step.refused != "" && (err == nil || !regexp.MustCompile(step.refused).MatchString(err.Error())):
			t.Errorf("bifrost %s: %v, want %s", step.command, err, step.refused)
		case step.refused == "" && (err != nil || !regexp.MustCompile(step.want).MatchString(got)):
			t.Errorf("bifrost %s: %v\n%swant %s", step.command, err, got, step.want)
		}
	}
}

// How much of a copy is filled, and how long it will take.
func TestFillText(t *testing.T) {
	m := api.Machine{Machine: 1, Blades: []string{"m1", "m2"}, Copies: []string{"m1"}, InService: 1}
	m.Filling = &api.Filling{Blade: "m2", Done: 554 << 20, Total: 1288490189, Rate: 50 << 20, Left: 11.2}
	if got, want := fillText(&m), "m1 + m2: 45 % of 1.2 GiB, 12 s left"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	m.Filling = &api.Filling{Blade: "m2"}
	if got, want := machineText(&m), "filling: m1 + m2: 0 % of 0 B"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
