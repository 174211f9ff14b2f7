package gatekeeper

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// Rates bound what one port of the switch may cause the Gatekeeper, in packets a second for
// each class. The switch drops and counts what is beyond, so a port that floods takes
// nothing from the others. Zero values stand for the defaults.
type Rates struct {
	// Control is packets of the control protocol, Calls what is held of calls, replies and
	// one-ways, Memory what is held of frees and allocations.
	Control, Calls, Memory Rate
	// Digests is what is told of denied accesses and of calls that are not held.
	Digests Rate
}

// Rate is how many packets may come in a second, and at once after a pause.
type Rate = p4rtclient.Rate

// DefaultRates are some times what a busy blade needs. A memory blade answers for all
// nodes, so its class has the most.
var DefaultRates = Rates{
	Control: Rate{PerSecond: 5_000, Burst: 2_000},
	Calls:   Rate{PerSecond: 10_000, Burst: 4_000},
	Memory:  Rate{PerSecond: 40_000, Burst: 8_000},
	Digests: Rate{PerSecond: 5_000, Burst: 2_000},
}

// meters lists the rates by the program's meters.
func (r Rates) meters() []struct {
	name string
	rate Rate
} {
	return []struct {
		name string
		rate Rate
	}{
		{"held_control", cmp.Or(r.Control, DefaultRates.Control)}, {"held_calls", cmp.Or(r.Calls, DefaultRates.Calls)},
		{"held_memory", cmp.Or(r.Memory, DefaultRates.Memory)}, {"digests", cmp.Or(r.Digests, DefaultRates.Digests)},
	}
}

// setRates gives the switch's meters their rates.
func (g *Gatekeeper) setRates(ctx context.Context) error {
	for _, m := range g.cfg.Rates.meters() {
		if err := g.client.SetMeter(ctx, m.name, m.rate); err != nil {
			return err
		}
	}
	return nil
}

// PortDrops counts what the switch has stopped of one port since it began.
type PortDrops struct {
	Port  uint16 `json:"port"`
	Blade string `json:"blade,omitempty"` // that is there
	// Denied accesses; Throttled is what came faster than its class may, by why it would
	// have been held.
	Denied    uint64            `json:"denied"`
	Throttled map[string]uint64 `json:"throttled,omitempty"`
	// Refused is what the Gatekeeper has refused of what was held, by why.
	Refused map[string]uint64 `json:"refused,omitempty"`
}

// refusals counts by port, then by reason, which held packets the Gatekeeper has refused.
// There are as many entries as the switch has ports, at most.
type refusals map[uint16]map[string]uint64

// note counts what a packet of a port has changed of the counters.
func (r *refusals) note(port uint16, before, after *Counters) {
	for _, c := range []struct {
		why string
		n   uint64
	}{
		{"refused", after.Refused - before.Refused}, {"malformed", after.Malformed - before.Malformed},
		{"foreign", after.Foreign - before.Foreign}, {"late", after.Late - before.Late}, {"overload", after.Overload - before.Overload},
	} {
		if c.n == 0 {
			continue
		}
		if *r == nil {
			*r = refusals{}
		}
		if (*r)[port] == nil {
			(*r)[port] = map[string]uint64{}
		}
		(*r)[port][c.why] += c.n
	}
}

// reasonNames are the reasons for which packets are held, as people read them.
var reasonNames = [8]string{"0", "control", "call", "free", "memory reply", "no home", "no route", "7"}

// Drops tells what was stopped of each port: by the switch, which is asked, and by the
// Gatekeeper. It fails without a switch.
func (g *Gatekeeper) Drops(ctx context.Context) ([]PortDrops, error) {
	denied, err := g.client.Counter(ctx, "denials")
	if err != nil {
		return nil, err
	}
	throttled, err := g.client.Counter(ctx, "throttled")
	if err != nil {
		return nil, err
	}
	ports := map[uint16]*PortDrops{}
	at := func(port int64) *PortDrops {
		num := uint16(port) //nolint:gosec // 9 bits
		if ports[num] == nil {
			ports[num] = &PortDrops{Port: num}
		}
		return ports[num]
	}
	for port, n := range denied {
		at(port).Denied = uint64(n) //nolint:gosec // a count
	}
	for i, n := range throttled {
		p := at(i >> 3)
		if p.Throttled == nil {
			p.Throttled = map[string]uint64{}
		}
		p.Throttled[reasonNames[i&7]] = uint64(n) //nolint:gosec // a count
	}
	if err := g.do(ctx, func() {
		for port, n := range g.ctl.refused {
			at(int64(port)).Refused = maps.Clone(n)
		}
		for num, d := range ports {
			if p := g.ctl.ports[num]; p != nil && p.blade != nil {
				d.Blade = p.blade.hello.Blade
			}
		}
	}); err != nil {
		return nil, err
	}
	var out []PortDrops
	for _, num := range slices.Sorted(maps.Keys(ports)) {
		out = append(out, *ports[num])
	}
	return out, nil
}
