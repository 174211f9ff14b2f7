package gatekeeper

import (
	"encoding/binary"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/p4switch/shared/wirefmt"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The Gatekeeper's hand (docs/rights.md, section 2): operations on the switch's registers. Each is a packet-out, which a packet-in
// answers. Either may be lost, so what is not answered is sent again: each operation may be repeated.
//
//	job ── next ──▶ hand ── packet-out, again and again ──▶ switch
//	 ▲                                                        │
//	 └───────── took ── hand ◀────────── packet-in ───────────┘
//
// Jobs take turns. A bounded number of operations is out at a time.

// handKind is what an operation does: enum Hand of p4/rights_headers.p4.
type handKind uint8

const (
	handReadWords handKind = 1
	handReadSlots handKind = 2
	handFail      handKind = 3
	handLend      handKind = 4
	handSeize     handKind = 5
	handSetWord   handKind = 6
	handSetSlot   handKind = 7
	handRebuilt   handKind = 8
)

// handOutcome is how an operation has ended: enum Outcome.
type handOutcome uint8

const (
	handDone        handOutcome = 0
	handNothing     handOutcome = 1
	handStale       handOutcome = 2
	handHasChildren handOutcome = 3
	handDenied      handOutcome = 4
)

// How many registers one operation reads.
const (
	wordsAtOnce = 8
	slotsAtOnce = 4
)

// handOp is an operation.
type handOp struct {
	kind   handKind
	slot   uint32           // the first register that is read; the slot of a call that fails, or of a lease; the register that is set
	number rpcpacket.Number // of a call that fails, or of a standing lease
	owner  uint16           // who must own the regions
	lessee uint16           // who may read them
	// regions are those that are lent, up to four, or the one that is seized.
	regions []dsmpacket.RegionID
	word    uint64 // that is set
	cell    []byte // of a call slot that is set
}

// handAnswer is what an operation has found.
type handAnswer struct {
	outcome handOutcome
	words   []word
	slots   []slotCell
}

// word is what the switch has of a region.
type word struct {
	region dsmpacket.RegionID // its generation is 0 if the slot has never had one
	owner  uint16
	lent   uint32
}

// wordOf reads the word of a region slot.
func wordOf(slot uint32, v uint64) word {
	return word{dsmpacket.IDOf(slot, uint32(v>>32)&dsmpacket.MaxGeneration), uint16(v >> 20 & 0xFFF), uint32(v & 0xFFFFF)} //nolint:gosec // 54 bits
}

// value is the word as a register has it.
func (w word) value() uint64 {
	return uint64(w.region.Generation())<<32 | uint64(w.owner)<<20 | uint64(w.lent)
}

// slotState is the state of a call slot.
type slotState uint8

const (
	slotUnused  slotState = 0
	slotOpen    slotState = 1
	slotClosed  slotState = 2
	slotRefused slotState = 3
	slotFailed  slotState = 4
)

// slotCell is what the switch has of a call slot.
type slotCell struct {
	slot           rpcpacket.Slot
	number         rpcpacket.Number
	state          slotState
	caller, callee uint16 // rows
	place, length  uint8  // in its call, and how many slots that has
	given          bool
	standing       bool
	parent         rpcpacket.Slot
	lender         rpcpacket.Number // of the parent; 0 for none
	children       uint8
	regions        []dsmpacket.RegionID
}

// slotOf reads the registers of a call slot.
func slotOf(slot uint32, v []byte) slotCell {
	be := binary.BigEndian
	state := be.Uint64(v[8:])
	k := slotCell{
		slot: rpcpacket.Slot(slot), number: rpcpacket.Number(be.Uint64(v)), state: slotState(state & 7), //nolint:gosec // 3 bits
		caller: uint16(state >> 26 & 0xFFF), callee: uint16(state >> 14 & 0xFFF), place: uint8(state >> 6 & 3), length: uint8(state >> 8 & 7), //nolint:gosec // 12, 2 and 3 bits
		given: state>>5&1 == 1, standing: state>>4&1 == 1,
		parent: rpcpacket.Slot(state >> 38 & 0xFFFFF), lender: rpcpacket.Number(be.Uint64(v[16:])), children: v[31], //nolint:gosec // 20 bits
	}
	for i := range min(int(state>>11&7), 4) { //nolint:gosec // 3 bits
		k.regions = append(k.regions, dsmpacket.RegionID(be.Uint64(v[32+8*i:])))
	}
	return k
}

// appendTo is the opposite of slotOf. That a call is ending is not kept: it is asked for again.
func (k *slotCell) appendTo(b []byte) []byte {
	be := binary.BigEndian
	flag := func(set bool, bit int) uint64 {
		if set {
			return 1 << bit
		}
		return 0
	}
	state := uint64(k.parent)<<38 | uint64(k.caller)<<26 | uint64(k.callee)<<14 | uint64(len(k.regions))<<11 | uint64(k.length)<<8 | uint64(k.place)<<6
	b = be.AppendUint64(b, uint64(k.number))
	b = be.AppendUint64(b, state|flag(k.given, 5)|flag(k.standing, 4)|uint64(k.state))
	b = be.AppendUint64(b, uint64(k.lender))
	b = be.AppendUint64(b, uint64(k.children))
	for i := range 4 {
		region := dsmpacket.RegionID(0)
		if i < len(k.regions) {
			region = k.regions[i]
		}
		b = be.AppendUint64(b, uint64(region))
	}
	return b
}

// handHeader is the length of hand_t, and of found_t.
const handHeader = 64

// handEthernet is the Ethernet header of an operation.
var handEthernet = [14]byte{12: 0x88, 13: 0xB5}

// size is how many bytes an operation has behind its header: room for what is read.
func (k handKind) size() int {
	switch k {
	case handReadWords:
		return handHeader
	case handReadSlots:
		return slotsAtOnce * handHeader
	case handSetSlot:
		return handHeader
	default:
	}
	return 0
}

// frame is an operation as a packet. The tag comes back with the answer.
func (o *handOp) frame(election uint64, tag uint32) []byte {
	be := binary.BigEndian
	b := append(make([]byte, 0, len(handEthernet)+handHeader+o.kind.size()), handEthernet[:]...)
	b = append(b, byte(o.kind), 0)
	b = be.AppendUint16(b, o.owner)
	b = be.AppendUint16(b, o.lessee)
	b = append(b, byte(len(o.regions)), 0)
	b = be.AppendUint64(b, election)
	b = be.AppendUint64(b, uint64(o.number)|o.word)
	b = be.AppendUint32(b, o.slot)
	b = be.AppendUint32(b, tag)
	for _, id := range o.regions {
		b = be.AppendUint64(b, uint64(id))
	}
	b = append(b, make([]byte, 8*(control.MaxShared-len(o.regions)))...)
	if o.kind == handSetSlot {
		return append(b, o.cell...)
	}
	return append(b, make([]byte, o.kind.size())...)
}

// parseHand reads an answer, with the election id of who has sent the operation.
func parseHand(b []byte) (election uint64, tag uint32, a handAnswer, err error) {
	if len(b) < len(handEthernet)+handHeader {
		return 0, 0, a, wirefmt.Errorf("an operation's answer has %d bytes", len(b))
	}
	be := binary.BigEndian
	h, found := b[len(handEthernet):][:handHeader], b[len(handEthernet)+handHeader:]
	kind, first := handKind(h[0]), be.Uint32(h[24:])
	if len(found) < kind.size() {
		return 0, 0, a, wirefmt.Errorf("an operation of kind %d found %d bytes", kind, len(found))
	}
	a.outcome = handOutcome(h[1])
	switch kind {
	case handReadWords:
		for i := range uint32(wordsAtOnce) {
			a.words = append(a.words, wordOf(first+i, be.Uint64(found[8*i:])))
		}
	case handReadSlots:
		for i := range uint32(slotsAtOnce) {
			a.slots = append(a.slots, slotOf(first+i, found[handHeader*i:][:handHeader]))
		}
	default: // it has read nothing
	}
	return be.Uint64(h[8:]), be.Uint32(h[28:]), a, nil
}

// handJob is what wants operations to be done.
type handJob interface {
	// next returns the next operation; false if there is none for now.
	next() (handOp, bool)
	// took takes an operation's answer.
	took(handOp, *handAnswer)
}

// handWindow is how many operations are out at a time.
const handWindow = 64

// handPauses are those after which an operation is sent again. The switch answers within microseconds, bmv2 within milliseconds. A switch that is
// slower than that would have more to do with each repetition, so they become fewer.
var handPauses = pace.Pauses{First: 100 * time.Millisecond, Most: time.Second}

// hand is what the Gatekeeper does to registers. It is pure: it hands out packets and takes packets.
type hand struct {
	election uint64
	tag      uint32     // of the last operation
	out      []*handOut // by tag, the oldest first
	jobs     []handJob  // those that may have a next operation, in turns
	first    handJob    // if there is one, only its operations are done
	stale    bool       // another Gatekeeper has the switch
}

// handOut is an operation that is out.
type handOut struct {
	handOp
	tag   uint32
	job   handJob
	pause time.Duration // until it is sent again
	again time.Time     // when it is
}

// lead begins to act under an election id.
func (h *hand) lead(election uint64) { h.election, h.stale = election, false }

// begin takes a job, or one that has a next operation again.
func (h *hand) begin(j handJob) {
	if !slices.Contains(h.jobs, j) {
		h.jobs = append(h.jobs, j)
	}
}

// probe has the switch answer, out of turn, unless it is to already: the answer comes behind all packets that the switch held before it was asked.
func (h *hand) probe() {
	if !slices.ContainsFunc(h.out, func(o *handOut) bool { return o.job == probing{} }) {
		h.tag++
		h.out = append(h.out, &handOut{handOp: handOp{kind: handReadWords}, tag: h.tag, job: probing{}})
	}
}

// end gives a job up.
func (h *hand) end(j handJob) {
	h.jobs = slices.DeleteFunc(h.jobs, func(o handJob) bool { return o == j })
	h.out = slices.DeleteFunc(h.out, func(o *handOut) bool { return o.job == j })
}

// send returns what is to be sent now.
func (h *hand) send(now time.Time) (frames [][]byte) {
	if h.stale {
		return nil
	}
	for _, o := range h.out {
		if !now.Before(o.again) && h.may(o.job) {
			o.pause = handPauses.Next(o.pause)
			o.again = now.Add(o.pause)
			frames = append(frames, o.frame(h.election, o.tag))
		}
	}
	for len(h.jobs) > 0 && (len(h.out) < handWindow || h.first != nil) {
		j := h.jobs[0]
		if h.first != nil {
			if j = h.first; !slices.Contains(h.jobs, j) {
				break
			}
			h.jobs = append([]handJob{j}, slices.DeleteFunc(h.jobs, func(o handJob) bool { return o == j })...)
		}
		h.jobs = h.jobs[1:]
		o, more := j.next()
		if !more {
			continue
		}
		h.jobs = append(h.jobs, j)
		h.tag++
		h.out = append(h.out, &handOut{o, h.tag, j, handPauses.First, now.Add(handPauses.First)})
		frames = append(frames, o.frame(h.election, h.tag))
	}
	return frames
}

// take takes an answer, and returns the job that it is for; nil if it is for none any more.
func (h *hand) take(b []byte) (handJob, error) {
	election, tag, a, err := parseHand(b)
	if err != nil {
		return nil, err
	}
	if election != h.election {
		return nil, nil // a former Gatekeeper has sent it: it tells nothing of ours
	}
	i, known := slices.BinarySearchFunc(h.out, tag, func(o *handOut, tag uint32) int { return int(int32(o.tag - tag)) }) //nolint:gosec // tags begin anew
	if !known {
		return nil, nil
	}
	o := h.out[i]
	switch {
	case !h.may(o.job):
		return nil, nil
	case a.outcome == handStale:
		h.stale = true
		return nil, nil
	}
	h.out = slices.Delete(h.out, i, i+1)
	o.job.took(o.handOp, &a)
	return o.job, nil
}

// may reports whether a job's operations are done now.
func (h *hand) may(j handJob) bool { return h.first == nil || h.first == j || j == probing{} }

// deadline is when something is sent again; zero for never.
func (h *hand) deadline() (at time.Time) {
	if h.stale {
		return at
	}
	for _, o := range h.out {
		if h.may(o.job) && (at.IsZero() || o.again.Before(at)) {
			at = o.again
		}
	}
	return at
}

// lost says that what is out may be lost: the session with the switch is another one. It is all sent again.
func (h *hand) lost() {
	for _, o := range h.out {
		o.pause, o.again = 0, time.Time{}
	}
}

// reach sends what the hand has to send, while there is a switch.
func (c *controller) reach() {
	if !c.connected {
		return
	}
	for _, f := range c.hand.send(c.now) {
		c.send(0, f)
	}
	c.timers = true
}

// handAnswered takes a packet with what an operation has found.
func (c *controller) handAnswered(b []byte) {
	was := c.hand.stale
	job, err := c.hand.take(b)
	switch {
	case err != nil:
		c.count.Malformed++
		return
	case c.hand.stale && !was:
		c.logger.Error("another Gatekeeper has used the switch's registers: this one does nothing to them any more")
	}
	switch j := job.(type) {
	case probing:
		c.probeAnswered()
	case *readying:
		c.readied(j)
	case *gather:
		c.goOnGather(j)
	case *survey:
		c.goOnSurvey(j)
	case *ending:
		c.goOnEnding(j)
	case *holding:
		c.goOnHolding(j)
	case *looking:
		c.goOnLooking(j)
	case *sight:
		c.goOnSight(j)
	case *rebuild:
		c.goOnRebuild(j)
	case *leases:
		c.goOnLeases()
	}
	c.reach()
}

// probing is the job of a probe: an operation that changes nothing.
type probing struct{}

func (probing) next() (handOp, bool)     { return handOp{}, false }
func (probing) took(handOp, *handAnswer) {}

// readying lets packets pass: a switch that has just begun drops what needs its registers.
type readying struct {
	asked bool // whether they are empty: only then a word may be set
	empty bool
	begin bool // the rack begins, too
	told  bool
}

func (r *readying) next() (handOp, bool) {
	switch {
	case !r.asked:
		r.asked = true
		return handOp{kind: handSetWord}, true // of slot 0, which nobody has
	case r.begin && !r.told:
		r.told = true
		return handOp{kind: handRebuilt}, true
	}
	return handOp{}, false
}

func (r *readying) took(o handOp, a *handAnswer) {
	r.empty = o.kind == handSetWord && a.outcome == handDone
}

// ready has the switch's registers used, once it is connected. What else the hand does goes on when it is known that they have what they had.
func (c *controller) ready() {
	c.hand.lead(c.cfg.Election.Low)
	c.hand.lost()
	r := &readying{}
	if c.hand.first != nil {
		c.hand.end(c.hand.first)
	}
	c.hand.first = r
	c.hand.begin(r)
	c.reach()
}

func (c *controller) readied(r *readying) {
	c.hand.first = nil
	switch {
	case r.told: // the rack has begun
		c.leases.again()
		c.goOnLeases()
	case !r.empty:
		c.registersThere()
	case c.rebuild != nil || len(c.nodes)+len(c.fallen)+len(c.resting) > 0 || c.saved != nil:
		c.registersLost()
	default:
		c.logger.Info("the switch's registers are empty: the rack begins")
		r.begin = true
		c.hand.begin(r)
	}
}
