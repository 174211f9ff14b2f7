package gatekeeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The entries of p4/bifrost.p4's tables, one function each. Fields and
// parameters stand in the order of their declarations, so that keys compare.
type (
	entry  = p4rtclient.Entry
	match  = p4rtclient.Match
	param  = p4rtclient.Param
	update = p4rtclient.Update
)

// hop is a key of next_hop: a switch port with a blade behind it. Hop 0 asks the
// switch to look the way up.
type hop uint16

// hopOf gives every port one hop.
func hopOf(port uint16) hop { return hop(port) + 1 }

// identityEntry says who lives at a port, without a row. See nodeIdentity.
func identityEntry(port uint16, source netip.Prefix, kind p4.Sender) entry {
	return entry{
		Table: "identity",
		Match: []match{
			{Field: "ingress_port", Value: p4rtclient.Uint(uint64(port))},
			{Field: "source", Value: p4rtclient.Addr(source.Addr()), PrefixLen: source.Bits()},
		},
		Action: "known", Params: known(kind, 0, 0),
	}
}

func toHop(h hop) []param { return []param{{Name: "hop", Value: p4rtclient.Uint(uint64(h))}} }

func l3Entry(destination netip.Prefix, h hop) entry {
	return entry{
		Table:  "l3",
		Match:  []match{{Field: "destination", Value: p4rtclient.Addr(destination.Addr()), PrefixLen: destination.Bits()}},
		Action: "to_hop", Params: toHop(h),
	}
}

func homeEntry(machine netip.Prefix, h hop) entry {
	b := machine.Addr().As16()
	return entry{
		Table:  "dsm_home",
		Match:  []match{{Field: "machine_prefix", Value: p4rtclient.Bytes(b[:6])}},
		Action: "to_hop", Params: toHop(h),
	}
}

// tcpEntry lets TCP pass from a port to a hop.
func tcpEntry(port uint16, h hop) entry {
	return entry{
		Table:  "tcp_allowed",
		Match:  []match{{Field: "ingress_port", Value: p4rtclient.Uint(uint64(port))}, {Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "permit",
	}
}

// tcpPeers are the ports between which and that of a blade TCP may pass: those of blades in
// service, its own among them.
func (e *estate) tcpPeers(b *blade) (ports []uint16) {
	listed := func(name string) bool { return slices.Contains(e.tcp, name) || slices.Contains(e.tcp, "*") }
	if !listed(b.hello.Blade) {
		return nil
	}
	for _, o := range e.sortedBlades() {
		if o.alive() && listed(o.hello.Blade) {
			ports = append(ports, o.port.num)
		}
	}
	return ports
}

// copiesEntry is homeEntry for a machine with two copies: the hop of the first, and the
// multicast group of both.
func copiesEntry(machine netip.Prefix, h hop, group uint16) entry {
	e := homeEntry(machine, h)
	e.Action, e.Params = "to_copies", append(e.Params, param{Name: "group", Value: p4rtclient.Uint(uint64(group))})
	return e
}

// replicaEntry addresses the copy of a packet that goes to a hop.
func replicaEntry(h hop, dst, src frame.MAC) entry {
	return entry{
		Table:  "replica",
		Match:  []match{{Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "readdress", Params: []param{
			{Name: "dst", Value: p4rtclient.Bytes(dst[:])},
			{Name: "src", Value: p4rtclient.Bytes(src[:])},
		},
	}
}

// spread is a prefix of the 256 values of a call id's last byte.
type spread struct {
	value uint8
	bits  int
}

func routeEntry(service netip.Addr, method rpcpacket.Method, s spread, h hop) entry {
	return entry{
		Table: "rpc_route",
		Match: []match{
			{Field: "service", Value: p4rtclient.Addr(service)},
			{Field: "method", Value: p4rtclient.Bytes(method[:])},
			{Field: "spread", Value: p4rtclient.Uint(uint64(s.value)), PrefixLen: s.bits},
		},
		Action: "to_hop", Params: toHop(h),
	}
}

func hopEntry(h hop, port uint16, dst, src frame.MAC) entry {
	return entry{
		Table:  "next_hop",
		Match:  []match{{Field: "hop", Value: p4rtclient.Uint(uint64(h))}},
		Action: "forward", Params: []param{
			{Name: "port", Value: p4rtclient.Uint(uint64(port))},
			{Name: "dst", Value: p4rtclient.Bytes(dst[:])},
			{Name: "src", Value: p4rtclient.Bytes(src[:])},
		},
	}
}

// host is the prefix of a single address.
func host(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// machinePrefix is the prefix of a memory machine.
func (e *estate) machinePrefix(machine uint8) netip.Prefix {
	return dsmpacket.MachinePrefix(e.prefix, machine)
}

// base is the set of all entries that should be on the switch.
type base map[string]entry

// tables makes the set what blades, machines, nodes and services ask for. Each of its methods returns the updates that it takes.
type tables struct {
	base
	prefix uint8     // of global pointers
	mac    frame.MAC // from which the switch sends to blades
}

// want makes an entry part of the set and returns the update that it takes.
func (b base) want(e entry) []update {
	key := e.Key()
	old, there := b[key]
	b[key] = e
	switch {
	case !there:
		return []update{{Op: p4rtclient.Insert, Entry: e}}
	case !old.Equal(&e):
		return []update{{Op: p4rtclient.Modify, Entry: e}}
	}
	return nil
}

// unwant takes the entry with e's key out of the set.
func (b base) unwant(e entry) []update {
	key := e.Key()
	old, there := b[key]
	if !there {
		return nil
	}
	delete(b, key)
	return []update{{Op: p4rtclient.Delete, Entry: old}}
}

// reconcile returns what makes the tables that were read back what they should be.
func reconcile(wanted base, found []entry) (revoke, grant phase) {
	missing := make(base, len(wanted))
	for k, e := range wanted {
		missing[k] = e
	}
	for _, e := range found {
		key := e.Key()
		w, ok := wanted[key]
		delete(missing, key)
		switch {
		case !ok:
			revoke = append(revoke, update{Op: p4rtclient.Delete, Entry: e})
		case !w.Equal(&e):
			grant = append(grant, update{Op: p4rtclient.Modify, Entry: w})
		}
	}
	for _, e := range missing {
		grant = append(grant, update{Op: p4rtclient.Insert, Entry: e})
	}
	return revoke, grant
}

// Rates bound what one port of the switch may cause the Gatekeeper, in packets a second for
// each class. The switch drops and counts what is beyond, so a port that floods takes
// nothing from the others. Zero values stand for the defaults.
type Rates struct {
	// Control is packets of the control protocol, NoRoute questions for nodes of methods that
	// nobody serves, NoHome requests to memory machines that are not in service.
	Control, NoRoute, NoHome Rate
	// Digests is what is told of denied accesses.
	Digests Rate
}

// Rate is how many packets may come in a second, and at once after a pause.
type Rate = p4rtclient.Rate

// DefaultRates are some times what a busy blade needs. A Gatekeeper takes some 25 µs of a
// CPU for a packet that it refuses, the switch 10 µs to hand it over. So a blade that floods
// in one class takes a third of one CPU, and others wait for a burst of it for 25 ms at most.
var DefaultRates = Rates{
	Control: Rate{PerSecond: 5_000, Burst: 1_000},
	NoRoute: Rate{PerSecond: 10_000, Burst: 1_000},
	NoHome:  Rate{PerSecond: 10_000, Burst: 1_000},
	Digests: Rate{PerSecond: 5_000, Burst: 1_000},
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
		{"held_control", cmp.Or(r.Control, DefaultRates.Control)}, {"held_no_route", cmp.Or(r.NoRoute, DefaultRates.NoRoute)},
		{"held_no_home", cmp.Or(r.NoHome, DefaultRates.NoHome)}, {"digests", cmp.Or(r.Digests, DefaultRates.Digests)},
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
	// Denied accesses; Dropped is what the switch has
	// dropped, by its verdict; Throttled is what came faster than its class may, by why it would have been held.
	Denied    uint64            `json:"denied"`
	Dropped   map[string]uint64 `json:"dropped,omitempty"`
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
		{"foreign", after.Foreign - before.Foreign},
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

// reasonNames are the reasons for which packets are held, as people read them. A number that is none stands for itself.
var reasonNames = [8]string{"0", "control", "2", "3", "4", "no home", "no route", "hand"}

// Drops tells what was stopped of each port: by the switch, which is asked, and by the
// Gatekeeper. It fails without a switch.
func (g *Gatekeeper) Drops(ctx context.Context) ([]PortDrops, error) {
	verdicts, err := g.client.Counter(ctx, "verdicts")
	if err != nil {
		return nil, err
	}
	throttled, err := g.client.Counter(ctx, "throttled")
	if err != nil {
		return nil, err
	}
	ports := map[uint16]*PortDrops{}
	at := func(num uint16) *PortDrops {
		if ports[num] == nil {
			ports[num] = &PortDrops{Port: num}
		}
		return ports[num]
	}
	set := func(to *map[string]uint64, why string, n int64) {
		if *to == nil {
			*to = map[string]uint64{}
		}
		(*to)[why] = uint64(n) //nolint:gosec // a count
	}
	for cell, n := range verdicts {
		switch port, verdict := p4.VerdictOf(cell); {
		case verdict == p4.Denied:
			at(port).Denied = uint64(n) //nolint:gosec // a count
		case verdict.Dropped():
			set(&at(port).Dropped, verdict.String(), n)
		}
	}
	for cell, n := range throttled {
		set(&at(uint16(cell>>3)).Throttled, reasonNames[cell&7], n) //nolint:gosec // 9 bits
	}
	if err := g.do(ctx, func() {
		for port, n := range g.ctl.refused {
			at(port).Refused = maps.Clone(n)
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

// writer writes plans to the switch. It outlives sessions: what a session did
// not get answered, the next one writes again.
//
//	submit ─▶ batcher ─▶ Write, one request at a time
type writer struct {
	wake  chan struct{} // there may be something to write
	tasks chan task     // to be done between batches

	mu sync.Mutex
	b  batcher
}

func newWriter() *writer { return &writer{wake: make(chan struct{}, 1), tasks: make(chan task)} }

// submit takes plans; it does not block. Their number is bounded by the
// controller, which begins a new transition only if few are under way.
func (w *writer) submit(plans []*plan) {
	w.mu.Lock()
	for _, p := range plans {
		w.b.submit(p)
	}
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// run writes until the session ends or the switch cannot be reached, and hands
// finished plans to done.
func (w *writer) run(ctx context.Context, write func(context.Context, []p4rtclient.Update) error, done func([]*plan)) error {
	for {
		select {
		case e := <-w.tasks:
			if err := w.carryOut(ctx, e); err != nil {
				return err
			}
		default:
		}
		finished, batch := w.next()
		if len(finished) > 0 {
			done(finished)
		}
		if len(batch) == 0 {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-w.wake:
			case e := <-w.tasks:
				if err := w.carryOut(ctx, e); err != nil {
					return err
				}
			}
			continue
		}
		err := write(ctx, batch)
		w.mu.Lock()
		err = w.b.answer(err)
		w.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// next returns the plans that have ended, and the next batch, if there is one.
func (w *writer) next() (finished []*plan, batch []p4rtclient.Update) {
	w.mu.Lock()
	defer w.mu.Unlock()
	finished = w.b.done()
	if !w.b.idle() {
		batch = w.b.next()
	}
	return finished, batch
}

// carryOut does a task. Its failure ends the session, which then begins anew.
func (w *writer) carryOut(ctx context.Context, e task) error {
	err := e.do(ctx)
	e.done <- err
	return err
}

// batcher decides what the writer writes next: it is the writer's core, without
// I/O. One batch is out at a time; what comes up meanwhile waits for the next.
//
//	submit ──▶ revokes ─┐                    ┌─▶ next phase: revokes or grants
//	           grants  ─┴▶ next ── answer ───┴─▶ done
type batcher struct {
	revokes, grants []*plan // whose present phase is to be written
	ordered         []*plan // ordered plans; the first one is also in revokes or grants
	out             []*plan // in the batch that is out
	grantNext       bool    // the two kinds take turns
	finished        []*plan
}

// submit takes a plan.
func (b *batcher) submit(p *plan) {
	p.skip()
	if !p.ordered {
		b.line(p)
		return
	}
	b.ordered = append(b.ordered, p)
	if len(b.ordered) == 1 {
		b.line(p)
	}
}

// line queues a plan's present phase, or ends the plan.
func (b *batcher) line(p *plan) {
	switch {
	case len(p.phases) == 0:
		b.finished = append(b.finished, p)
		if p.ordered {
			b.ordered = b.ordered[1:]
			if len(b.ordered) > 0 {
				b.line(b.ordered[0])
			}
		}
	case p.revokes():
		b.revokes = append(b.revokes, p)
	default:
		b.grants = append(b.grants, p)
	}
}

// idle reports whether there is nothing to write.
func (b *batcher) idle() bool { return len(b.revokes)+len(b.grants) == 0 }

// next returns the next batch; none may be out.
func (b *batcher) next() []p4rtclient.Update {
	from := &b.revokes
	if b.grantNext && len(b.grants) > 0 || len(b.revokes) == 0 {
		from = &b.grants
	}
	b.grantNext = from == &b.revokes
	var updates []p4rtclient.Update
	n := 0
	for _, p := range *from {
		if n > 0 && len(updates)+len(p.phases[0]) > maxBatch {
			break
		}
		updates = append(updates, p.phases[0]...)
		n++
	}
	b.out = slices.Clone((*from)[:n])
	*from = slices.Delete(*from, 0, n)
	return updates
}

// answer takes the outcome of the batch that is out. If the switch could not be
// asked, the batch goes back to be written again, and the error is returned.
func (b *batcher) answer(err error) error {
	var refused *p4rtclient.BatchError
	if err != nil && !errors.As(err, &refused) {
		b.retry()
		return err
	}
	failures := map[int]p4rtclient.UpdateError{}
	if refused != nil {
		for _, u := range refused.Updates {
			failures[u.Index] = u
		}
	}
	at := 0
	for _, p := range b.out {
		n := len(p.phases[0])
		p.takeAnswer(failures, at)
		b.line(p)
		at += n
	}
	b.out = nil
	return nil
}

// takeAnswer takes the answer to the plan's present phase, whose first update has
// the index at in the batch. An update that finds the table as it wants it has
// succeeded: it may have been written before the connection broke.
func (p *plan) takeAnswer(failures map[int]p4rtclient.UpdateError, at int) {
	var again phase
	for i, u := range p.phases[0] {
		f, failed := failures[at+i]
		switch {
		case !failed, u.Op == p4rtclient.Delete && f.Code == codes.NotFound:
		case u.Op == p4rtclient.Insert && f.Code == codes.AlreadyExists && p.fixes < maxFixes:
			again = append(again, p4rtclient.Update{Op: p4rtclient.Modify, Entry: u.Entry})
		case u.Op == p4rtclient.Modify && f.Code == codes.NotFound && p.fixes < maxFixes:
			again = append(again, p4rtclient.Update{Op: p4rtclient.Insert, Entry: u.Entry})
		case p.err == nil:
			p.err = fmt.Errorf("%s %s: %s: %s", u.Op, &u.Entry, f.Code, f.Message)
		}
	}
	switch {
	case p.err != nil: // what is to end ends all the same: whoever waits for the plan goes on as if it had
		p.phases = slices.DeleteFunc(p.phases[1:], func(f phase) bool { return f[0].Op != p4rtclient.Delete })
	case len(again) > 0:
		p.fixes++
		p.phases[0] = again
	default:
		p.phases = p.phases[1:]
	}
}

// retry puts the plans of the batch that is out back in front.
func (b *batcher) retry() {
	if len(b.out) == 0 {
		return
	}
	if b.out[0].revokes() {
		b.revokes = append(b.out, b.revokes...)
	} else {
		b.grants = append(b.out, b.grants...)
	}
	b.out = nil
}

// done returns the plans that have ended, and forgets them.
func (b *batcher) done() []*plan {
	done := b.finished
	b.finished = nil
	return done
}
