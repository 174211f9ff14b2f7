package dsmclient

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/dsm/internal/batches"
	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
)

// regionSlots are the slots in which the node may allocate (package batches). When few of a machine's are free, the machine is asked which are
// free again, and the Gatekeeper for another batch. So an allocation waits for neither, but for the first one on a machine.
type regionSlots struct {
	link *link
	ask  func(ctx context.Context, machine uint8, want int) ([]uint32, error) // Config.Batches
	ctx  context.Context                                                      // ends with the link
	stop context.CancelFunc

	mu       sync.Mutex
	machines map[uint8]*machineSlots
	seekers  sync.WaitGroup
}

// machineSlots are those of one machine.
type machineSlots struct {
	batches.Table
	seeking bool          // somebody looks for free ones
	asking  bool          // the Gatekeeper has been asked for a batch, and has not answered
	refusal error         // why it has given none
	failure error         // why none is free, and none is to be; nil while somebody looks for some
	changed chan struct{} // closed when there is something new; nil if nobody waits
}

// askedAtOnce is about how many batches a machine is asked before the Gatekeeper is asked for another one.
const askedAtOnce = 4

// slotPauses are those between two rounds of questions while no slot is free: what was freed just now rests.
var slotPauses = pace.Pauses{First: 20 * time.Millisecond, Most: 500 * time.Millisecond}

func newRegionSlots(l *link, ask func(context.Context, uint8, int) ([]uint32, error)) *regionSlots {
	s := &regionSlots{link: l, ask: ask, machines: map[uint8]*machineSlots{}}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

// close ends what looks for slots. The link has ended.
func (s *regionSlots) close() {
	s.mu.Lock()
	s.stop()
	s.mu.Unlock()
	s.seekers.Wait()
}

// of returns what is known of a machine. The caller holds the lock.
func (s *regionSlots) of(machine uint8) *machineSlots {
	m := s.machines[machine]
	if m == nil {
		m = &machineSlots{}
		s.machines[machine] = m
	}
	return m
}

// news is closed when there is something new. The caller holds the lock.
func (m *machineSlots) news() <-chan struct{} {
	if m.changed == nil {
		m.changed = make(chan struct{})
	}
	return m.changed
}

// tell wakes who waits for slots. The caller holds the lock.
func (m *machineSlots) tell() {
	if m.changed != nil {
		close(m.changed)
		m.changed = nil
	}
}

// take returns a region that may be allocated on a machine. It waits if no slot is free, unless there is none to wait for.
func (s *regionSlots) take(ctx context.Context, machine uint8) (dsmpacket.RegionID, error) {
	for first := true; ; first = false {
		s.mu.Lock()
		m := s.of(machine)
		if first {
			m.failure = nil
		}
		id, ok := m.Take()
		s.seek(machine, m)
		failure, changed := m.failure, m.news()
		s.mu.Unlock()
		switch {
		case ok:
			return id, nil
		case failure != nil:
			return 0, failure
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return 0, fault.FromContext(dsmpacket.OpAlloc.String(), ctx.Err())
		case <-s.ctx.Done():
			return 0, fault.New(fault.Canceled, dsmpacket.OpAlloc.String(), "the client is closed")
		}
	}
}

// takeNow is take for several regions, which waits for nothing: there may be fewer.
func (s *regionSlots) takeNow(machine uint8, n int) (ids []dsmpacket.RegionID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.of(machine)
	for len(ids) < n {
		id, ok := m.Take()
		if !ok {
			break
		}
		ids = append(ids, id)
	}
	s.seek(machine, m)
	return ids
}

// done says that it is known what became of an allocation, or that it was refused since its slot was not free.
func (s *regionSlots) done(machine uint8, id dsmpacket.RegionID, refused bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := s.of(machine); refused {
		m.Refused(id)
	} else {
		m.Done(id)
	}
}

// seek has somebody look for slots if few are free. The caller holds the lock.
func (s *regionSlots) seek(machine uint8, m *machineSlots) {
	if m.seeking || m.failure != nil || m.Free() >= batches.Low || s.ctx.Err() != nil {
		return
	}
	m.seeking = true
	s.seekers.Go(func() { s.look(machine, m) })
}

// look looks for slots until enough are free, or there are no more.
func (s *regionSlots) look(machine uint8, m *machineSlots) {
	pause, had := slotPauses.First, -1 // batches when the Gatekeeper was asked
	for {
		err := s.askMachine(machine, m, had >= 0)
		s.mu.Lock()
		if had < m.Len() && !m.asking && m.Free() < batches.Low && err == nil && s.ctx.Err() == nil {
			had = m.Len()
			s.askGatekeeper(machine, m)
		}
		switch {
		case err != nil && m.Free() == 0:
			m.seeking, m.failure = false, err
		case err != nil || m.Free() >= batches.Low || s.ctx.Err() != nil || m.Free() > 0 && !m.asking:
			m.seeking = false
		case !m.asking && !m.Rests():
			m.seeking, m.failure = false, cmp.Or(m.refusal, errNoSlots)
		}
		m.tell()
		goOn, changed := m.seeking, m.news()
		s.mu.Unlock()
		if !goOn {
			return
		}
		timer := time.NewTimer(pause)
		select {
		case <-changed: // the Gatekeeper has answered
		case <-timer.C:
			pause = slotPauses.Next(pause)
		case <-s.ctx.Done():
		}
		timer.Stop()
	}
}

// errNoSlots is why a node may not have more regions.
var errNoSlots = errors.New("no slot is free")

// askMachine asks a machine about some batches, or all, until enough slots are free.
func (s *regionSlots) askMachine(machine uint8, m *machineSlots, all bool) error {
	for asked := 0; ; asked++ {
		s.mu.Lock()
		number, turn, ok := uint32(0), uint64(0), false
		if asked < m.Len() && m.Free() < batches.Low && (all || asked < askedAtOnce) {
			number, turn, ok = m.Ask()
		}
		s.mu.Unlock()
		if !ok {
			return nil
		}
		states, err := s.link.slotsOf(s.ctx, machine, number)
		if err != nil {
			return err
		}
		s.mu.Lock()
		m.Learn(number, turn, &states)
		m.tell()
		s.mu.Unlock()
	}
}

// slotsOf asks a machine about a batch.
func (l *link) slotsOf(ctx context.Context, machine uint8, number uint32) (states [dsmpacket.BatchSlots]dsmpacket.SlotState, err error) {
	var buf [dsmpacket.SlotsSize]byte
	at := dsmpacket.Make(l.rack().DSMPrefix, machine, dsmpacket.IDOf(number*dsmpacket.BatchSlots, 0))
	o := l.operations.get()
	o.Op, o.Pointer, o.Buf = dsmpacket.OpSlots, at, buf[:]
	l.run(ctx, o)
	status, local := o.Status, o.Local
	l.operations.put(o)
	if status != fault.OK {
		return states, failure(ctx, dsmpacket.OpAlloc, at, status, local)
	}
	return dsmpacket.ParseSlots(buf[:])
}

// askGatekeeper asks for another batch. The caller holds the lock.
func (s *regionSlots) askGatekeeper(machine uint8, m *machineSlots) {
	m.asking = true
	want := m.Len() + 1 + m.Len()/4
	s.seekers.Go(func() {
		all, err := s.ask(s.ctx, machine, want)
		s.mu.Lock()
		defer s.mu.Unlock()
		m.Add(all)
		m.asking, m.refusal = false, err
		m.tell()
	})
}
