package rights

// A memory machine is two copies with equal content.

// block of memory.
type stored struct {
	generation uint32
	value      int
	alloc      int // whose allocation it was
	live       bool
}

// undo is what a write of an execution that is not done has replaced.
type undo struct {
	exec string
	old  int
}

type windowKey struct {
	client  int
	inc     uint32
	request int
}

// memory is one copy.
type memoryCopy struct {
	regions map[uint32]*stored
	undo    map[uint32]undo
	fence   map[int]uint32         // by client: the last incarnation that is refused
	window  map[windowKey]*message // what was answered
	tight   bool                   // it is out of space, now and then
}

func newCopy(tight bool) *memoryCopy {
	return &memoryCopy{map[uint32]*stored{}, map[uint32]undo{}, map[int]uint32{}, map[windowKey]*message{}, tight}
}

// at returns what a slot has. It is nothing if the slot was never used.
func (c *memoryCopy) at(slot uint32) *stored {
	if c.regions[slot] == nil {
		c.regions[slot] = &stored{}
	}
	return c.regions[slot]
}

func (c *memoryCopy) has(r Region) bool {
	s := c.regions[r.Slot]
	return s != nil && s.live && s.generation == r.Generation
}

func (c *memoryCopy) free(r Region) {
	if c.has(r) {
		c.regions[r.Slot].live = false
		delete(c.undo, r.Slot)
	}
}

// rollback takes back what an execution has changed.
func (c *memoryCopy) rollback(exec string) {
	for _, slot := range sorted(c.undo) {
		if u := c.undo[slot]; u.exec == exec {
			c.regions[slot].value = u.old
			delete(c.undo, slot)
		}
	}
}

func (c *memoryCopy) commit(exec string) {
	for slot, u := range c.undo {
		if u.exec == exec {
			delete(c.undo, slot)
		}
	}
}

// serve has a copy do a request, and returns the answer.
func (w *world) serve(which int, m *message) *message {
	c := w.memory[which]
	if m.Incarnation <= c.fence[m.src] {
		return nil
	}
	key := windowKey{m.src, m.Incarnation, m.request}
	if a := c.window[key]; a != nil && m.Kind != Read {
		return a.clone()
	}
	a := m.clone()
	a.Kind, a.of, a.client, a.src, a.dst, a.passed, a.copy, a.code = MemoryAnswer, m.Kind, m.Incarnation, copiesAt+which, m.src, false, which, ok
	a.Incarnation, a.Ref = 1, Ref{}
	s := c.at(m.Region.Slot)
	live := c.has(m.Region)
	switch m.Kind {
	case Alloc:
		a.Kind = AllocAnswer
		a.code = w.allocate(c, s, m)
		a.OK = a.code == ok
	case Write:
		if !live {
			a.code = notFound
			break
		}
		if u, is := c.undo[m.Region.Slot]; m.unlogged { // nobody takes it back
		} else if !is {
			c.undo[m.Region.Slot] = undo{m.id, s.value}
		} else if u.exec != m.id {
			w.fail("UNDO r%d: %s writes what %s has changed", m.Region.Slot, m.id, u.exec)
		}
		s.value = m.value
	case Read:
		if !live {
			a.code = notFound
		}
		a.value = s.value
		return a
	case Free:
		if !live {
			a.code = notFound
		}
		c.free(m.Region)
	default:
	}
	c.window[key] = a.clone()
	return a
}

func (w *world) allocate(c *memoryCopy, s *stored, m *message) code {
	switch {
	case s.live && s.generation == m.Region.Generation && s.alloc == m.src:
		return ok
	case s.live:
		return inUse
	case m.Region.Generation <= s.generation:
		return tooOld
	case c.tight && w.rnd.Intn(6) == 0:
		return noSpace
	}
	*s = stored{generation: m.Region.Generation, live: true, alloc: m.src}
	return ok
}

// liveAt reports whether a copy has a region.
func (w *world) liveAt(r Region) bool { return w.memory[0].has(r) || w.memory[1].has(r) }

// level makes the copies equal in what a node that was fenced had under way.
func (w *world) level(n *node) {
	first, second := w.memory[0], w.memory[1]
	for _, slot := range sorted(second.regions) {
		r, o := second.regions[slot], first.at(slot)
		if r.live && r.alloc == n.addr && (!o.live || o.generation != r.generation) && w.sw.Word(slot).Generation < r.generation {
			r.live = false
		}
		if u, is := first.undo[slot]; is && n.ledger[u.exec] != nil {
			r.value, second.undo[slot] = o.value, u
		} else if u, is := second.undo[slot]; is && n.ledger[u.exec] != nil {
			r.value = u.old
			delete(second.undo, slot)
		}
	}
	for _, slot := range sorted(first.regions) {
		if o, r := first.regions[slot], second.regions[slot]; o.live && o.alloc == n.addr && (r == nil || !r.live) {
			c := *o
			second.regions[slot] = &c
		}
	}
}

// named are the regions of a fenced node that no word has.
func (w *world) named(n *node) (all []Region) {
	for _, slot := range sorted(w.memory[0].regions) {
		if r := w.memory[0].regions[slot]; r.live && r.alloc == n.addr && w.sw.Word(slot).Generation < r.generation {
			all = append(all, Region{slot, r.generation})
		}
	}
	return all
}
