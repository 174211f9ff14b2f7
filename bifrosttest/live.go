package bifrosttest

import (
	"context"
	"errors"
	"log/slog"

	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// Live is a rack in real time, for an Example or a program that is no test. Its methods may
// be called by several goroutines at a time.
type Live struct{ rig *simrack.Rack }

// Start starts a rack in real time; tests use [Run]. The network is perfect: a [Config] with
// a Network is refused. The rack ends when ctx does, or with [Live.Close].
func Start(ctx context.Context, cfg Config) (*Live, error) {
	if cfg.Network != (Network{}) {
		return nil, errors.New("bifrosttest: Config.Network needs a rack in virtual time: use Run")
	}
	s := cfg.simulated()
	s.Schedule = nil
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	rig, err := simrack.Start(ctx, s)
	if err != nil {
		return nil, err
	}
	return &Live{rig}, nil
}

// On returns a context with which [rpc.Join] joins a node on a compute blade. Without such
// a context rpc.Join asks the daemon of a real blade.
func (l *Live) On(ctx context.Context, blade string) context.Context {
	return join.NewContext(ctx, place{l.rig, blade})
}

// Close ends the rack. Close the nodes first: their Close waits for the rack.
func (l *Live) Close() error { return l.rig.Close() }

// place is a blade, asked for when a node joins.
type place struct {
	rig   *simrack.Rack
	blade string
}

// Join implements join.Joiner.
func (p place) Join(ctx context.Context, name string) (join.Session, error) {
	j, err := p.rig.Joiner(p.blade)
	if err != nil {
		return nil, err
	}
	return j.Join(ctx, name)
}
