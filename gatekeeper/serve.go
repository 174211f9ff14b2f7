package gatekeeper

import (
	"context"
	"sync"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// serve works with one session: it makes the switch's tables what they should
// be, and then writes plans until the session ends.
func (g *Gatekeeper) serve(_ context.Context, s *p4rtclient.Session) error {
	ctx := s.Context()
	repaired, err := g.prepare(ctx)
	if err != nil {
		return err
	}
	if err := g.do(ctx, func() { g.attach(s, repaired) }); err != nil {
		return err
	}
	s.Receive(g.packetIn, g.digest, g.port)
	probing, stop := context.WithCancel(ctx)
	var prober sync.WaitGroup
	prober.Go(func() { g.answerProbes(probing, s) })
	defer prober.Wait()
	defer stop()
	err = g.writer.run(s, g.client.Write, func(plans []*plan) { _ = g.input(func() { conclude(plans) }) })
	_ = g.input(g.detach)
	return err
}

// answerProbes asks the switch for an answer whenever the controller wants one, until
// ctx ends.
func (g *Gatekeeper) answerProbes(ctx context.Context, s *p4rtclient.Session) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.probes:
		}
		err := s.Echo(ctx)
		if err != nil {
			g.cfg.Log.Debug("the switch does not answer", "error", err)
		}
		_ = g.input(func() {
			if g.turn.session == s {
				g.ctl.probeAnswered(err == nil)
			}
		})
	}
}

// prepare makes the switch run the program and gives its tables what they should
// have, and returns how many entries that took.
func (g *Gatekeeper) prepare(ctx context.Context) (repaired int, err error) {
	fresh, err := g.client.SetPipeline(ctx)
	if err != nil {
		return 0, err
	}
	g.cfg.Log.Info("connected to the switch", "device", g.cfg.DeviceID, "new pipeline", fresh)
	if err := g.client.EnableDigest(ctx, deniedDigest, p4rtclient.Batch{}); err != nil {
		return 0, err
	}
	if err := g.client.EnableDigest(ctx, callDigest, p4rtclient.Batch{Size: digestSize, Wait: digestWait}); err != nil {
		return 0, err
	}
	if err := g.setRates(ctx); err != nil {
		return 0, err
	}
	return g.repair(ctx, nil) // plans that were cut off are written again
}

// conclude goes on with what has waited for plans.
func conclude(plans []*plan) {
	for _, p := range plans {
		if p.then != nil {
			p.then(p.err)
		}
	}
}

// attach lets packets go to a session.
func (g *Gatekeeper) attach(s *p4rtclient.Session, repaired int) {
	g.turn.session = s
	g.ctl.connect()
	g.ctl.count.Reconciled += uint64(repaired) //nolint:gosec // a length
	g.ctl.event(Event{Kind: SwitchConnected})
}

// detach ends that.
func (g *Gatekeeper) detach() {
	g.turn.session = nil
	g.ctl.disconnect()
	g.ctl.event(Event{Kind: SwitchLost})
}
