package demo

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/demo/failure"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// RolloutReport is what came of a rollout under load, the last line of `bifrost demo
// --rollout --json`.
type RolloutReport struct {
	OK bool `json:"ok"`
	// Calls is how many calls the clients have made, Counted how many the counter has counted.
	Calls   int64 `json:"calls"`
	Counted int64 `json:"counted"`
	// Version2 is how many of them the second version has counted. Former is the version that
	// wrote the state that it began with, "" as the first one names none.
	Version2 int64  `json:"version2"`
	Former   string `json:"former"`
	// LongestMS is the longest call, in milliseconds.
	LongestMS float64 `json:"longest_ms"`
	Seconds   float64 `json:"seconds"`
	Error     string  `json:"error,omitempty"`
}

const (
	rolloutClients = 4
	rolloutAccount = 7
	// rolloutCalls is how many calls are made between two steps, and in the end.
	rolloutCalls = 100
)

// counter2 is the counter's second version: its state also has how many calls it has counted.
type counter2 struct {
	tally.Counter
	calls  int64
	former func(version string)
}

// Add implements the service.
func (c *counter2) Add(ctx context.Context, account int32, amounts *rpc.Ref[[]byte]) (int64, error) {
	total, err := c.Counter.Add(ctx, account, amounts)
	if err == nil {
		c.calls++
	}
	return total, err
}

// Version implements rpc.VersionedState.
func (*counter2) Version() string { return "2" }

// Reads implements rpc.VersionedState.
func (*counter2) Reads() []string { return []string{"", "2"} }

// Snapshot implements rpc.State.
func (c *counter2) Snapshot() ([]byte, error) {
	b, err := c.Counter.Snapshot()
	return binary.BigEndian.AppendUint64(b, uint64(c.calls)), err
}

// RestoreVersion implements rpc.VersionedState.
func (c *counter2) RestoreVersion(version string, b []byte) error {
	c.former(version)
	if version == "" {
		c.calls = 0
		return c.Restore(b)
	}
	at := len(b) - 8
	if version != "2" || at < 0 {
		return rpc.Errorf(rpc.Internal, "version %q of the state, %d bytes", version, len(b))
	}
	c.calls = int64(binary.BigEndian.Uint64(b[at:]))
	return c.Restore(b[:at])
}

// rollout is one performance.
type rollout struct {
	out    io.Writer
	rack   *simrack.Rack
	calls  atomic.Int64
	slow   atomic.Int64 // the longest call, in nanoseconds
	second atomic.Pointer[counter2]
	once   sync.Once
	former string
}

// Rollout shows a rollout while clients call a counter all the time: a second version takes
// over the state of the first one, a broken third one is rolled back, and every call is
// counted once. The report is filled in as far as it got, also when it fails.
func Rollout(ctx context.Context, out io.Writer) (report RolloutReport, err error) {
	start := time.Now()
	r := &rollout{out: out}
	report.Counted, err = r.play(ctx)
	report.Calls, report.Former, report.LongestMS = r.calls.Load(), r.former, float64(r.slow.Load())/1e6
	if c := r.second.Load(); c != nil {
		report.Version2 = c.calls
	}
	switch {
	case err != nil:
	case report.Counted != report.Calls:
		err = fmt.Errorf("%d calls were made and %d counted", report.Calls, report.Counted)
	case report.Version2 < rolloutCalls || report.Version2 >= report.Calls:
		err = fmt.Errorf("the second version has counted %d of %d calls", report.Version2, report.Calls)
	}
	if err == nil {
		r.say("%d calls, %d of them counted by version 2: each was counted once; the longest took %.1f ms", report.Calls, report.Version2, report.LongestMS)
	} else {
		report.Error = err.Error()
	}
	report.OK, report.Seconds = err == nil, time.Since(start).Seconds()
	return report, err
}

func (r *rollout) say(format string, args ...any) {
	fmt.Fprintf(r.out, "  • %s\n", fmt.Sprintf(format, args...))
}

// play brings a rack up, rolls versions out under load, and returns what has been counted.
func (r *rollout) play(ctx context.Context) (counted int64, err error) {
	fmt.Fprintf(r.out, "\nA counter with state, %d clients that call it all the time, and new versions of it\n", rolloutClients)
	r.rack, err = simrack.Start(ctx, simrack.Config{
		Blades: []simrack.Blade{
			{Name: "c1", Kind: control.Compute}, {Name: "s1", Kind: control.Compute}, {Name: "s2", Kind: control.Compute},
			{Name: "m1", Kind: control.Memory}, {Name: "m2", Kind: control.Memory},
		},
		Machines: [][]string{{"m1", "m2"}}, Disk: new(wal.Disk), Heartbeat: failure.DefaultHeartbeat, Programs: map[string]simrack.Program{"counter": r.program},
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, r.rack.Close()) }()
	if err := r.deploy(ctx, "1", false); err != nil {
		return 0, err
	}
	node, err := r.rack.Join(ctx, "c1", "client")
	if err != nil {
		return 0, err
	}
	to, err := tally.Open(node, tally.CounterName, rpc.WithPolicy(rpc.PolicyRecover))
	if err != nil {
		return 0, err
	}
	calling, stop := context.WithCancel(ctx)
	defer stop()
	failed := make(chan error, rolloutClients)
	for range rolloutClients {
		go func() { failed <- r.call(calling, to) }()
	}
	err = r.roll(ctx)
	stop()
	for range rolloutClients {
		err = errors.Join(err, <-failed)
	}
	if err != nil {
		return 0, err
	}
	counted, err = r.add(ctx, to)
	return counted, errors.Join(err, node.Close(ctx))
}

// roll rolls out a second version, and a third one that does not work.
func (r *rollout) roll(ctx context.Context) error {
	if err := r.more(ctx); err != nil {
		return err
	}
	r.say("version 2 is deployed; its state has another form")
	if err := r.deploy(ctx, "2", false); err != nil {
		return err
	}
	if err := r.more(ctx); err != nil {
		return err
	}
	r.say("version 3 is deployed; it ends as soon as it is started")
	if err := r.deploy(ctx, "3", true); err != nil {
		return err
	}
	return r.more(ctx)
}

// more waits until some more calls have been made.
func (r *rollout) more(ctx context.Context) error {
	for until := r.calls.Load() + rolloutCalls; r.calls.Load() < until; {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// deploy deploys a version, and waits until it, or the former one, has been rolled out.
func (r *rollout) deploy(ctx context.Context, version string, broken bool) error {
	events, stop := context.WithCancel(ctx)
	defer stop()
	news := r.rack.Gatekeeper().Subscribe(events)
	before := r.calls.Load()
	err := r.rack.Gatekeeper().Deploy(ctx, resources.Spec{Name: "bank", Programs: []resources.Program{{
		Name: "counter", Args: []string{"counter", version}, Nodes: 1, Blades: []string{"s1", "s2"},
		Services: []resources.ServiceSpec{{Name: tally.CounterName, Stateful: true}},
	}}})
	if err != nil {
		return err
	}
	first := version == "1"
	for e := range news {
		switch {
		case e.Kind == gatekeeper.AppRolledBack:
			if r.say("rolled back: %s", e.Message); !broken {
				return errors.New("it was rolled back: " + e.Message)
			}
		case e.Kind == gatekeeper.ProgramStarted:
			r.say("%s is started on %s", e.Name, e.Blade)
		case first && e.Kind == gatekeeper.ServiceExported:
			return nil
		case e.Kind == gatekeeper.AppRolledOut:
			r.say("it serves; %d calls have been made meanwhile", r.calls.Load()-before)
			return nil
		}
	}
	return fmt.Errorf("version %s: %w", version, context.Cause(ctx))
}

// call adds 1 again and again, until ctx ends.
func (r *rollout) call(ctx context.Context, to tally.Adder) error {
	for ctx.Err() == nil {
		begun := time.Now()
		if _, err := r.add(context.WithoutCancel(ctx), to); err != nil {
			return err
		}
		took := int64(time.Since(begun))
		for was := r.slow.Load(); took > was && !r.slow.CompareAndSwap(was, took); was = r.slow.Load() {
		}
	}
	return nil
}

// add makes one call, and returns what the counter has counted.
func (r *rollout) add(ctx context.Context, to tally.Adder) (int64, error) {
	ref := rpc.RefOf([]byte{1})
	total, err := to.Add(ctx, rolloutAccount, ref)
	if err != nil {
		return 0, fmt.Errorf("call %d: %w", r.calls.Load()+1, err)
	}
	r.calls.Add(1)
	return total, ref.Free(ctx)
}

// program is the counter, in the version that its arguments say.
func (r *rollout) program(ctx context.Context, j join.Joiner, s control.Start) error {
	if s.Args[1] == "3" {
		return errors.New("it does not work")
	}
	n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("counter"), rpc.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return err
	}
	var h counter.CounterRefHandler = &tally.Counter{}
	if s.Args[1] == "2" {
		c := &counter2{former: func(version string) { r.once.Do(func() { r.former = version }) }}
		r.second.Store(c)
		h = c
	}
	if err := counter.ExportCounter(ctx, n, tally.CounterName, h); err != nil {
		return err
	}
	<-ctx.Done()
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
	defer cancel()
	return n.Close(closing)
}
