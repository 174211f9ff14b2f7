package gatekeeper

import (
	"bytes"
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/p4/rights"
	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
)

// inService lists the blades of a rack that are in service.
func inService(s Snapshot) (names []string) {
	for _, b := range s.Blades {
		if b.Status != StatusFailed {
			names = append(names, b.Name)
		}
	}
	return names
}

// TestStall: while nothing comes from the switch no blade fails, and no call counts an
// attempt; a blade that is silent afterwards fails then.
func TestStall(t *testing.T) {
	inSmall(t, func(s *small) {
		p := s.m1.alloc(s.a, 1, 1)
		s.a.call("Arrays", s.a.message("Arrays", "add", p))
		call := s.b.message1()
		for _, long := range []time.Duration{missedHeartbeats * time.Second, 7 * time.Second} {
			before := s.snapshot().Counters.Deaf
			s.beat(2*time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1)
			s.stall(long)
			if got := inService(s.snapshot()); len(got) != 4 {
				t.Fatalf("after %s: in service %v", long, got)
			}
			if s.snapshot().Counters.Deaf == before {
				t.Errorf("a stall of %s is not counted", long)
			}
		}
		s.beat(2*time.Second, s.a.testBlade, s.b.testBlade, s.c.testBlade, s.m1)
		s.b.reply(s.a.address, &call)
		s.a.message1()
		s.beat(4*time.Second, s.a.testBlade, s.b.testBlade, s.m1)
		if got := inService(s.snapshot()); len(got) != 3 {
			t.Errorf("s2 is silent; in service %v", got)
		}
		pass(5 * time.Second) // nobody is heard at all, but the switch answers
		if got := inService(s.snapshot()); len(got) != 0 {
			t.Errorf("all are silent; in service %v", got)
		}
	})
}

// inTurn is a job of some operations. It notes how many packets had been held when each was answered.
type inTurn struct {
	c    *controller
	left int
	held []uint64
}

func (j *inTurn) next() (handOp, bool) {
	more := j.left > 0
	if more {
		j.left--
	}
	return handOp{kind: handReadWords}, more
}

func (j *inTurn) took(handOp, *handAnswer) { j.held = append(j.held, j.c.count.Held) }

// TestProbe_BehindWhatIsHeld: the answer to an operation comes behind all packets that the switch has held before.
func TestProbe_BehindWhatIsHeld(t *testing.T) {
	inSmall(t, func(s *small) {
		before := s.snapshot().Counters.Held
		j := &inTurn{c: s.gk.ctl}
		control := frame.UDP6{Src: netip.AddrPortFrom(s.a.addr, rackaddr.PortControl), Dst: netip.AddrPortFrom(rackaddr.Gatekeeper, rackaddr.PortControl), Payload: []byte("?")}
		for range 100 {
			s.sw.Input(datapath.Port(s.a.port), control.Append(nil))
			if err := s.gk.input(func() {
				j.left++
				s.gk.ctl.hand.begin(j)
				s.gk.ctl.reach()
			}); err != nil {
				t.Fatal(err)
			}
		}
		s.settle()
		for i, held := range j.held {
			if held < before+uint64(i)+1 {
				t.Fatalf("answer %d came behind %d packets", i, held-before)
			}
		}
		if len(j.held) != 100 {
			t.Errorf("%d answers", len(j.held))
		}
	})
}

// TestMute: a session is given up when nothing comes from the switch though it was asked.
func TestMute(t *testing.T) {
	inSmall(t, func(s *small) {
		for _, c := range []struct {
			long time.Duration
			lost bool
		}{{muteAfter - time.Second, false}, {muteAfter + 3*time.Second, true}} {
			ctx, cancel := context.WithCancel(context.Background())
			events := s.gk.Subscribe(ctx)
			s.stall(c.long)
			cancel()
			lost := false
			for e := range events {
				lost = lost || e.Kind == SwitchLost
			}
			if lost != c.lost {
				t.Errorf("after %s: the session is lost: %t", c.long, lost)
			}
		}
		pass(time.Second)
		if got := inService(s.snapshot()); len(got) != 4 {
			t.Errorf("in service %v", got)
		}
	})
}

// listener is a controller with two memory blades, and a clock of its own.
type listener struct {
	*solo
	t      *testing.T
	sw     *rights.Switch
	one, o *blade
}

func newListener(t *testing.T) *listener {
	l := &listener{solo: newSolo(t), t: t, sw: rights.New(rights.Rack)}
	l.ask(t, 4, control.KindHello, control.Hello{Blade: "m2", Kind: control.Memory, MAC: "02:00:00:00:00:01", Boot: 1, Machine: 2, Capacity: 1 << 40})
	for _, name := range []string{"c1", "s1"} {
		l.takeOut(l.blades[name], "not needed", false)
	}
	l.one, l.o = l.blades["m1"], l.blades["m2"]
	l.one.commands, l.o.commands = nil, nil
	l.connect()
	return l
}

// run lets time pass with ticks when they are due. Heard blades report every half
// second; the switch answers probes, or does not.
func (l *listener) run(d time.Duration, answers bool, heard ...*blade) {
	l.t.Helper()
	for end := l.now.Add(d); l.now.Before(end); {
		l.now = l.now.Add(100 * time.Millisecond)
		for _, b := range heard {
			if l.now.Sub(b.heard) >= 500*time.Millisecond {
				l.hear()
				b.heard = l.now
			}
		}
		if at, ok := l.deadline(); ok && !l.now.Before(at) {
			l.tick()
		}
		l.carry(answers)
	}
}

// carry has the switch answer the probes that are on their way, or loses them. It returns how many there are.
func (l *listener) carry(answers bool) (probes int) {
	for _, p := range l.take().packets {
		if !bytes.Equal(p.frame[:len(handEthernet)], handEthernet[:]) {
			continue
		}
		if probes++; answers {
			l.packetIn(0, reasonHand, modelled(l.sw, p.frame))
		}
	}
	return probes
}

// answerAll has the switch answer what was sent last again and again.
func (l *listener) answerAll() {
	l.now = l.hand.deadline()
	l.tick()
	l.carry(true)
}

func (l *listener) want(when string, one, other bool) {
	l.t.Helper()
	if l.one.alive() != one || l.o.alive() != other {
		l.t.Errorf("%s: in service: %t and %t, want %t and %t", when, l.one.alive(), l.o.alive(), one, other)
	}
}

func TestHearing(t *testing.T) {
	t.Run("one is silent", func(t *testing.T) {
		l := newListener(t)
		l.run(2900*time.Millisecond, true, l.one)
		l.want("before its time", true, true)
		l.run(200*time.Millisecond, true, l.one)
		l.want("after three heartbeats", true, false)
	})
	t.Run("while registers are rebuilt", func(t *testing.T) {
		l := newListener(t)
		l.hand.first = &readying{}
		l.run(3100*time.Millisecond, true, l.one)
		l.want("after three heartbeats", true, false)
	})
	t.Run("both are silent", func(t *testing.T) {
		l := newListener(t)
		l.run(4*time.Second, true)
		l.want("the switch answers", false, false)
	})
	t.Run("stalled", func(t *testing.T) {
		l := newListener(t)
		l.run(time.Minute, false)
		l.want("meanwhile", true, true)
		l.answerAll()
		l.one.heard = l.now
		l.run(2900*time.Millisecond, true, l.one)
		l.want("just back", true, true)
		l.run(400*time.Millisecond, true, l.one)
		l.want("three heartbeats later", true, false)
	})
	t.Run("stopped", func(t *testing.T) {
		l := newListener(t)
		l.run(2500*time.Millisecond, true, l.one)
		l.now = l.now.Add(time.Minute) // SIGSTOP
		l.tick()
		l.carry(true)
		l.run(2900*time.Millisecond, true, l.one)
		l.want("after SIGCONT", true, true)
		if l.count.Deaf != 1 {
			t.Errorf("counted %d times", l.count.Deaf)
		}
		l.run(400*time.Millisecond, true, l.one)
		l.want("three heartbeats later", true, false)
	})
	t.Run("no session", func(t *testing.T) {
		l := newListener(t)
		l.disconnect()
		l.run(time.Minute, true)
		l.want("meanwhile", true, true)
		l.connect()
		l.run(2900*time.Millisecond, true, l.one)
		l.want("just back", true, true)
		l.run(400*time.Millisecond, true, l.one)
		l.want("three heartbeats later", true, false)
	})
	t.Run("commands", func(t *testing.T) {
		l := newListener(t)
		l.command(l.one, control.KindReclaim, control.Reclaim{}, nil)
		l.run(4*time.Second, true, l.one, l.o)
		l.run(time.Minute, false)
		l.answerAll()
		l.run(4*time.Second, true, l.one, l.o)
		l.want("a command is out since before the stall", true, true)
		l.run(2*time.Second, true, l.one, l.o)
		l.want("it is not obeyed", false, true)
	})
}

// A Gatekeeper that began after a join takes a late copy of it for a new one. The
// blade's next heartbeat tells that nobody is there; not so what is about to begin or to
// leave, and what the heartbeat is too old to know.
func TestHeartbeat_Ghosts(t *testing.T) {
	for name, c := range map[string]struct {
		beat  control.Heartbeat
		ghost bool
	}{
		"nobody is there":        {control.Heartbeat{Token: 1}, true},
		"there is":               {control.Heartbeat{Token: 1, Nodes: []netip.Addr{rackaddr.Node(1)}, Incarnations: []uint32{1}}, false},
		"in another incarnation": {control.Heartbeat{Token: 1, Nodes: []netip.Addr{rackaddr.Node(1)}, Incarnations: []uint32{2}}, true},
		"it is about to":         {control.Heartbeat{Token: 1, Unsettled: []uint64{1}}, false},
		"an old heartbeat":       {control.Heartbeat{}, false},
		"another daemon's":       {control.Heartbeat{Token: 1, Boot: 1000}, false},
	} {
		inSmall(t, func(s *small) {
			if s.a.address != rackaddr.Node(1) {
				t.Fatalf("the node is %s", s.a.address)
			}
			c.beat.Blade, c.beat.Boot = "c1", c.beat.Boot+s.a.boot
			if err := s.a.ask(control.KindHeartbeat, c.beat, nil); err != nil {
				t.Fatal(err)
			}
			s.m1.converse() // the fence
			if left := len(s.snapshot().Nodes) == 2; left != c.ghost {
				t.Errorf("%s: nodes %+v", name, s.snapshot().Nodes)
			}
		})
	}
}
