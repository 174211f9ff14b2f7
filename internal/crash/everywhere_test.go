package crash

import (
	"cmp"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

var (
	flagSeed    = flag.Uint64("crash.seed", 0, "only the program of this seed (0: all)")
	flagPoint   = flag.String("crash.point", "", "with these crashes only, as a failure prints them; none for no crash")
	flagNetwork = flag.String("crash.net", "", "on this network only (default: on all; with -crash.point: good)")
	flagEvery   = flag.Bool("crash.every", false, "everything, before and after every packet, instead of random cases")
	flagFrom    = flag.Uint64("crash.from", 1, "the first seed")
	flagFor     = flag.Duration("crash.for", 0, "go on with new seeds for so long")
	flagTotal   = flag.Int("crash.total", 0, "go on with new seeds until there are so many cases")
	flagSeeds   = flag.Int("crash.seeds", 0, "how many seeds (0: what CI runs)")
	flagCases   = flag.Int("crash.cases", 0, "how many random cases for each seed (0: what CI runs)")
	flagMix     = flag.String("crash.mix", wide, "which programs, racks and failures: wide or plain")
	flagRack    = flag.String("crash.rack", "", "on a rack of this setting, as a failure prints it; none for the plain one (default: as the mix has it)")
	flagPolicy  = flag.String("crash.policy", mixed, "of all calls (default: most recover, some others)")
	flagCalls   = flag.Int("crash.calls", 0, "every rack has a chorus that makes so many calls: 200000 make a case that lasts minutes")
	flagVerbose = flag.Bool("crash.v", false, "print the program and the rack's log")
)

// mixed is the policy of programs in which calls have different ones.
const mixed = "mixed"

// The mixes. In the plain one only programs, blades and the Gatekeeper fail, on a rack with
// jumbo frames and room for everything; in the wide one everything does.
const (
	wide  = "wide"
	plain = "plain"
)

// What CI runs: seeds × cases random ones, and every packet of some programs.
const (
	seeds, cases    = 340, 30
	longPackets     = 500 // a program with more has a third of the cases: each takes ten times as long
	leastCases      = 10_000
	leastNested     = 1_000 // of them, with a crash while somebody was down from another
	everySeeds      = 1
	shortCases      = 3 // under -short, with the race detector
	shortSeeds      = 8
	failuresPerSeed = 3
	freshSeeds      = 32 // at a time
)

func TestMain(m *testing.M) {
	flag.Parse()
	debug.SetGCPercent(400)         // each case makes a rack of some 10 MiB and drops it
	debug.SetMemoryLimit(512 << 20) // but many may be dropped before the collector comes
	goleak.VerifyTestMain(m)
}

func policy(t *testing.T) rpc.Policy {
	if *flagPolicy == mixed {
		return rpc.PolicyRecover
	}
	for p := rpc.PolicyNone; p <= rpc.PolicyTainted; p++ {
		if p.String() == *flagPolicy {
			return p
		}
	}
	t.Fatalf("no policy %q", *flagPolicy)
	return 0
}

// perform runs one case.
func perform(t *testing.T, p *Program, want *Expectation, opt Options) (report *Report) {
	t.Helper()
	if *flagVerbose {
		opt.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	opt.Policy = policy(t)
	var err error
	bubble.TestFor(t, opt.Setting.Age+opt.Setting.Idle+bubble.Lifetime, func(t *testing.T) {
		opt.Quiesce = synctest.Wait
		report, err = Perform(t.Context(), p, want, opt)
	})
	if report == nil {
		report = &Report{}
	}
	if err != nil {
		report.Wrong = append(report.Wrong, err.Error())
	}
	return report
}

// tally is what a test has done, for its last line.
type tally struct {
	sync.Mutex
	cases, hits, failed int
	seeds               int            // whose programs were run
	bad                 map[uint64]int // of them, those with cases that failed, and how many
	nested              int            // cases with a crash while somebody was down
	lost                int            // cases in which memory was lost, or what was logged
	seen                map[string]int
	busy                time.Duration
	told                atomic.Bool // to end
}

func (c *tally) add(p *Program, seed uint64, one Case, r *Report, took time.Duration) {
	c.Lock()
	defer c.Unlock()
	c.cases++
	c.hits += min(1, r.Crashes)
	c.failed += min(1, len(r.Wrong))
	if len(r.Wrong) > 0 {
		if c.bad == nil {
			c.bad = map[uint64]int{}
		}
		c.bad[seed]++
	}
	c.nested += min(1, r.Nested)
	c.lost += btoi(r.Lost)
	c.busy += took
	if c.seen == nil {
		c.seen = map[string]int{}
	}
	for what, n := range r.Did {
		c.seen[what] += n
	}
	for _, what := range circumstances(p, one) {
		c.seen[what]++
	}
}

// begin counts a seed.
func (c *tally) begin() {
	c.Lock()
	defer c.Unlock()
	c.seeds++
}

// enough reports whether the test was told to end, or has had as many cases as it was asked for.
func (c *tally) enough() bool {
	c.Lock()
	defer c.Unlock()
	return c.told.Load() || *flagTotal > 0 && c.cases >= *flagTotal
}

// list names the seeds with cases that failed.
func (c *tally) list() string {
	var b strings.Builder
	for _, seed := range slices.Sorted(maps.Keys(c.bad)) {
		fmt.Fprintf(&b, ", %d of seed %d", c.bad[seed], seed)
	}
	return b.String()
}

// endOnSignal has the test end with the cases under way, and say what it has found, when it is interrupted.
func (c *tally) endOnSignal(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	over := make(chan struct{})
	var wait sync.WaitGroup
	wait.Go(func() {
		select {
		case <-signals:
			c.told.Store(true)
		case <-over:
		}
	})
	t.Cleanup(func() {
		signal.Stop(signals)
		close(over)
		wait.Wait()
	})
}

// circumstances are what a case is like, for its count.
func circumstances(p *Program, c Case) (all []string) {
	note := func(is bool, what string) {
		if is {
			all = append(all, what)
		}
	}
	all = append(all, "network "+c.Network)
	mtu := c.Setting.mtu()
	note(mtu < 1500, "MTU below 1,500")
	note(mtu >= 1500 && mtu < 9000, "MTU below 9,000")
	note(mtu == 9000, "MTU of 9,000")
	note(mtu > 9000, "MTU above 9,000")
	note(c.Setting.LogLimit > 0, "small log")
	note(c.Setting.Sync, "synced log")
	note(c.Setting.Age > 0, "realistic date")
	note(c.Setting.Jumps, "clocks that jump")
	note(c.Setting.Idle > 0, "idle hours")
	note(c.Setting.Limits > 0, "small limits")
	note(c.Setting.Pairs, "memory in pairs")
	note(c.Setting.Long, "long calls")
	note(c.Setting.Room > 0 && c.Setting.Room < 128<<10, "ledgers below 128 KiB")
	note(c.Setting.Room >= 4<<20, "ledgers of 4 MiB and more")
	note(c.Setting.Large > 0, "large answers, effects and states")
	note(c.Setting.Throng > 0, "many calls at once")
	note(c.Setting.Disks, "ledgers on disk")
	note(c.Setting.Leases > 0, "standing leases")
	note(c.Setting.ByHand, "programs started by hand")
	note(c.Setting.Calls > 0, "hundreds of calls")
	note(len(p.Clients) >= 8, "8 and more clients")
	note(slices.ContainsFunc(p.Services, func(s Service) bool { return s.Nodes == 2 }), "service of 2 nodes")
	note(slices.ContainsFunc(p.Services, func(s Service) bool { return s.Nodes == 3 }), "service of 3 nodes")
	note(slices.ContainsFunc(p.Services, func(s Service) bool { return s.Nodes > 3 }), "service of 4 nodes and more")
	for i := range c.Crashes {
		note(i > 0 && c.Crashes[i].At == c.Crashes[i-1].At, "two at one packet")
	}
	kinds := map[Kind]bool{}
	for i := range p.Clients {
		p.Clients[i].Script.each(-1, func(_ int, op *Op) {
			kinds[op.Kind] = true
			note(op.Kind == Hurry && len(op.Lend) > 0, "a call given up with a region")
		})
	}
	note(p.largest() >= 1<<20, "regions of 1 MiB and more")
	for k := range kinds {
		all = append(all, "operation "+string(k))
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// missing are the kinds of things that have not happened in the wide mix.
func (c *tally) missing() (all []string) {
	must := []string{
		"MTU below 1,500", "MTU below 9,000", "MTU of 9,000", "MTU above 9,000", "small log", "synced log", "realistic date", "clocks that jump",
		"idle hours", "small limits", "memory in pairs", "direct calls that lend memory", "direct calls resumed", "direct calls answered again", "direct calls and answers in parts", "long calls that lend memory", "long answers with a region", "one-ways that went direct", "direct one-ways that hand memory over", "one-ways that left with a done", "regions allocated by direct executions", "memory taken back by nodes", "memory of one copy committed by nodes", "direct calls of mains", "checkpoints in ledgers", "hundreds of calls", "8 and more clients", "service of 2 nodes", "service of 3 nodes", "service of 4 nodes and more", "log shorten", "two at one packet", "a call given up with a region",
		"regions of 1 MiB and more",
		"memory drain", "ledgers below 128 KiB", "ledgers of 4 MiB and more", "large answers, effects and states", "many calls at once", "ledgers on disk", "standing leases", "standing leases given by services", "reads by standing leases", "reads refused by standing leases", "reads of what a lessee passes on",
	}
	for name := range Networks {
		if name == faint { // of scenes
			continue
		}
		must = append(must, "network "+name)
	}
	for _, k := range []Kind{Alloc, Write, Read, Free, Call, Post, Try, Hurry, Fork, Race, Add, Bump, Effect, Look, Checkpoint, Fail} {
		must = append(must, "operation "+string(k))
	}
	for _, w := range possible {
		kind := map[string]string{"service": "program", "client": "program", "main": "program", "spare": "blade"}[w.victim]
		must = append(must, cmp.Or(kind, w.victim)+" "+string(w.how))
	}
	slices.Sort(must)
	for _, what := range slices.Compact(must) {
		if c.seen[what] == 0 {
			all = append(all, what)
		}
	}
	return all
}

// table says what has happened how often.
func (c *tally) table() string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(c.seen)) {
		fmt.Fprintf(&b, "\n%8d %s", c.seen[what], what)
	}
	return b.String()
}

// setting is that of a seed's rack.
func setting(t *testing.T, seed uint64) Setting {
	t.Helper()
	s := setOut(t, seed)
	s.Calls = cmp.Or(*flagCalls, s.Calls)
	return s
}

// setOut is setting without a chorus of the flag's.
func setOut(t *testing.T, seed uint64) Setting {
	t.Helper()
	switch {
	case *flagRack == "none", *flagRack == "" && *flagMix != wide:
		return Setting{}
	case *flagRack == "":
		return DrawSetting(seed)
	}
	s, err := ParseSetting(*flagRack)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// program makes a seed's program.
func program(t *testing.T, seed uint64, s Setting) (*Program, *Expectation) {
	t.Helper()
	p := Generate(seed)
	if *flagPolicy == mixed {
		p.Mix(seed)
	}
	if *flagMix == wide {
		p.Widen(seed)
		p.Simplify(seed, s.Lends)
	}
	p.Throng(s.Throng)
	if *flagPolicy == "none" { // of which no main can be
		for i := range p.Clients {
			p.Clients[i].Main = false
		}
	}
	want, err := Model(p)
	if err != nil {
		t.Fatalf("%v\n%s", err, p)
	}
	if *flagVerbose {
		t.Logf("\n%s", p)
	}
	return p, want
}

// check runs a case and reports what is wrong with it.
func check(t *testing.T, p *Program, want *Expectation, seed uint64, c Case, sum *tally) *Report {
	t.Helper()
	began := time.Now()
	r := perform(t, p, want, Options{Seed: seed, Network: c.Network, Setting: c.Setting, Crashes: c.Crashes})
	sum.add(p, seed, c, r, time.Since(began))
	if len(r.Wrong) > 0 {
		point := c.Crashes.String()
		if point == "" {
			point = "none"
		}
		t.Errorf("%s\nto see it again: go test ./internal/crash -run TestCrashEverywhere -crash.mix=%s -crash.seed=%d -crash.policy=%s -crash.rack=%s -crash.net=%s -crash.point=%s -crash.v",
			strings.Join(r.Wrong, "\n"), *flagMix, seed, *flagPolicy, cmp.Or(c.Setting.String(), "none"), c.Network, point)
	}
	return r
}

// TestCrashEverywhere: see the package's documentation.
func TestCrashEverywhere(t *testing.T) {
	sum := new(tally)
	t.Cleanup(func() {
		t.Logf("%d cases of %d seeds from %d on, failed: %d%s", sum.cases, sum.seeds, *flagFrom, sum.failed, sum.list())
		t.Logf("%d cases, %d of them with a crash that hit somebody, %d while somebody was down from another, %d with a loss, %d failed; %s each%s",
			sum.cases, sum.hits, sum.nested, sum.lost, sum.failed, (sum.busy / time.Duration(max(1, sum.cases))).Round(time.Microsecond), sum.table())
	})
	if *flagPoint != "" {
		replay(t, sum)
		return
	}
	first, count := *flagFrom, seeds
	perSeed := cases
	if testing.Short() {
		count, perSeed = shortSeeds, shortCases
	}
	fresh := *flagFor > 0 || *flagTotal > 0
	if fresh {
		count = freshSeeds
	}
	if *flagSeeds > 0 {
		count = *flagSeeds
	}
	if *flagCases > 0 {
		perSeed = *flagCases
	}
	if *flagSeed != 0 {
		first, count = *flagSeed, 1
	}
	every := func(seed uint64) bool {
		return *flagEvery || seed <= everySeeds && !testing.Short() || *flagFor > 0 && seed%8 == 0
	}
	if *flagEvery {
		perSeed = 0
	}
	sum.endOnSignal(t)
	batch(t, first, count, perSeed, every, sum)
	for began := time.Now(); !sum.enough() && (*flagTotal > 0 || time.Since(began) < *flagFor); {
		first += uint64(count)
		count = freshSeeds
		batch(t, first, count, perSeed, every, sum)
		t.Logf("%s: seeds up to %d, %d cases, %d failed", time.Since(began).Round(time.Second), first+uint64(count)-1, sum.cases, sum.failed)
	}
	all := !testing.Short() && !fresh && !sum.told.Load() && *flagSeeds+*flagCases == 0 && *flagSeed == 0 && *flagNetwork == "" && !*flagEvery
	if missing := sum.missing(); all && *flagMix == wide && len(missing) > 0 {
		t.Errorf("these have not happened in any case: %q", missing)
	}
	if all && !t.Failed() && (sum.cases < leastCases || sum.nested < leastNested) {
		t.Errorf("only %d cases, %d with a crash while somebody was down from another", sum.cases, sum.nested)
	}
}

// batch runs some seeds beside each other.
func batch(t *testing.T, first uint64, count, perSeed int, every func(uint64) bool, sum *tally) {
	t.Run(fmt.Sprintf("from=%d", first), func(t *testing.T) {
		for seed := first; seed < first+uint64(count); seed++ {
			t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
				t.Parallel()
				if sum.enough() {
					return
				}
				sum.begin()
				oneSeed(t, seed, perSeed, every(seed), sum)
			})
		}
	})
}

// replay runs one case.
func replay(t *testing.T, sum *tally) {
	point := *flagPoint
	if point == "none" {
		point = ""
	}
	cs, err := ParseCrashes(point)
	if err != nil {
		t.Fatal(err)
	}
	p, want := program(t, *flagSeed, setting(t, *flagSeed))
	r := check(t, p, want, *flagSeed, Case{cmp.Or(*flagNetwork, "good"), setting(t, *flagSeed), cs}, sum)
	t.Logf("%d packets, %d crashes, %s of virtual time", r.Packets, r.Crashes, r.Took)
}

// oneSeed runs a program without crashes and then with.
func oneSeed(t *testing.T, seed uint64, total int, every bool, sum *tally) {
	rack := setting(t, seed)
	p, want := program(t, seed, rack)
	calm := check(t, p, want, seed, Case{Network: "good", Setting: rack}, sum)
	if t.Failed() {
		return
	}
	var all []Case
	if *flagCases == 0 && calm.Packets > longPackets {
		total = (total + 2) / 3
	}
	if every {
		all = Every(p, calm.Packets)
	}
	for n := range total {
		all = append(all, Draw(p, rack, seed, calm.Packets, n, total, *flagMix == wide))
	}
	failures := 0
	for i, c := range all {
		if sum.enough() {
			return
		}
		if i > 0 {
			c.Setting.Idle = 0 // hours of heartbeats take a second and more of CPU
		}
		c.Network = cmp.Or(*flagNetwork, c.Network)
		if r := check(t, p, want, seed, c, sum); len(r.Wrong) > 0 {
			if failures++; failures == failuresPerSeed {
				t.Logf("no more of seed %d", seed)
				return
			}
		}
	}
}

// TestEveryCopy: each copy of a mirrored machine is lost at every packet, and nothing is
// lost with it.
func TestEveryCopy(t *testing.T) {
	defer func(was string) { *flagMix = was }(*flagMix)
	*flagMix = plain
	seeds, step := uint64(4), 5
	if testing.Short() {
		step = 41 // each fourth case is of one kind
	}
	if *flagSeeds > 0 {
		seeds, step = uint64(*flagSeeds), 1 //nolint:gosec // not negative
	}
	sum := new(tally)
	for seed := *flagFrom; seed < *flagFrom+seeds; seed++ {
		p, want := program(t, seed, Setting{})
		rack := Setting{Pairs: true}
		calm := check(t, p, want, seed, Case{Network: "good", Setting: rack}, sum)
		all := EveryCopy(p, seed, calm.Packets)
		for i := 0; i < len(all) && !t.Failed(); i += step {
			check(t, p, want, seed, all[i], sum)
		}
	}
	t.Logf("%d cases, %d with a crash, %d with a loss", sum.cases, sum.hits, sum.lost)
}

// TestPolicies: with the policies that take back more than they must, results are the
// same.
func TestPolicies(t *testing.T) {
	set := func(to *string, v string) {
		was := *to
		*to = v
		t.Cleanup(func() { *to = was })
	}
	set(flagMix, plain)
	set(flagPolicy, *flagPolicy)
	set(flagRack, *flagRack)
	taken := 0
	for _, name := range []string{"fate-share", "tainted"} {
		t.Run(name, func(t *testing.T) {
			*flagPolicy, *flagRack = name, "pairs"
			seeds := uint64(16)
			if testing.Short() {
				seeds = 3
			}
			sum := new(tally)
			for seed := range seeds {
				oneSeed(t, 1011+seed, 6, false, sum)
			}
			t.Logf("%d cases, %d with a crash, %d nodes taken back", sum.cases, sum.hits, sum.seen[takenBack])
			taken += sum.seen[takenBack]
		})
	}
	if !testing.Short() && taken == 0 {
		t.Errorf("there are no %s", takenBack)
	}
}
