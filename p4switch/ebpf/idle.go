//go:build linux

package ebpf

import (
	"fmt"
	"sync"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// A packet that finds an entry of a table with idle timeouts writes the time, in
// nanoseconds of the kernel's monotonic clock, to the entry's cell. A goroutine looks
// at the cells of the entries that have a timeout.

// sweepEvery is how often it looks, and so how late a notification may come.
const sweepEvery = 100 * time.Millisecond

// idler is an entry that has a timeout.
type idler struct {
	entry datapath.Entry
	told  int64 // when the sink was told last; 0 for never
}

// noteHit generates the writing of the time.
func (g *gen) noteHit(hits fder) {
	none := g.label("no_cell")
	g.emit(
		asm.FnKtimeGetNs.Call(), asm.Mov.Reg(rTemp, asm.R0),
		asm.LoadMem(asm.R0, rEntry, entryCounter, asm.Word), asm.StoreMem(asm.R10, -4, asm.R0, asm.Word))
	g.lookup(hits, asm.R10, -4)
	g.emit(asm.JEq.Imm(asm.R0, 0, none), asm.StoreMem(asm.R0, 0, rTemp, asm.DWord))
	g.mark(none)
}

// monotonic is the time that the program writes.
func monotonic() int64 {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &t); err != nil {
		return 0 // every Linux has it
	}
	return t.Nano()
}

// watch begins or ends to look at an entry that was written.
func (t *table) watch(op datapath.Op, key []byte, e *datapath.Entry) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if op == datapath.Delete || e.IdleTimeoutNs <= 0 {
		delete(t.idlers, string(key))
		return
	}
	t.idlers[string(key)] = &idler{entry: *e}
}

// idleAt are the table's entries whose timeout has passed since they were hit, or
// since they were last named here: P4Runtime wants to hear of an idle entry once for
// each timeout that passes.
func (t *table) idleAt(now int64) (idle []datapath.Entry, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, i := range t.idlers {
		var hit int64
		if err := t.maps.hits.Lookup(t.entries[key], &hit); err != nil {
			return idle, err
		}
		if now-max(hit, i.told) >= i.entry.IdleTimeoutNs {
			i.told = now
			idle = append(idle, i.entry)
		}
	}
	return idle, nil
}

// SinceHit is how long ago an entry of a table with idle timeouts was hit, or, if it
// never was, made.
func (x *Executor) SinceHit(e datapath.Entry) (time.Duration, error) {
	t, err := x.table(e.Table)
	if err == nil && t.maps.hits == nil {
		err = fmt.Errorf("%w: it has no idle timeouts", datapath.ErrUnsupported)
	}
	var cell uint32
	if err == nil {
		cell, err = t.cellOf(&e)
	}
	var hit int64
	if err == nil {
		err = t.maps.hits.Lookup(cell, &hit)
	}
	if err != nil {
		return 0, fmt.Errorf("table %q: %w", e.Table, err)
	}
	return time.Duration(monotonic() - hit), nil
}

// sweeper tells the sink of idle entries.
type sweeper struct {
	quit chan struct{} // closed to end; nil if no table has timeouts
	done sync.WaitGroup
}

func (s *sweeper) start(x *Executor) {
	for _, t := range x.prog.Tables {
		if t.Timeout && s.quit == nil {
			s.quit = make(chan struct{})
			s.done.Go(func() { s.run(x) })
		}
	}
}

func (s *sweeper) stop() {
	if s.quit != nil {
		close(s.quit)
		s.done.Wait()
	}
}

func (s *sweeper) run(x *Executor) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-s.quit:
			return
		case <-tick.C:
		}
		for _, t := range x.tables {
			idle, err := t.idleAt(monotonic())
			if err != nil {
				x.log.Error("reading when entries were hit fails", "table", t.def.Name, "error", err)
			}
			for _, e := range idle {
				x.sink.Idle(e)
			}
		}
	}
}

// resetHit makes an entry one that was hit now.
func resetHit(hits *ebpf.Map, cell uint32) error { return hits.Put(cell, monotonic()) }
