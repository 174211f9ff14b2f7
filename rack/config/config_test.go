package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/yamlfile"
)

// The documented example is the built-in rack, so neither can drift.
func TestExampleIsThesis(t *testing.T) {
	got, err := Read("../../examples/rack.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if want := Thesis(); !reflect.DeepEqual(got, want) {
		t.Errorf("examples/rack.yaml is\n%+v, the built-in rack\n%+v", got, want)
	}
	want := Thesis()
	if err := want.Validate(); err != nil {
		t.Errorf("the built-in rack: %v", err)
	}
}

func TestMinimal(t *testing.T) {
	got, err := Parse("r", []byte("blades: [{name: m, kind: memory}, {name: c, kind: compute}]"))
	if err != nil {
		t.Fatal(err)
	}
	want := Thesis()
	want.Programs = nil
	want.Blades = []Blade{{Name: "m", Kind: control.Memory, Capacity: DefaultCapacity}, {Name: "c", Kind: control.Compute, Nodes: DefaultNodes}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

const blades = "blades:\n- {name: c1, kind: compute}\n- {name: m1, kind: memory}\n" // lines 1 to 3

// Each mistake is named with its line and a remedy.
func TestMistakes(t *testing.T) {
	for _, tc := range []struct {
		name, yaml string
		line       int
		want       string
	}{
		{"empty", "", 0, "empty"},
		{"only a comment", "# nothing\n", 0, "empty"},
		{"not YAML", "blades: [", 0, "yaml"},
		{"two documents", blades + "---\n" + blades, 4, "one rack per file"},
		{"broken second document", blades + "---\n[", 0, "yaml"},
		{"not a mapping", "- a\n", 1, "keys and values"},
		{"unknown key", blades + "mtuu: 9000\n", 4, `unknown key "mtuu"`},
		{"unknown blade key", "blades:\n- {name: c1, kind: compute, cores: 4}\n", 2, `unknown key "cores"`},
		{"key twice", blades + "mtu: 9000\nmtu: 9000\n", 5, "given twice (first on line 4)"},
		{"no blades", "name: a\n", 1, "the rack has none"},
		{"blades not a list", "blades: c1\n", 1, "write a list"},
		{"alias", "name: &a x\nblades: *a\n", 2, "alias"},
		{"null", blades + "name:\n", 4, "empty"},
		{"rack name with dash", blades + "name: a-b\n", 4, "cannot name a rack"},
		{"rack name too long", blades + "name: abcdefghijklmnopq\n", 4, "cannot name a rack"},
		{"bad switch", blades + "switch: ovs\n", 4, "bifrost or bmv2"},
		{"MTU too small", blades + "mtu: 1279\n", 4, "1280 to 65535"},
		{"MTU too large", blades + "mtu: 65536\n", 4, "1280 to 65535"},
		{"MTU negative", blades + "mtu: -1\n", 4, "not a number"},
		{"MTU no number", blades + "mtu: big\n", 4, "not a number"},
		{"prefix zero", blades + "dsm_prefix: 0\n", 4, "1 to 255"},
		{"prefix too large", blades + "dsm_prefix: 256\n", 4, "not a number in range"},
		{"duplicate blade", blades + "- {name: c1, kind: compute}\n", 4, "taken by blades[0].name"},
		{"reserved blade", "blades:\n- {name: switch, kind: compute}\n", 2, "rack's own"},
		{"bad blade name", "blades:\n- {name: C1, kind: compute}\n", 2, "not a usable name"},
		{"no kind", "blades:\n- name: c1\n", 2, "compute or memory"},
		{"bad kind", "blades:\n- name: c1\n  kind: storage\n", 3, "compute or memory"},
		{"decimal unit", "blades:\n- name: m1\n  kind: memory\n  capacity: 1GB\n", 4, "512MiB"},
		{"size overflows", "blades:\n- {name: m1, kind: memory, capacity: 99999999TiB}\n", 2, "64 bits"},
		{"size negative", "blades:\n- {name: m1, kind: memory, capacity: -1}\n", 2, "not a size"},
		{"capacity zero", "blades:\n- {name: m1, kind: memory, capacity: 0}\n", 2, "out of range"},
		{"capacity too large", "blades:\n- {name: m1, kind: memory, capacity: 2TiB}\n", 2, "out of range"},
		{"capacity of compute", "blades:\n- {name: c1, kind: compute, capacity: 1GiB}\n", 2, "a compute blade has none"},
		{"nodes of memory", "blades:\n- {name: m1, kind: memory, nodes: 3}\n", 2, "a memory blade runs none"},
		{"nodes zero", "blades:\n- {name: c1, kind: compute, nodes: 0}\n", 2, "out of range"},
		{"machine of three", blades + "machines:\n- [m1, m2, m3]\n", 5, "it has 3 blades: name one memory blade, or two"},
		{"machine of none", blades + "machines:\n- []\n", 5, "it has 0 blades"},
		{"machine no list", blades + "machines:\n- m1\n", 5, "write a list"},
		{"machine unknown", blades + "machines:\n- [m1, m9]\n", 5, `there is no blade "m9"`},
		{"machine of compute", blades + "machines:\n- [m1,\n   c1]\n", 6, `"c1" is not a memory blade`},
		{"machine with itself", blades + "machines:\n- [m1, m1]\n", 5, `"m1" is named already by machines[0][0]: a blade serves one machine`},
		{"blade of two machines", blades + "machines:\n- [m1]\n- [m1]\n", 6, "named already by machines[0][0]"},
		{"program nowhere", blades + "programs:\n- {name: p, blade: c9, command: [a]}\n", 5, `no blade "c9"`},
		{"program on memory", blades + "programs:\n- {name: p, blade: m1, command: [a]}\n", 5, "not a compute blade"},
		{"program without command", blades + "programs:\n- {name: p, blade: c1}\n", 5, "empty"},
		{"program named as blade", blades + "programs:\n- {name: c1, blade: c1, command: [a]}\n", 5, "taken"},
		{"program command text", blades + "programs:\n- name: p\n  blade: c1\n  command: arrays server\n", 7, "write a list"},
		{"ready for nothing", blades + "programs:\n- {name: p, blade: c1, command: [a], ready: \"\"}\n", 5, "empty"},
		{"heartbeat too short", blades + "heartbeat: 1ms\n", 4, "10ms to 1m0s"},
		{"heartbeat without unit", blades + "heartbeat: 100\n", 4, "200ms"},
		{"spares of a client", blades + "programs:\n- {name: p, blade: c1, command: [a], spares: [c1]}\n", 5, "under services"},
		{"state of a client", blades + "programs:\n- {name: p, blade: c1, command: [a], stateful: true}\n", 5, "under services"},
		{"stateful how", blades + "programs:\n- {name: p, blade: c1, command: [a], services: [S], stateful: yes}\n", 5, "true or false"},
		{"its own spare", blades + "programs:\n- {name: p, blade: c1, command: [a], services: [S], spares: [c1]}\n", 5, "no other compute blade"},
		{"memory as spare", blades + "programs:\n- {name: p, blade: c1, command: [a], services: [S], spares: [m1]}\n", 5, "no other compute blade"},
		{"service twice", blades + "programs:\n- {name: p, blade: c1, command: [a], services: [S, S]}\n", 5, "listed twice"},
		{"served and ready", blades + "programs:\n- {name: p, blade: c1, command: [a], services: [S], ready: x}\n", 5, "remove it"},
		{"bad variable", blades + "programs:\n- {name: p, blade: c1, command: [a], env: {\"A=B\": c}}\n", 5, "environment variable"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse("rack.yaml", []byte(tc.yaml))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want an *Error", err)
			}
			if e.Line != tc.line || !strings.Contains(err.Error(), tc.want) || e.Remedy == "" || e.File != "rack.yaml" {
				t.Errorf("line %d: %v; want line %d and %q", e.Line, err, tc.line, tc.want)
			}
		})
	}
}

// Memory blades are paired by their names unless the file says otherwise.
func TestMachines(t *testing.T) {
	const three = "blades:\n- {name: m2, kind: memory}\n- {name: c1, kind: compute}\n- {name: m3, kind: memory}\n- {name: m1, kind: memory}\n"
	for machines, want := range map[string]string{
		"": "[[m1 m2] [m3]]", "machines: []\n": "[[m1 m2] [m3]]", "machines: [[m3, m2]]\n": "[[m3 m2] [m1]]",
		"machines: [[m1], [m2], [m3]]\n": "[[m1] [m2] [m3]]", "machines: [[m1]]\n": "[[m1] [m2 m3]]",
	} {
		c, err := Parse("r", []byte(three+machines))
		if got := fmt.Sprint(c.MemoryMachines()); err != nil || got != want {
			t.Errorf("%s: %s, %v; want %s", machines, got, err, want)
		}
	}
	c := Thesis()
	c.Unmirrored()
	if got := fmt.Sprint(c.MemoryMachines()); got != "[[m1] [m2] [m3]]" || c.Validate() != nil {
		t.Errorf("unmirrored: %s, %v", got, c.Validate())
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, err := Parse("r", []byte("mtu: 1\nswitch: x\nblades:\n- {name: c1, kind: y}\n"))
	for _, want := range []string{"r:1:", "r:2:", "r:4:"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is missing from: %v", want, err)
		}
	}
}

func TestTooManyBlades(t *testing.T) {
	many := func(n int, kind string) string {
		var b strings.Builder
		b.WriteString("blades:\n")
		for i := range n {
			fmt.Fprintf(&b, "- {name: b%d, kind: %s}\n", i, kind)
		}
		return b.String()
	}
	if _, err := Parse("r", []byte(many(MaxBlades, control.Compute))); err != nil {
		t.Errorf("%d blades: %v", MaxBlades, err)
	}
	if _, err := Parse("r", []byte(many(MaxBlades+1, control.Compute))); err == nil || !strings.Contains(err.Error(), "r:2: blades: 501 blades are too many") {
		t.Errorf("%d blades: %v", MaxBlades+1, err)
	}
	if _, err := Parse("r", []byte(many(MaxMemoryBlades+1, control.Memory))); err == nil || !strings.Contains(err.Error(), "256 memory blades") {
		t.Errorf("%d memory blades: %v", MaxMemoryBlades+1, err)
	}
	if _, err := Parse("r", make([]byte, yamlfile.MaxFile+1)); err == nil || !strings.Contains(err.Error(), "too long") {
		t.Errorf("a long file: %v", err)
	}
}

func TestSizes(t *testing.T) {
	for s, want := range map[string]uint64{"0": 0, "4096": 4096, "1B": 1, "64KiB": 65536, "512 MiB": 512 << 20, "1GiB": 1 << 30, "3TiB": 3 << 40} {
		if got, err := ParseSize(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"", "GiB", "1.5GiB", "1GB", "1gib", "+1", "16777216TiB", "1KiBMiB"} {
		if got, err := ParseSize(s); err == nil {
			t.Errorf("%q was read as %d", s, got)
		}
	}
	for _, n := range []uint64{0, 1, 1023, 1024, 1 << 30, 3 << 29, 1<<64 - 1} {
		if got, err := ParseSize(FormatSize(n)); err != nil || got != n {
			t.Errorf("%d became %d by %q, %v", n, got, FormatSize(n), err)
		}
	}
}

// No file makes Parse panic, and what it accepts is a valid rack.
func FuzzParse(f *testing.F) {
	f.Add([]byte(blades))
	f.Add([]byte("name: &a x\nblades: *a\n"))
	f.Add([]byte("? {a: b}\n: c\n"))
	f.Add([]byte("programs:\n- {name: p, blade: c1, command: [a], env: {A: b}}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := Parse("f", b)
		if err != nil {
			return
		}
		if err := c.Validate(); err != nil {
			t.Fatalf("accepted %q, then: %v", b, err)
		}
	})
}

// The admin API with tokens is at a port of this machine that nobody else reaches.
func TestAdmin(t *testing.T) {
	for a, want := range map[Admin]string{
		{}: "", {Address: "127.0.0.1:8045"}: "", {Address: "[::1]:8045", TokenFile: "/x"}: "",
		{Address: "8045"}: "no loopback address", {Address: "0.0.0.0:8045"}: "no loopback address", {Address: "127.0.0.1:0"}: "no loopback address",
		{Address: "10.0.0.1:8045"}: "no loopback address", {TokenFile: "/x"}: "needs no token",
	} {
		c := Thesis()
		c.Admin = a
		if err := c.Validate(); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v", a, err)
		}
	}
}
