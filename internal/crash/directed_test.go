package crash

import (
	"cmp"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// The operations of chain that tests name.
const (
	callA = 100 + iota
	callB
	callC
	postC
)

// chain is a program in which a main calls A, A calls B and B calls C; all do what
// must not happen twice, B lends C a region of its own, and A, which has no state,
// sends C a one-way with a region.
func chain() *Program {
	c := Op{N: callC, Kind: Call, Service: 2, Lend: []int{0}, Slot: 1, Body: []Script{{Slots: 3, Result: 1, Ops: []Op{
		{N: 1, Kind: Read, Size: 300}, {N: 2, Kind: Add}, {N: 3, Kind: Alloc, Slot: 1, Size: 64}, {N: 4, Kind: Write, Slot: 1, Size: 64},
		{N: 5, Kind: Bump}, {N: 6, Kind: Effect},
	}}}}
	b := Op{N: callB, Kind: Call, Service: 1, Slot: -1, Body: []Script{{Slots: 2, Result: -1, Ops: []Op{
		{N: 11, Kind: Add}, {N: 12, Kind: Alloc, Size: 300}, {N: 13, Kind: Write, Size: 300}, {N: 14, Kind: Bump}, {N: 15, Kind: Look}, c,
		{N: 16, Kind: Write, Slot: 1, At: 8, Size: 8}, {N: 17, Kind: Read, Slot: 1, Size: 64}, {N: 18, Kind: Free, Slot: 1},
		{N: 19, Kind: Free}, {N: 20, Kind: Bump}, {N: 21, Kind: Effect},
	}}}}
	a := Op{N: callA, Kind: Call, Service: 0, Slot: -1, Body: []Script{{Slots: 1, Result: -1, Ops: []Op{
		{N: 31, Kind: Look}, {N: 32, Kind: Alloc, Size: 64}, {N: 33, Kind: Write, Size: 64}, b,
		{N: postC, Kind: Post, Service: 2, Lend: []int{0}, Body: []Script{{Slots: 1, Result: -1, Ops: []Op{
			{N: 34, Kind: Read, Size: 64}, {N: 35, Kind: Add}, {N: 36, Kind: Free},
		}}}}, {N: 37, Kind: Effect},
	}}}}
	return &Program{
		Services: []Service{{}, {Stateful: true}, {Stateful: true, Deltas: true}}, Apart: true,
		Clients: []Client{{Main: true, Script: Script{Result: -1, Ops: []Op{
			{N: 41, Kind: Effect}, {N: 42, Kind: Checkpoint}, a, {N: 43, Kind: Look}, {N: 44, Kind: Checkpoint},
		}}}},
	}
}

// run runs chain and lets the oracle judge.
func run(t *testing.T, opt Options) *Report {
	t.Helper()
	return runProgram(t, chain(), opt)
}

// runProgram runs a program and lets the oracle judge.
func runProgram(t *testing.T, p *Program, opt Options) *Report {
	t.Helper()
	want, err := Model(p)
	if err != nil {
		t.Fatal(err)
	}
	if opt.Network == "" {
		opt.Network = "good"
	}
	opt.Seed = cmp.Or(opt.Seed, 1)
	r := perform(t, p, want, opt)
	for _, w := range r.Wrong {
		t.Error(w)
	}
	for _, m := range opt.When {
		if !m.Came && m.Crash.Victim != "" {
			t.Errorf("the moment to crash %s never came", m.Crash.Victim)
		}
	}
	return r
}

// message returns the call protocol's message that a frame has.
func message(f wire.Frame) (m rpcpacket.Message, ok bool) {
	u, err := frame.ParseUDP6(f.Data)
	if err != nil || u.Dst.Port() != rackaddr.PortRPC && u.Dst.Port() != rackaddr.PortDirect {
		return m, false
	}
	m, err = rpcpacket.Parse(u.Payload)
	return m, err == nil
}

// callTo tells a call of a service's node as it leaves its caller's blade, and replyOf a
// reply of the node as it comes to its caller's.
func callTo(service int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		m, ok := message(f)
		u, _ := frame.ParseUDP6(f.Data)
		return ok && f.ToSwitch && m.Type == rpcpacket.Call && u.Dst.Addr() == nodeOf(service)
	}
}

func replyOf(service int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		m, ok := message(f)
		u, _ := frame.ParseUDP6(f.Data)
		return ok && !f.ToSwitch && m.Type == rpcpacket.Reply && u.Src.Addr() == nodeOf(service)
	}
}

// oneway tells an execution's one-way as it leaves its caller's blade.
func oneway(f wire.Frame) bool {
	m, ok := message(f)
	return ok && f.ToSwitch && m.Type == rpcpacket.Oneway && !m.Parent.IsZero() // others are words to forget
}

// nodeOf is the address of a service's node: services join in order.
func nodeOf(service int) netip.Addr { return rackaddr.Node(uint64(service + 1)) }

// memoryIs tells the n-th request for memory that a service's node sends.
func memoryIs(service int, op dsmpacket.Op, n int) func(wire.Frame) bool {
	return func(f wire.Frame) bool {
		u, err := frame.ParseUDP6(f.Data)
		if err != nil || u.Src.Addr() != nodeOf(service) || !f.ToSwitch || u.Dst.Port() != rackaddr.PortDSM || dsmpacket.FromAddr(u.Dst.Addr()).Op() != op {
			return false
		}
		n--
		return n == 0
	}
}

// kill is a moment at which a program is killed.
func kill(victim string, after bool, is func(wire.Frame) bool) *Moment {
	return &Moment{Crash: Crash{Victim: victim, How: Kill, After: after}, Is: is}
}

// In chain, A runs on s1, B on s2 and C on s3; s4 is the spare.

// TestFigures crashes caller and callee at the moments of the thesis's figures 4.2
// and 5.3, and looks who is run again: exactly those that had to be.
func TestFigures(t *testing.T) {
	callOfA, replyToA := callTo(1), replyOf(1)
	for _, c := range []struct {
		name    string
		when    []*Moment
		a, b, c int // runs
	}{
		{"no crash", nil, 1, 1, 1},
		{"f1: the caller dies before its call has left", []*Moment{kill("A", false, callOfA)}, 2, 1, 1},
		{"f1, a moment later: the call runs while its caller is away", []*Moment{kill("A", true, callOfA)}, 2, 1, 1},
		{"f2: the callee dies while it executes", []*Moment{kill("B", true, memoryIs(1, dsmpacket.OpWrite, 1))}, 1, 2, 1},
		{"f2, after a nested call", []*Moment{kill("B", true, memoryIs(1, dsmpacket.OpWrite, 3))}, 1, 2, 1},
		{"f3: the callee dies when its reply has left", []*Moment{kill("B", false, replyToA)}, 1, 1, 1},
		{"f4: the caller dies before it takes the reply", []*Moment{kill("A", false, replyToA)}, 2, 1, 1},
		{"a one-way leaves when its caller has come to its end", []*Moment{kill("A", true, oneway)}, 1, 1, 1},
		{"nested: the one in the middle dies while the innermost executes", []*Moment{kill("B", true, memoryIs(2, dsmpacket.OpWrite, 1))}, 1, 2, 1},
		{"both: caller and callee die together", []*Moment{
			kill("A", true, memoryIs(1, dsmpacket.OpWrite, 1)), kill("B", true, memoryIs(1, dsmpacket.OpWrite, 1)),
		}, 2, 2, 1},
		{"all three", []*Moment{
			kill("A", true, memoryIs(2, dsmpacket.OpWrite, 1)), kill("B", true, memoryIs(2, dsmpacket.OpWrite, 1)),
			kill("C", true, memoryIs(2, dsmpacket.OpWrite, 1)),
		}, 2, 2, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := run(t, Options{When: c.when})
			if got, want := [3]int{r.Runs[callA], r.Runs[callB], r.Runs[callC]}, [3]int{c.a, c.b, c.c}; got != want {
				t.Errorf("A, B and C have run %v times, want %v", got, want)
			}
		})
	}
}

// TestSpareDies cuts the power of B's blade, and then that of the spare, at each of
// some moments of the recovery there.
func TestSpareDies(t *testing.T) {
	first := func() *Moment {
		return &Moment{Crash: Crash{Victim: "B", How: Cut, After: true, Back: 8 * time.Second}, Is: memoryIs(1, dsmpacket.OpWrite, 1)}
	}
	spare := func(f wire.Frame) bool { return f.Host == "s4" && !heartbeat(f) }
	var seen int
	count := &Moment{Is: func(f wire.Frame) bool { seen += btoi(spare(f)); return false }}
	count.Crash.After = true
	m := first()
	p := chain()
	want, _ := Model(p)
	for _, w := range perform(t, p, want, Options{Seed: 1, Network: "good", When: []*Moment{m, count}}).Wrong {
		t.Error(w)
	}
	if !m.Came || seen < 20 {
		t.Fatalf("the spare has seen %d packets", seen)
	}
	step := 5
	if testing.Short() {
		step = 25
	}
	for n := 1; n < seen; n += step {
		t.Run(fmt.Sprint("packet ", n), func(t *testing.T) {
			left := n
			run(t, Options{When: []*Moment{first(), {
				Crash: Crash{Victim: "B", How: Cut, Back: 5 * time.Second}, Is: func(f wire.Frame) bool { left -= btoi(spare(f)); return left == 0 },
			}}})
		})
	}
}

// heartbeat reports whether a frame is of the control protocol, as heartbeats are.
func heartbeat(f wire.Frame) bool {
	u, err := frame.ParseUDP6(f.Data)
	return err == nil && u.Dst.Port() == rackaddr.PortControl
}

// TestNoSpare leaves the deployment no blade to go to: the calls wait until the
// blade is back.
func TestNoSpare(t *testing.T) {
	for _, service := range []int{1, 2} {
		m := &Moment{
			Crash: Crash{Victim: ServiceName(service), How: Cut, After: true, Back: 20 * time.Second},
			Is:    memoryIs(service, dsmpacket.OpWrite, 1),
		}
		r := run(t, Options{NoSpare: true, When: []*Moment{m}})
		if r.Took < 20*time.Second {
			t.Errorf("%s: all was over after %s", ServiceName(service), r.Took)
		}
	}
}

// TestGatekeeperDiesInRecovery kills B, and then the Gatekeeper before and after
// each packet from then on until all is over.
func TestGatekeeperDiesInRecovery(t *testing.T) {
	begin := 0
	mark := func() *Moment { return kill("B", true, memoryIs(1, dsmpacket.OpWrite, 1)) }
	m := mark()
	packets := 0
	m.Is = func(is func(wire.Frame) bool) func(wire.Frame) bool {
		return func(f wire.Frame) bool {
			packets++
			if is(f) {
				begin = packets - 1
				return true
			}
			return false
		}
	}(m.Is)
	end := run(t, Options{When: []*Moment{m}}).Packets
	if begin == 0 || end < begin+20 {
		t.Fatalf("packets %d to %d", begin, end)
	}
	step := 1
	if testing.Short() {
		step = 40
	}
	for at := begin + 1; at < end; at += step {
		for _, after := range []bool{false, true} {
			one := Crash{At: at, After: after, Victim: Gatekeeper, How: Restart, Back: time.Duration(1+at%5) * time.Millisecond}
			t.Run(one.String(), func(t *testing.T) { run(t, Options{Crashes: Crashes{one}, When: []*Moment{mark()}}) })
		}
	}
}

// TestPaused takes B's blade off the network in the middle of a call, until B has
// been fenced and has been run elsewhere, and puts it back: the old incarnation goes
// on where it was, until its daemon hears of the fence, and nothing changes.
func TestPaused(t *testing.T) {
	late, total, least := 0, 40, 3
	if testing.Short() {
		total, least = 6, 0
	}
	for n := range total {
		var back time.Time
		m := &Moment{
			Crash: Crash{Victim: "B", How: Pause, After: true, Back: 8*time.Second + time.Duration(n)*23*time.Millisecond},
			Is:    memoryIs(1, dsmpacket.OpWrite, 1+n%3),
		}
		watch := &Moment{Is: func(f wire.Frame) bool {
			switch {
			case m.Came && back.IsZero():
				back = time.Now().Add(m.Crash.Back)
			case m.Came && !time.Now().Before(back) && f.Host == "s2" && f.ToSwitch && !heartbeat(f):
				late++
			}
			return false
		}}
		if r := run(t, Options{When: []*Moment{m, watch}, Linger: 10 * time.Second}); r.Runs[callB] != 2 {
			t.Errorf("B has run %d times", r.Runs[callB])
		}
	}
	if t.Logf("%d packets of old incarnations", late); late < least {
		t.Error("that is too few to show anything")
	}
}

// TestTwin starts the main a second time, on another blade, while it waits for its call:
// the second one is refused, whatever fails meanwhile, or gives back what it has taken over
// from a first one that has failed.
func TestTwin(t *testing.T) {
	twin := func(is func(wire.Frame) bool) *Moment {
		return &Moment{Crash: Crash{Victim: "main0", How: Twin, After: true}, Is: is}
	}
	for name, when := range map[string][]*Moment{
		"while it runs":   {twin(memoryIs(1, dsmpacket.OpWrite, 1))},
		"as it is killed": {twin(memoryIs(1, dsmpacket.OpWrite, 1)), kill("main0", true, memoryIs(1, dsmpacket.OpWrite, 1))},
		"after it was killed": {
			kill("main0", true, memoryIs(1, dsmpacket.OpWrite, 1)), twin(memoryIs(2, dsmpacket.OpWrite, 1)),
		},
		"and the Gatekeeper": {
			twin(memoryIs(1, dsmpacket.OpWrite, 1)),
			{Crash: Crash{Victim: Gatekeeper, How: Restart, Back: time.Millisecond}, Is: memoryIs(2, dsmpacket.OpWrite, 1)},
		},
	} {
		t.Run(name, func(t *testing.T) { run(t, Options{When: when}) })
	}
}
