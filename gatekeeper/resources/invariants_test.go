package resources

import "pgregory.net/rapid"

// check is what always holds.
func (w *world) check(t *rapid.T) {
	used := map[string]int{}
	hosts := map[string]string{} // blade and service → who
	offer := func(blade, service, who string) {
		if other := hosts[blade+" "+service]; other != "" && other != who {
			t.Fatalf("%s and %s, both of %s, are on %s", other, who, service, blade)
		}
		hosts[blade+" "+service] = who
	}
	for _, n := range w.r.Nodes("") {
		used[n.Blade]++
		for _, s := range w.exports.of(n) {
			offer(n.Blade, s, n.Address.String())
		}
		if b, _ := w.r.Blade(n.Blade); !b.up() && !n.Ending {
			t.Fatalf("%s lives on failed blade %s", n.Address, n.Blade)
		}
	}
	w.checkDeployments(t, used, offer)
	for blade, n := range used {
		if n > worldCapacity {
			t.Fatalf("%s hosts or keeps room for %d of %d nodes", blade, n, worldCapacity)
		}
	}
}

func (w *world) checkDeployments(t *rapid.T, used map[string]int, offer func(blade, service, who string)) {
	for _, d := range w.r.Deployments() {
		wanted := map[string]int{}
		for _, i := range d.Instances {
			p := find(&d.Spec, i.Program)
			if b, ok := w.r.Blade(i.Next); i.Next != "" && (!ok || !b.up()) {
				t.Fatalf("room for %s is kept on %s, which is not in service", i.Name, i.Next)
			}
			if i.wanted() {
				wanted[i.Program]++
			}
			who := i.Name
			switch {
			case i.Status == Starting:
				used[i.Blade]++
				if b, _ := w.r.Blade(i.Blade); !b.up() {
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
