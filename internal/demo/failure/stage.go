package failure

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/gen-go/counter"
	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// stage is one performance.
type stage struct {
	cfg    Config
	scene  Scenario
	report Report

	rack     *simrack.Rack
	story    *chronicle
	on       atomic.Bool  // the teller is about to begin
	attempts atomic.Int64 // executions of the handler that have begun
	packets  atomic.Int64 // of calls and memory since then
	strike   sync.Once
	noticed  chan struct{} // closed when the Gatekeeper has noticed all deaths
}

// play brings the rack up, performs the scenario and takes the rack down again.
func (s *stage) play(ctx context.Context) (_ Report, err error) {
	cfg := simrack.Config{
		Blades: blades(), Programs: s.programs(), OnFrame: s.onFrame, Heartbeat: s.cfg.Heartbeat, Disk: new(wal.Disk), Log: s.cfg.logger(),
		Machines: [][]string{memoryBlades},
	}
	if s.cfg.rack != nil {
		s.cfg.rack(&cfg)
	}
	s.noticed = make(chan struct{})
	s.story = newChronicle(s.cfg.Out, s.shown(), s.scene.victims, s.noticed)
	fmt.Fprintf(s.cfg.Out, "\n%s\n", s.scene.Title)
	if s.rack, err = simrack.Start(ctx, cfg); err != nil {
		return s.report, err
	}
	defer func() { err = errors.Join(err, s.rack.Close()) }()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	followed := make(chan struct{})
	events := s.rack.Gatekeeper().Subscribe(ctx)
	go func() {
		defer close(followed)
		s.story.follow(events)
	}()
	total, err := s.perform(ctx)
	stop()
	<-followed
	s.story.fill(&s.report)
	if err == nil {
		err = s.judge(total, tally.Sum((&tally.Teller{Account: account}).Amounts(0)))
	}
	if err == nil {
		s.epilogue()
	}
	return s.report, err
}

// shown are the blades that are worth a column.
func (s *stage) shown() (all []string) {
	if s.scene.memory {
		return append([]string{caller, callee}, memoryBlades...)
	}
	for _, b := range computeBlades {
		if s.scene.front || b != front {
			all = append(all, b)
		}
	}
	return all
}

// aim finds the memory blade that answers reads, if that one is to die.
func (s *stage) aim(ctx context.Context) error {
	if !s.scene.memory {
		return nil
	}
	now, err := s.rack.Gatekeeper().Snapshot(ctx)
	if err != nil {
		return err
	}
	s.scene.victims = now.Machines[0].Copies[:1]
	s.story.aim(s.scene.victims)
	return nil
}

// perform deploys, waits for the caller's end, and returns what the account has then.
func (s *stage) perform(ctx context.Context) (total int64, err error) {
	gk := s.rack.Gatekeeper()
	servers, callers := apps(s.scene.front)
	if err := gk.Deploy(ctx, servers); err != nil {
		return 0, err
	}
	if err := s.story.await(ctx, "its servers serve", func(k *known) bool { return k.exports == len(servers.Programs) }); err != nil {
		return 0, err
	}
	if err := s.aim(ctx); err != nil {
		return 0, err
	}
	s.story.begin()
	s.on.Store(true)
	if err := gk.Deploy(ctx, callers); err != nil {
		return 0, err
	}
	if err := s.until(ctx, func(d []resources.Deployment) bool {
		return slices.ContainsFunc(d, func(d resources.Deployment) bool {
			return d.Spec.Name == callers.Name && len(d.Instances) == 1 && d.Instances[0].Status == resources.Finished
		})
	}); err != nil {
		return 0, fmt.Errorf("the caller does not come to its end: %w", err)
	}
	s.on.Store(false)
	if err := s.story.await(ctx, "the dead come back", func(k *known) bool { return k.ailing() == 0 }); err != nil {
		return 0, err
	}
	if err := s.sequel(ctx); err != nil {
		return 0, err
	}
	if total, err = s.balance(ctx); err != nil {
		return 0, err
	}
	return total, s.tidy(ctx, servers.Name, callers.Name)
}

// sequel has the memory blade that has died come back and filled, and then the other one
// die, and the blade of the service: what was counted is in memory that has moved twice.
func (s *stage) sequel(ctx context.Context) error {
	if !s.scene.memory {
		return nil
	}
	back := s.scene.victims[0]
	next := memoryBlades[1-slices.Index(memoryBlades, back)]
	s.story.again()
	defer s.story.end()
	s.story.power(back, true)
	if err := s.rack.BootBlade(back); err != nil {
		return err
	}
	if err := s.story.await(ctx, "the memory has two copies", func(k *known) bool { return k.copies == 2 }); err != nil {
		return err
	}
	s.story.power(next, false)
	if err := s.rack.CrashBlade(next); err != nil {
		return err
	}
	if err := s.story.await(ctx, "the memory has one copy", func(k *known) bool { return k.copies == 1 }); err != nil {
		return err
	}
	s.story.power(callee, false)
	if err := s.rack.CrashBlade(callee); err != nil {
		return err
	}
	return s.story.await(ctx, "the service is back", func(k *known) bool { return k.fallen[callee] && k.ailing() == 0 })
}

// tidy undeploys the apps, after which nothing must be left of them.
func (s *stage) tidy(ctx context.Context, apps ...string) error {
	gk := s.rack.Gatekeeper()
	for _, a := range apps {
		if err := gk.Undeploy(ctx, a); err != nil {
			return err
		}
	}
	if err := s.until(ctx, func(d []resources.Deployment) bool { return len(d) == 0 }); err != nil {
		return fmt.Errorf("undeploy: %w", err)
	}
	var left gatekeeper.Snapshot
	err := poll(ctx, func() (bool, error) {
		var err error
		left, err = gk.Snapshot(ctx)
		return len(left.Regions)+len(left.Calls)+len(left.Nodes) == 0, err
	})
	if err != nil {
		return fmt.Errorf("left behind: regions %+v, calls %+v, nodes %+v: %w", left.Regions, left.Calls, left.Nodes, err)
	}
	return nil
}

// until waits for a state of the deployments.
func (s *stage) until(ctx context.Context, good func([]resources.Deployment) bool) error {
	return poll(ctx, func() (bool, error) {
		all, err := s.rack.Gatekeeper().Deployments(ctx)
		return good(all), err
	})
}

// poll asks every ten milliseconds until the answer is yes: the last change of a rack may be none that an event tells, such as
// that of a region in the switch's registers.
func poll(ctx context.Context, good func() (bool, error)) error {
	for {
		if ok, err := good(); ok || err != nil {
			return err
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// balance asks what the account has, from a blade that lives.
func (s *stage) balance(ctx context.Context) (int64, error) {
	n, err := s.rack.Join(ctx, spare2, "auditor")
	if err != nil {
		return 0, err
	}
	totals, err := counter.OpenCounter(n, tally.CounterName).Totals(ctx)
	if err = errors.Join(err, n.Close(ctx)); err != nil {
		return 0, fmt.Errorf("looking at the account: %w", err)
	}
	return totals[account], nil
}

// reached says that an execution has come to a moment. If it is the one, the blades
// die, and the execution goes on only if it is not one of theirs, when their deaths
// have been noticed.
func (s *stage) reached(ctx context.Context, m moment) {
	if m != s.scene.moment || !s.kill() {
		return
	}
	select {
	case <-ctx.Done():
	case <-s.noticed:
	}
}

// onFrame sees every frame of the rack.
func (s *stage) onFrame(f wire.Frame) {
	if !s.on.Load() || f.Stage != wire.Arriving {
		return
	}
	u, err := frame.ParseUDP6(f.Data)
	if err != nil {
		return
	}
	switch u.Dst.Port() {
	case rackaddr.PortRPC, rackaddr.PortDirect, rackaddr.PortDSM:
	default:
		return
	}
	n := s.packets.Add(1)
	switch s.scene.moment {
	case counted:
		if int(n) == s.scene.packet {
			s.kill()
		}
	case arriving:
		m, err := rpcpacket.Parse(u.Payload)
		if u.Dst.Port() != rackaddr.PortDSM && f.Host == callee && !f.ToSwitch && err == nil && m.Type == rpcpacket.Call {
			s.kill()
			return
		}
	default: // no packet is the moment
	}
	s.story.see(&f, &u, time.Now())
}

// kill cuts the victims' power, once. It reports whether it did.
func (s *stage) kill() (first bool) {
	s.strike.Do(func() {
		first = true
		s.story.died(time.Now())
		for _, b := range s.scene.victims {
			_ = s.rack.CrashBlade(b) // it is a blade of the rack
		}
	})
	return first
}

// epilogue tells the verdict.
func (s *stage) epilogue() {
	r := &s.report
	fmt.Fprintf(s.cfg.Out, "\n  %s\n", s.scene.Story)
	fmt.Fprintf(s.cfg.Out, "  The handler has begun %s, and the call has had its effect %s: in the service's state and in memory.\n",
		times(r.Attempts), times(r.Executions))
}

func times(n int64) string {
	switch n {
	case 1:
		return "once"
	case 2:
		return "twice"
	}
	return fmt.Sprintf("%d times", n)
}
