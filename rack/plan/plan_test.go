package plan

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack/config"
)

var update = flag.Bool("update", false, "rewrite the expected plans in testdata")

// The whole plan of the thesis's rack, for both switches, is kept as text to be
// read.
func TestThesisPlans(t *testing.T) {
	for _, sw := range []config.Switch{config.Bifrost, config.BMv2} {
		t.Run(string(sw), func(t *testing.T) {
			c := config.Thesis()
			c.Switch = sw
			got := render(Make(c, "/run/bifrost/thesis"))
			path := filepath.Join("testdata", string(sw)+".txt")
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("the plan is\n%s\nwant (-update accepts it)\n%s", got, want)
			}
		})
	}
}

// render writes a plan for people.
func render(p Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "rack %s, switch %s\n\nnamespaces\n", p.Rack, p.Switch)
	for _, ns := range p.Namespaces {
		fmt.Fprintf(&b, "  %s\n", ns)
	}
	b.WriteString("\nwires\n")
	for _, w := range p.Wires {
		fmt.Fprintf(&b, "  %s: %s %s -- %s %s, MTU %d, checksum offload %v\n", w.Blade, w.SwitchNamespace, w.SwitchInterface, w.BladeNamespace, w.BladeMAC, w.MTU, w.ChecksumOffload)
		fmt.Fprintf(&b, "    %s, to the switch: %v\n", w.Address, w.Routes)
	}
	b.WriteString("\nprocesses\n")
	for _, q := range p.Processes {
		fmt.Fprintf(&b, "  %s (%s, in %s) when it %s\n    %s\n", q.Name, q.Stage, q.Namespace, strings.TrimSpace(string(q.Ready)+" "+q.Text+q.Socket), strings.Join(q.Args, " "))
	}
	b.WriteString("\ndeployed\n")
	for _, d := range p.Deployed {
		fmt.Fprintf(&b, "  %s on the first of %v, exports %v, stateful %v\n    %s\n", d.Instance(), d.Blades, d.Services, d.Stateful, strings.Join(d.Args, " "))
	}
	return b.String()
}

// Programs that serve go on where they are told to, or on the other compute blades,
// the idle ones first; any other is a process of its blade.
func TestSpares(t *testing.T) {
	c := config.Thesis()
	c.Blades = append(c.Blades, config.Blade{Name: "x1", Kind: control.Compute, Nodes: 1})
	c.Programs = append(c.Programs,
		config.Program{Name: "chosen", Blade: "c1", Command: []string{"p"}, Services: []string{"S"}, Stateful: true, Spares: []string{"s2", "x1"}},
		config.Program{Name: "client", Blade: "c1", Command: []string{"q"}})
	p := Make(c, "/d")
	want := map[string][]string{"ping": {"s1", "x1", "c1", "s2"}, "arrays": {"s2", "x1", "c1", "s1"}, "chosen": {"c1", "s2", "x1"}}
	for _, d := range p.Deployed {
		if !slices.Equal(d.Blades, want[d.Name]) || d.Stateful != (d.Name == "chosen") {
			t.Errorf("%+v, want blades %v", d, want[d.Name])
		}
		delete(want, d.Name)
	}
	if own := p.Of("c1"); len(want) != 0 || len(own) != 2 || own[1].Name != "client" {
		t.Errorf("not deployed: %v; c1 runs %v", want, own)
	}
}

// big is the largest rack there can be.
func big() config.Config {
	c := config.Thesis()
	c.Blades = nil
	for i := range config.MaxBlades {
		kind := control.Compute
		if i < config.MaxMemoryBlades {
			kind = control.Memory
		}
		c.Blades = append(c.Blades, config.Blade{Name: fmt.Sprintf("b%d", i), Kind: kind})
	}
	c.Programs = nil
	return c
}

// Nothing in a plan is there twice, also in the largest rack.
func TestAllDifferent(t *testing.T) {
	p := Make(big(), "/d")
	seen := map[string]string{}
	claim := func(kind, value, owner string) {
		if first, taken := seen[kind+value]; taken {
			t.Errorf("%s %s belongs to %s and %s", kind, value, first, owner)
		}
		seen[kind+value] = owner
	}
	for _, ns := range p.Namespaces {
		claim("namespace", ns, ns)
	}
	for _, w := range p.Wires {
		claim("MAC", w.BladeMAC, w.Blade)
		claim("address", w.Address.String(), w.Blade)
		claim("port", fmt.Sprint(w.Port), w.Blade)
		claim("interface", w.SwitchInterface, w.Blade)
		if len(w.SwitchInterface) > 15 {
			t.Errorf("%s is too long for an interface", w.SwitchInterface)
		}
		if w.Port >= 510 {
			t.Errorf("blade %s is on port %d, which is the CPU's or above", w.Blade, w.Port)
		}
		if w.BladeMAC == SwitchMAC {
			t.Errorf("blade %s has the switch's MAC", w.Blade)
		}
	}
	for _, q := range p.Processes {
		claim("process", q.Name, q.Blade)
		if !slices.Contains(p.Namespaces, q.Namespace) {
			t.Errorf("%s runs in %s, which nobody makes", q.Name, q.Namespace)
		}
	}
	if !slices.IsSortedFunc(p.Processes, func(a, b Process) int { return int(a.Stage - b.Stage) }) {
		t.Error("processes are not in the order of their stages")
	}
}

// What the switch routes by is what blades send to it.
func TestRoutesCoverTheRack(t *testing.T) {
	c := config.Thesis()
	c.DSMPrefix = 0xfe
	w := Make(c, "/d").Wires[0]
	for _, a := range []string{"fd00:b1f0::1", "fd00:b1f0:0:1::6", "fd00:b1f0:0:3:ffff::", "0:0:fe00::", "0:0:feff:4ff:ffff:ffff:ffff:ffff"} {
		if !slices.ContainsFunc(w.Routes, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(a)) }) {
			t.Errorf("%s does not lie behind the switch: %v", a, w.Routes)
		}
	}
	for _, a := range []string{"::1", "fe80::1", "0:0:ff00::", "fd00:b1f1::1"} {
		if slices.ContainsFunc(w.Routes, func(p netip.Prefix) bool { return p.Contains(netip.MustParseAddr(a)) }) {
			t.Errorf("%s lies behind the switch: %v", a, w.Routes)
		}
	}
}

// No rack's namespaces are taken for another's.
func TestPrefixes(t *testing.T) {
	if ns := Namespace("a", "b-c1"); strings.HasPrefix(ns, Prefix("ab")) || !strings.HasPrefix(ns, Prefix("a")) {
		t.Errorf("%s", ns)
	}
	if config.ValidName("a-b") {
		t.Error("a rack called a-b would own the namespaces of a blade b of rack a")
	}
	if Namespace("a", Gatekeeper) != Namespace("a", Switch) {
		t.Error("the Gatekeeper is not beside the switch")
	}
}

func TestLookUp(t *testing.T) {
	p := Make(config.Thesis(), "/d")
	if w, ok := p.Wire("m1"); !ok || w.Port != 4 {
		t.Errorf("m1 has %+v, %v", w, ok)
	}
	if _, ok := p.Wire(Switch); ok {
		t.Error("the switch has a wire to itself")
	}
	if own := p.Of("s2"); len(own) != 1 || own[0].Name != "s2" {
		t.Errorf("s2 runs %v", own)
	}
	if len(p.Of("arrays")) != 0 {
		t.Error("a program is taken for a blade")
	}
}

// A plan is kept as JSON while the rack is up.
func TestJSON(t *testing.T) {
	p := Make(config.Thesis(), "/d")
	b, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	var again Plan
	if err := json.Unmarshal(b, &again); err != nil || render(again) != render(p) {
		t.Errorf("%v; it became\n%s", err, render(again))
	}
}

// TestAdmin: the Gatekeeper inherits the socket for requests with tokens.
func TestAdmin(t *testing.T) {
	c := config.Thesis()
	c.Admin = config.Admin{Address: "127.0.0.1:8045", TokenFile: "/t"}
	for _, p := range Make(c, "/d").Processes {
		args := strings.Join(p.Args, " ")
		if is := p.Name == Gatekeeper; (p.Listen == "127.0.0.1:8045") != is || strings.Contains(args, "--admin-addr fd:3 --admin-token-file /t") != is {
			t.Errorf("%s listens at %q: %s", p.Name, p.Listen, args)
		}
	}
}
