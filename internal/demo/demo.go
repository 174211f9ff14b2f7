// Package demo is what `bifrost demo` shows on a whole rack in one process: the steps of a
// call by reference, an access that nobody granted and that is refused, and a call that
// happens once although its callee dies. Package failure shows the other ways to die.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bifrost-rack/bifrost/examples/arrays/gen-go/arrays"
	"github.com/bifrost-rack/bifrost/examples/arrays/service"
	"github.com/bifrost-rack/bifrost/internal/demo/failure"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Config is what the demo can be told.
type Config struct {
	// Out receives the narration; io.Discard for none.
	Out io.Writer
	// Size is the length of the arrays in bytes; 0 stands for 1 MiB.
	Size int
}

// Report is the demo's result, the last line of `bifrost demo --json`.
type Report struct {
	OK     bool   `json:"ok"`
	Calls  int    `json:"calls"`  // calls whose results were verified
	Held   uint64 `json:"held"`   // packets that the switch held for the Gatekeeper
	Rules  uint64 `json:"rules"`  // rules that the Gatekeeper wrote
	Denied uint64 `json:"denied"` // accesses that the switch denied
	Bytes  int64  `json:"bytes"`  // bytes of results verified
	// Executions is how often a call had its effect whose callee lost its power in the
	// middle; RecoverMS how long it took, in milliseconds, until that served again.
	Executions int64   `json:"executions"`
	RecoverMS  float64 `json:"recover_ms"`
	Seconds    float64 `json:"seconds"`
	Error      string  `json:"error,omitempty"`
}

// Run performs the demo. The report is filled in as far as it got, also when it
// fails.
func Run(ctx context.Context, cfg Config) (Report, error) {
	if cfg.Size == 0 {
		cfg.Size = 1 << 20
	}
	start := time.Now()
	s := &stage{cfg: cfg, tell: newTeller(cfg.Out)}
	err := s.play(ctx)
	if err == nil {
		err = s.crash(ctx)
	}
	s.report.Seconds = time.Since(start).Seconds()
	s.report.OK = err == nil
	if err != nil {
		s.report.Error = err.Error()
	}
	return s.report, err
}

// stage is one performance: the rack and the nodes that act on it.
type stage struct {
	cfg    Config
	tell   teller
	report Report

	rack                     *simrack.Rack
	caller, callee, stranger *rpc.Node
	// entered and resume hold the callee's handler while its lease is looked at.
	entered, resume chan struct{}
	denials         uint64 // accesses that were denied, as the nodes saw it
}

// play brings the rack up, performs the acts and takes it down again.
func (s *stage) play(ctx context.Context) (err error) {
	s.tell.act("A rack of one client, two servers and three memory blades, around one P4 switch")
	if s.rack, err = simrack.Start(ctx, simrack.Config{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.rack.Close()) }()
	for _, act := range []func(context.Context) error{s.blades, s.nodes, s.lend, s.protect, s.many, s.account} {
		if err := act(ctx); err != nil {
			return err
		}
	}
	return s.leave(ctx)
}

// blades shows what registered.
func (s *stage) blades(ctx context.Context) error {
	snap, err := s.rack.Gatekeeper().Snapshot(ctx)
	if err != nil {
		return err
	}
	for _, b := range snap.Blades {
		s.tell.say("%s is up: %s blade at port %d", b.Name, b.Kind, b.Port)
	}
	return nil
}

// nodes joins a caller, two callees, and exports the services.
func (s *stage) nodes(ctx context.Context) (err error) {
	s.entered, s.resume = make(chan struct{}), make(chan struct{})
	for _, n := range []struct {
		node        **rpc.Node
		blade, name string
	}{{&s.caller, "c1", "client"}, {&s.stranger, "s1", "ping"}, {&s.callee, "s2", "arrays"}} {
		if *n.node, err = s.rack.Join(ctx, n.blade, n.name); err != nil {
			return err
		}
		s.tell.names[(*n.node).Address()] = n.blade
	}
	if err := s.stranger.Export(ctx, "Ping", arrays.NewPingProcessor(service.Ping{})); err != nil {
		return err
	}
	handler := &patient{Arrays: service.Arrays{}, entered: s.entered, resume: s.resume}
	if err := s.callee.Export(ctx, "Arrays", arrays.NewArraysProcessor(handler)); err != nil {
		return err
	}
	s.tell.say("s1 serves Ping, s2 serves Arrays; the switch routes calls to them by service and method")
	return nil
}

// account fills in the report from the Gatekeeper's counters, when it has heard of
// every denial that was seen, and no region is left: a node keeps what it has freed for
// a second, for its next allocations.
func (s *stage) account(ctx context.Context) error {
	snap, err := s.rack.Gatekeeper().Snapshot(ctx)
	for err == nil && (snap.Counters.Denied < s.denials || len(snap.Regions) > 0) {
		select {
		case <-time.After(20 * time.Millisecond):
			snap, err = s.rack.Gatekeeper().Snapshot(ctx)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return fmt.Errorf("with %d regions left: %w", len(snap.Regions), err)
	}
	c := snap.Counters
	s.report.Held, s.report.Rules, s.report.Denied = c.Held, c.RulesWritten, c.Denied
	s.tell.act("The account")
	s.tell.say("%d calls verified, %d MiB of results; the switch held %d packets and denied %d accesses; the Gatekeeper wrote %d rules",
		s.report.Calls, s.report.Bytes>>20, c.Held, c.Denied, c.RulesWritten)
	return nil
}

// crash shows on another rack, which has spares, that a call happens exactly once
// though its callee dies in the middle of it.
func (s *stage) crash(ctx context.Context) error {
	s.tell.act("A rack with spare blades, and a call that must happen exactly once")
	r, err := failure.Run(ctx, failure.Config{Out: s.cfg.Out, Name: "f4"})
	s.report.Executions, s.report.RecoverMS = r.Executions, r.RecoverMS
	return err
}

// leave ends the nodes in an orderly way.
func (s *stage) leave(ctx context.Context) error {
	return errors.Join(s.caller.Close(ctx), s.callee.Close(ctx), s.stranger.Close(ctx))
}
