package gatekeeper

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// A memory machine that the configuration gives two blades is mirrored: each change
// goes to both blades, so either may die. The log says which blades have a complete copy.
// Each set of copies has a number, the mirror epoch.
//
//	 one copy ── the other blade is in service ──▶ it is filled (fill.go) ──▶ two copies
//	    ▲
//	    └─ the survivor is told: alone, in the next epoch; dsm_home ◀── the lost blade's identity
//	       is off ◀── written down ◀── a blade is silent, restarts, or does not obey
//
// A copy that was lost does not count any more, whatever it still has. When its blade is back,
// the blade is told to forget everything, and is filled from the other one.
//
// A copy is given up only after the other blade has answered, since the other blade may have died
// unnoticed. If both are silent, both copies count until one blade is back. That blade has
// everything, since nothing was settled without it.

// mirror is a memory machine with two blades.
type mirror struct {
	machine uint8
	blades  []string // both, as configured
	epoch   uint32   // of the present copies
	last    uint32   // the highest incarnation of a copy so far
	copies  []copyOf // complete ones; the first answers reads
	why     string   // there are not two
	out     string   // the blade that an operator has taken out, "" for none
	birth   uint64   // of the machine's ledgers (control.Hello.Birth)
	lost    uint32   // up to this generation, the machine's regions are lost
	// A copy that could not be filled is not filled before again.
	again time.Time
	pause time.Duration
	// Work under way, which ends with a set of copies.
	filling   *fillJob // of a second copy
	doubted   *blade   // whose copy is lost when the other blade has answered, nil for none
	levelling []*levelling
}

// copyOf is a complete copy of a machine.
type copyOf struct {
	Blade       string `json:"blade"`
	Incarnation uint32 `json:"incarnation"`
}

// mirrorRecord is the data of log.KindMirror.
type mirrorRecord struct {
	Machine uint8    `json:"machine"`
	Blades  []string `json:"blades"`
	Epoch   uint32   `json:"epoch"`
	Last    uint32   `json:"last"`
	Copies  []copyOf `json:"copies"`
	Why     string   `json:"why,omitempty"`
	Out     string   `json:"out,omitempty"`
	Birth   uint64   `json:"birth,omitempty"`
	Lost    uint32   `json:"lost,omitempty"`
	Filling string   `json:"filling,omitempty"` // the blade that is being filled
}

func (j *journal) keepMirror(m *mirror) {
	j.putData(wal.Record{Kind: wal.KindMirror, ID: wal.ID{m.machine}}, m.record())
}

func (m *mirror) record() mirrorRecord {
	r := mirrorRecord{Machine: m.machine, Blades: m.blades, Epoch: m.epoch, Last: m.last, Copies: m.copies, Why: m.why, Out: m.out, Birth: m.birth, Lost: m.lost}
	if m.filling != nil {
		r.Filling = m.filling.blade
	}
	return r
}

// restoreMirror brings a mirrored machine back, before its blades. A filling was cut off:
// nobody knows how far it has got, so the first copy goes on in an epoch above that of the
// new copy.
func (c *controller) restoreMirror(r *wal.Record) error {
	var s mirrorRecord
	if err := data(r, &s); err != nil {
		return err
	}
	m := &mirror{machine: s.Machine, blades: s.Blades, epoch: s.Epoch, last: s.Last, copies: s.Copies, why: s.Why, out: s.Out, birth: s.Birth, lost: s.Lost}
	c.mirrors[s.Machine] = m
	if s.Filling != "" {
		m.epoch++
		m.why = fmt.Sprintf("the Gatekeeper has restarted while blade %s was being filled", s.Filling)
		c.keepMirror(m)
	}
	return nil
}

// has reports whether a blade has a complete copy.
func (m *mirror) has(b *blade) bool {
	return slices.ContainsFunc(m.copies, func(o copyOf) bool { return o.Blade == b.hello.Blade })
}

// holds reports whether a memory blade has content that counts.
func (b *blade) holds() bool { return b.mirror == nil || b.mirror.has(b) }

// first reports whether a memory blade is the one that reads go to.
func (b *blade) first() bool {
	return b.mirror == nil || len(b.mirror.copies) > 0 && b.mirror.copies[0].Blade == b.hello.Blade
}

// two reports whether a blade belongs to a machine that has two copies now.
func (b *blade) two() bool { return b.mirror != nil && len(b.mirror.copies) == 2 }

// copies is how many copies a blade's machine has now.
func (b *blade) copies() int {
	if b.two() {
		return 2
	}
	return 1
}

// completing reports whether the second copy of a machine is being completed: it gets
// commands, and nobody knows yet whether it is one.
func (m *mirror) completing() bool { return m != nil && m.filling != nil && m.filling.closing }

// obeys reports whether a memory blade must get every command.
func (b *blade) obeys() bool {
	return b.holds() || b.mirror.completing() && b.mirror.filling.blade == b.hello.Blade
}

// enroll makes a blade that says hello a part of its machine: the first one of all has
// the copy, and so has one that has come back with it. It reports whether the machine has changed.
func (b *blade) enroll() (changed bool) {
	m := b.mirror
	switch {
	case m == nil:
		return false
	case m.has(b):
		changed = len(m.copies) == 1 && m.birth != b.hello.Birth
		if changed {
			m.birth = b.hello.Birth // its ledgers are lost
		}
		return changed
	case len(m.copies) == 0:
		if m.epoch > 0 {
			m.last++
		} // else it may hold something of the time when it was its machine's only blade
		m.epoch++
		m.copies, m.birth, m.lost = []copyOf{{b.hello.Blade, m.last}}, b.hello.Birth, max(m.lost, b.begin)
		return true
	}
	return false
}

// mirrorOf is what a blade is told to be: one without a copy is told to be another one
// than before, so that it forgets what it has.
func (m *mirror) mirrorOf(b *blade) control.Mirror {
	for i, o := range m.copies {
		if o.Blade == b.hello.Blade {
			return control.Mirror{Epoch: m.epoch, Incarnation: o.Incarnation, Copy: uint8(i), Members: uint8(len(m.copies)), Birth: m.birth, Lost: m.lost} //nolint:gosec // two
		}
	}
	return control.Mirror{Epoch: m.epoch, Incarnation: m.last + 1, Members: 1, Lost: m.lost} // with ledgers of its own
}

// welcomeMirror is mirrorOf for the answer to a hello; nil for a machine with one blade.
func (b *blade) welcomeMirror() *control.Mirror {
	if b.mirror == nil {
		return nil
	}
	m := b.mirror.mirrorOf(b)
	return &m
}

// outcome reads the answer to a command that a blade may refuse.
func outcome(reply control.Message) (o control.Outcome) {
	if json.Unmarshal(reply.Body, &o) != nil {
		o.Code = fault.Internal
	}
	return o
}

// groupRules are what the switch needs to make copies of a packet.
func (t tables) groupRules(m *mirror, blades map[string]*blade) (u phase) {
	var replicas []p4rtclient.Replica
	for _, name := range m.receivers() {
		p := blades[name].port
		replicas = append(replicas, p4rtclient.Replica{Port: p.num, ID: uint16(hopOf(p.num))})
		u = append(u, t.want(replicaEntry(hopOf(p.num), p.mac, t.mac))...)
	}
	return append(u, t.want(p4rtclient.Group(uint16(m.machine), replicas...))...)
}

// receivers are the blades that get what changes something.
func (m *mirror) receivers() (blades []string) {
	for _, o := range m.copies {
		blades = append(blades, o.Blade)
	}
	if m.filling != nil && m.filling.joining {
		blades = append(blades, m.filling.blade)
	}
	return blades
}

// homeRules are where requests to the machine go.
func (t tables) homeRules(m *mirror, first *blade) phase {
	prefix := dsmpacket.MachinePrefix(t.prefix, m.machine)
	switch {
	case !first.alive():
		return t.unwant(homeEntry(prefix, 0))
	case len(m.receivers()) == 2:
		return t.want(copiesEntry(prefix, hopOf(first.port.num), uint16(m.machine)))
	}
	return t.want(homeEntry(prefix, hopOf(first.port.num)))
}

// disagree loses the second copy, which is not what the first one is.
func (c *controller) disagree(m *mirror, why string) {
	second := c.blades[m.copies[1].Blade]
	c.giveUpCopy(second, second.two, func() { c.loseCopy(second, why) })
}

// giveUpCopy loses a blade's copy as soon as the other blade has shown that it is there,
// unless it need not be any more. The blade has failed if that one does not answer either.
func (c *controller) giveUpCopy(b *blade, needed func() bool, lose func()) {
	m, o, epoch := b.mirror, c.other(b), b.mirror.epoch
	if m.doubted == b {
		return
	}
	m.doubted = b
	c.command(o, control.KindMirror, m.mirrorOf(o), func(control.Message) {
		if m.doubted != b || m.epoch != epoch {
			return
		}
		m.doubted, c.timers = nil, true
		if needed() {
			lose()
		}
	})
}

// giveUp takes a blade out of service that was silent, or did not obey, at some time.
func (c *controller) giveUp(b *blade, at time.Time, why string) {
	if !b.two() {
		c.takeOut(b, why, false)
		return
	}
	if o := c.other(b); !at.Before(c.hearing.silent(o)) || o.overdue(at) >= 0 { // neither shows that it is there
		c.bothAway(b.mirror, why)
		return
	}
	bad := func() bool { return b.alive() && (!c.now.Before(c.hearing.silent(b)) || b.overdue(c.now) >= 0) }
	c.giveUpCopy(b, bad, func() { c.takeOut(b, why, false) })
}

// doubtful reports whether a blade is taken out of service when another one has answered.
func (b *blade) doubtful() bool { return b.two() && b.mirror.doubted == b }

// bothAway takes both blades of a machine out of service. Their copies count: the first blade
// that is back with what it had has all that was settled.
func (c *controller) bothAway(m *mirror, why string) {
	m.levelling, m.doubted = nil, nil // nobody waits for a blade out of service
	for _, o := range slices.Clone(m.copies) {
		c.takeOut(c.blades[o.Blade], why, true)
	}
}

// loseCopy makes a machine with two copies one that has one: the blade's is lost,
// whatever it still has.
func (c *controller) loseCopy(b *blade, why string) {
	m, survivor := b.mirror, c.other(b)
	m.copies = slices.DeleteFunc(m.copies, func(o copyOf) bool { return o.Blade == b.hello.Blade })
	c.count.CopiesLost++
	c.alone(m, b, survivor, why)
}

// alone leaves a machine with one copy. Nothing that the blade of the lost one has counts
// any more, nor what was under way to make it a copy.
func (c *controller) alone(m *mirror, b, survivor *blade, why string) {
	m.epoch++
	m.why = why
	if survivor.alive() {
		survivor.unlevel = append(survivor.unlevel, m.levelling...)
	}
	m.levelling, m.doubted = nil, nil
	c.keepMirror(m)
	c.event(Event{Kind: MachineUnmirrored, Blade: b.hello.Blade, Message: fmt.Sprintf("machine %d has one copy, %s: %s", m.machine, survivor.hello.Blade, why)})
	c.logger.Warn("memory machine has one copy", "machine", m.machine, "copy", survivor.hello.Blade, "reason", why)

	c.machines[m.machine] = survivor
	if !survivor.alive() {
		c.machines[m.machine] = nil
	}
	c.unserve(b)
	b.missed = missed{}
	c.keepMissed(b)
	c.dropReclaims(b, b.reclaims)
	b.reclaims, b.reclaiming = nil, 0

	epoch := m.epoch
	c.change(func(error) {
		if m.epoch != epoch {
			return
		}
		if b.alive() && m.filling == nil {
			c.command(b, control.KindMirror, m.mirrorOf(b), nil) // it forgets what it has
		}
		if !survivor.alive() {
			return // it is told when it says hello
		}
		c.command(survivor, control.KindMirror, m.mirrorOf(survivor), func(control.Message) {
			unlevel := survivor.unlevel
			survivor.unlevel = nil
			for _, x := range unlevel {
				x.end()
			}
			if m.epoch == epoch && survivor.alive() {
				c.change(func(error) { c.announce(m) }, c.homeRules(m, c.source(m)))
				if len(m.receivers()) == 1 { // else the switch sends to a blade that is being filled, too
					c.change(nil, c.unwant(p4rtclient.Group(uint16(m.machine))))
				}
			}
		})
	}, c.noMemoryRules(b))
}

// announce tells every node of the machine's present copies: an answer to no request. Who waits
// for an answer of a lost copy sends again at once. If it is lost, the node hears of the new
// epoch when it sends again by itself.
func (c *controller) announce(m *mirror) {
	first := c.source(m)
	if first == nil || !first.alive() {
		return
	}
	told := m.mirrorOf(first)
	from := dsmpacket.Make(c.cfg.DSMPrefix, m.machine, 0).With(dsmpacket.OpRead).Addr()
	for _, a := range slices.SortedFunc(maps.Keys(c.nodes), netip.Addr.Compare) {
		h := dsmpacket.Header{Kind: dsmpacket.Reply, Incarnation: c.nodes[a].incarnation, Mirror: dsmpacket.Mirror{
			Epoch: told.Epoch, Incarnation: told.Incarnation, Copy: told.Copy, Members: told.Members,
		}}
		c.send(0, frame.UDP6{
			Src: netip.AddrPortFrom(from, rackaddr.PortDSM), Dst: netip.AddrPortFrom(a, rackaddr.PortDSM), Payload: h.Append(nil),
		}.Append(nil))
	}
}

// memoryRules let a blade answer for its machine.
func (t tables) memoryRules(b *blade) phase {
	return t.want(t.memoryIdentity(b))
}

// noMemoryRules take that away, wherever the blade was.
func (t tables) noMemoryRules(b *blade) phase {
	return t.unwant(identityEntry(b.at.port, dsmpacket.MachinePrefix(t.prefix, b.hello.Machine), p4.MemoryServer))
}

// levelling is a fence of a node at both copies of a machine: they may differ in what the node had not settled, until the first copy has
// made the second one what it is itself.
type levelling struct {
	fence control.Fence
	told  map[*blade]control.Unsettled
	then  []func()
}

func (x *levelling) end() {
	for _, then := range x.then {
		then()
	}
}

// level takes the answer of one copy to a fence, and has the first one make the second one equal when both have answered. Then it goes on.
func (c *controller) level(b *blade, f control.Fence, reply control.Message, then func()) {
	m := b.mirror
	if m.completing() {
		m.filling.later = append(m.filling.later, laterFence{b, f, reply, then})
		return
	}
	if !b.two() {
		then()
		return
	}
	i := slices.IndexFunc(m.levelling, func(x *levelling) bool { return x.fence == f && len(x.told) < 2 })
	switch {
	case i < 0 && !b.first() && !c.other(b).asked(f):
		then() // the first copy was fenced before the second one was filled from it
		return
	case i < 0:
		i, m.levelling = len(m.levelling), append(m.levelling, &levelling{fence: f, told: map[*blade]control.Unsettled{}})
	}
	x := m.levelling[i]
	var told control.Fenced
	if json.Unmarshal(reply.Body, &told) != nil {
		told.Unsettled.More = true
	}
	x.told[b] = told.Unsettled
	x.then = append(x.then, then)
	if len(x.told) < 2 {
		return
	}
	first, second := c.blades[m.copies[0].Blade], c.blades[m.copies[1].Blade]
	q := control.Level{Epoch: m.epoch, Fence: f, First: x.told[first], Second: x.told[second]}
	if q.Equal() {
		m.levelled(x)
		return
	}
	c.command(first, control.KindLevel, q, func(reply control.Message) {
		switch o := outcome(reply); {
		case !slices.Contains(m.levelling, x): // a copy has been lost
		case o.Code != fault.OK:
			c.loseCopy(second, fmt.Sprintf("blade %s cannot be made level: %s", second.hello.Blade, o.Message)) // ends x
		default:
			m.levelled(x)
		}
	})
}

// levelled says that the copies are equal in what a fence has left.
func (m *mirror) levelled(x *levelling) {
	m.levelling = slices.DeleteFunc(m.levelling, func(o *levelling) bool { return o == x })
	x.end()
}

// asked reports whether a blade has to answer a fence.
func (b *blade) asked(f control.Fence) bool {
	return slices.ContainsFunc(b.commands, func(m *command) bool { return m.body == any(f) })
}

// restoreMirrors makes rules of what is known of mirrored machines, once their blades
// are.
func (c *controller) restoreMirrors() {
	for _, machine := range slices.Sorted(maps.Keys(c.mirrors)) {
		m := c.mirrors[machine]
		if len(m.copies) == 0 || c.blades[m.copies[0].Blade] == nil {
			continue
		}
		if len(m.copies) == 2 && c.blades[m.copies[0].Blade].alive() { // both are, or neither
			c.groupRules(m, c.blades)
		}
		c.homeRules(m, c.source(m))
		c.resuming.mirrors = append(c.resuming.mirrors, m)
	}
}

// resumeMirror tells the copies of a machine again what they are: whoever was before us
// may have been cut off.
func (c *controller) resumeMirror(m *mirror) {
	for _, o := range slices.Clone(m.copies) {
		b := c.blades[o.Blade]
		if !b.alive() {
			continue
		}
		epoch := m.epoch
		c.command(b, control.KindMirror, m.mirrorOf(b), func(reply control.Message) {
			if r := outcome(reply); r.Code != fault.OK && m.epoch == epoch && b.two() {
				c.loseCopy(b, fmt.Sprintf("blade %s is not the copy that it was: %s", b.hello.Blade, r.Message))
			}
		})
	}
	c.pairUp(m)
}
