package crash

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// leased is a program that does next to nothing, so that leases are what there is: each service reads what is shared, and passes it on.
func leased() *Program {
	call := Op{N: 1, Kind: Call, Slot: -1, Body: []Script{{Result: -1, Ops: []Op{{N: 2, Kind: Effect}}}}}
	return &Program{Services: []Service{{}, {}}, Apart: true, Clients: []Client{{Script: Script{Result: -1, Ops: []Op{call}}}}}
}

// TestLeases hits those who have to do with standing leases in turn, at every ninth packet of leased.
func TestLeases(t *testing.T) {
	p, rack := leased(), Setting{Pairs: true, Leases: 4}
	calm := runProgram(t, p, Options{Setting: rack})
	for what, least := range map[string]int{"reads by standing leases": 6, "reads refused by standing leases": 4, "reads of what a lessee passes on": 4, "standing leases given by services": 2} {
		if calm.Did[what] < least {
			t.Errorf("%d %s", calm.Did[what], what)
		}
	}
	step := 9
	if testing.Short() {
		step = 71
	}
	victims := []Crash{
		{Victim: lenderName, How: Kill}, {Victim: "A", How: Kill}, {Victim: Gatekeeper, How: Restart, Back: 10 * time.Millisecond}, {Victim: "B", How: Kill},
		{Victim: "c1", How: Cut, Back: time.Second}, {Victim: "A", How: Drain, Back: time.Second}, {Victim: Switch, How: Restart, Back: 10 * time.Millisecond},
	}
	for at := 0; at < calm.Packets; at += step {
		one := victims[at/step%len(victims)]
		one.At, one.After = at, at%2 == 1
		opt := Options{Seed: *flagFrom + uint64(at), Setting: rack, Crashes: Crashes{one}} //nolint:gosec // not negative
		if at%5 == 2 {
			opt.Network = slow
		}
		if at%3 == 1 {
			opt.Crashes = append(opt.Crashes, Crash{At: at + 1 + at%recoveryPackets, Victim: Gatekeeper, How: Restart, Back: time.Duration(1+at%300) * time.Millisecond})
		}
		t.Run(opt.Crashes.String(), func(t *testing.T) { runProgram(t, p, opt) })
	}
}

// TestJudgeRead: what a reader says of a shared value is right or wrong by who it is and when it reads.
func TestJudgeRead(t *testing.T) {
	lessee, other := netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")
	denied := fault.New(fault.PermissionDenied, "read", "no")
	for name, c := range map[string]struct {
		reader netip.Addr
		from   int64 // the lease begins to end at 10, and has ended at 20, if it ends
		ends   bool
		got    string
		err    error
		passed bool
		wrong  string
	}{
		"reads":                           {reader: lessee, from: 1, got: "contents"},
		"something else":                  {reader: lessee, from: 1, got: "contempt", wrong: "something else"},
		"somebody else":                   {reader: other, from: 1, got: "contents", wrong: "is shared with node"},
		"somebody who was passed it":      {reader: other, from: 1, got: "contents", passed: true},
		"somebody else is refused":        {reader: other, from: 1, err: denied},
		"refused":                         {reader: lessee, from: 1, err: denied, wrong: "the lease has not ended"},
		"refused as it ends":              {reader: lessee, from: 1, err: denied, ends: true},
		"reads as it ends":                {reader: lessee, from: 15, got: "contents", ends: true},
		"reads after the end":             {reader: lessee, from: 25, got: "contents", ends: true, wrong: "the lease has ended"},
		"refused what was passed":         {reader: other, from: 1, err: denied, passed: true, wrong: "what it was passed"},
		"the memory is away":              {reader: lessee, from: 1, err: fault.New(fault.Unavailable, "read", "no")},
		"passed, and reads after the end": {reader: other, from: 25, got: "contents", passed: true, ends: true, wrong: "the lease has ended"},
	} {
		r := &Run{p: &Program{}, ledger: newLedger(nil), void: make(chan struct{}), crash: &crasher{}}
		r.ledger.began = time.Now().Add(-time.Hour)
		r.shares.all = []*share{{contents: []byte("contents"), owner: lenderName, lessee: lessee, ends: never, ended: never}}
		if c.ends {
			r.shares.ending(0, 10)
			r.shares.ended(0, 20)
		}
		r.judgeRead(0, c.reader, c.from, []byte(c.got), c.err, c.passed)
		if got := strings.Join(r.ledger.complaints(), "; "); (c.wrong == "") != (got == "") || !strings.Contains(got, c.wrong) {
			t.Errorf("%s: %q, want %q", name, got, c.wrong)
		}
	}
}
