package resources

import (
	"fmt"

	"pgregory.net/rapid"
)

// check is what always holds.
func (w *world) check(t *rapid.T) {
	used, hops, machines := map[string]int{}, map[Hop]string{}, map[Machine]string{}
	claim := func(h Hop, who string) {
		if hops[h] != "" || h == 0 {
			t.Fatalf("hop %d is %s's and %s's", h, hops[h], who)
		}
		hops[h] = who
	}
	hosts := map[string]string{} // blade and service → who
	offer := func(blade, service, who string) {
		if other := hosts[blade+" "+service]; other != "" && other != who {
			t.Fatalf("%s and %s, both of %s, are on %s", other, who, service, blade)
		}
		hosts[blade+" "+service] = who
	}
	for _, b := range w.r.Blades() {
		claim(b.Hop, b.Name)
		if b.Kind == Memory {
			if machines[b.Machine] != "" || b.Machine == 0 {
				t.Fatalf("machine id %d is %s's and %s's", b.Machine, machines[b.Machine], b.Name)
			}
			machines[b.Machine] = b.Name
		}
	}
	for _, n := range w.r.Nodes("") {
		claim(n.Hop, n.Address.String())
		used[n.Blade]++
		for _, s := range n.Services {
			offer(n.Blade, s, n.Address.String())
		}
		if b, _ := w.r.Blade(n.Blade); b.Status == Failed && !n.Ending {
			t.Fatalf("%s lives on failed blade %s", n.Address, n.Blade)
		}
	}
	w.checkDeployments(t, used, claim, offer)
	for blade, n := range used {
		if n > worldCapacity {
			t.Fatalf("%s hosts or keeps room for %d of %d nodes", blade, n, worldCapacity)
		}
	}
	if len(w.r.hops.used) != len(hops) || len(w.r.machines.used) != len(machines) {
		t.Fatalf("%d hops and %d machine ids are taken, %d and %d are in use", len(w.r.hops.used), len(w.r.machines.used), len(hops), len(machines))
	}
	w.checkRoutes(t)
}

func (w *world) checkDeployments(t *rapid.T, used map[string]int, claim func(Hop, string), offer func(blade, service, who string)) {
	for _, d := range w.r.Deployments() {
		wanted := map[string]int{}
		for _, i := range d.Instances {
			p := find(&d.Spec, i.Program)
			if i.Keep.Hop != 0 {
				claim(i.Keep.Hop, i.Name)
			}
			if b, ok := w.r.Blade(i.Next); i.Next != "" && (!ok || b.Status == Failed) {
				t.Fatalf("room for %s is kept on %s, which is not in service", i.Name, i.Next)
			}
			if i.wanted() {
				wanted[i.Program]++
			}
			who := i.Name
			switch {
			case i.Status == Starting:
				used[i.Blade]++
				if b, _ := w.r.Blade(i.Blade); b.Status == Failed {
					t.Fatalf("%s is started on failed blade %s", i.Name, i.Blade)
				}
			case i.Node.IsValid():
				who = i.Node.String()
			default:
				continue
			}
			for _, s := range p.Services {
				offer(i.Blade, s.Name, who)
			}
			if i.Next != "" {
				used[i.Next]++
			}
		}
		for _, p := range d.Spec.Programs {
			if wanted[p.Name] != p.Nodes && !d.Removed {
				t.Fatalf("%s/%s has %d instances, wants %d", d.Spec.Name, p.Name, wanted[p.Name], p.Nodes)
			}
			for _, s := range d.Spares[p.Name] {
				used[s]++
			}
		}
	}
}

// checkRoutes compares what the switch was told with what the registry knows.
func (w *world) checkRoutes(t *rapid.T) {
	methods := 0
	for _, s := range w.r.Services() {
		for _, m := range s.Methods {
			methods++
			table := w.routes[fmt.Sprintf("%s.%s", s.Name, m.Wire)]
			if len(table) != len(m.Routes) {
				t.Fatalf("%s.%s has %d entries, should have %d", s.Name, m.Name, len(table), len(m.Routes))
			}
			if spread, err := spreadOf(m.Routes); err != nil || !spread.Node(0).IsValid() {
				t.Fatalf("%s.%s: %v %v", s.Name, m.Name, m.Routes, err)
			}
			for _, p := range m.Routes {
				n, ok := w.r.Node(p.Node)
				if !table[p] || !ok || n.Ending {
					t.Fatalf("%s.%s: entry %v of %v: node there %t, ending %t", s.Name, m.Name, p, table, ok, n.Ending)
				}
			}
		}
	}
	if methods != len(w.routes) {
		t.Fatalf("the switch has %d methods, should have %d", len(w.routes), methods)
	}
}
