package failure

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/bifrost-rack/bifrost/internal/simrack"
)

// Times of the stage.
const (
	// DefaultHeartbeat is how often blades report on the stage. One that is silent
	// for three times as long has failed.
	DefaultHeartbeat = 100 * time.Millisecond
	// leaveTimeout bounds the orderly end of a program.
	leaveTimeout = 10 * time.Second
)

// Config says what to show.
type Config struct {
	// Out receives the picture; io.Discard for none.
	Out io.Writer
	// Name is a scenario's, or Random; Seed then decides.
	Name string
	Seed uint64
	// Heartbeat is how often blades report; 0 stands for DefaultHeartbeat.
	Heartbeat time.Duration
	// Log receives what the rack's parts log; nil discards it.
	Log *slog.Logger

	// rack changes the rack, for tests.
	rack func(*simrack.Config)
}

func (c *Config) logger() *slog.Logger {
	if c.Log == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Log
}

// Report is what came of it, the last line of `bifrost demo --fail … --json`.
type Report struct {
	OK   bool   `json:"ok"`
	Fail string `json:"fail"`
	Seed uint64 `json:"seed,omitempty"`
	// Executions is how often the call has had its effect, as the account says;
	// Attempts how often its handler has begun.
	Executions int64 `json:"executions"`
	Attempts   int64 `json:"attempts"`
	// Killed are the blades that have lost their power.
	Killed []string `json:"killed"`
	// DetectMS is from the power cut to the Gatekeeper's notice, RecoverMS to the last
	// node that serves again, AnswerMS to the end of the caller's work; in milliseconds.
	DetectMS  float64 `json:"detect_ms"`
	RecoverMS float64 `json:"recover_ms"`
	AnswerMS  float64 `json:"answer_ms"`
	Seconds   float64 `json:"seconds"`
	Error     string  `json:"error,omitempty"`
}

// Run performs a scenario. The report is filled in as far as it got, also when it
// fails.
func Run(ctx context.Context, cfg Config) (Report, error) {
	start := time.Now()
	report, err := perform(ctx, cfg)
	report.Fail, report.Seed, report.Seconds = cfg.Name, cfg.Seed, time.Since(start).Seconds()
	report.OK = err == nil
	if err != nil {
		report.Error = err.Error()
	}
	return report, err
}

func perform(ctx context.Context, cfg Config) (Report, error) {
	if cfg.Heartbeat == 0 {
		cfg.Heartbeat = DefaultHeartbeat
	}
	if cfg.Name != Random {
		scene, err := Named(cfg.Name)
		if err != nil {
			return Report{}, err
		}
		return (&stage{cfg: cfg, scene: scene}).play(ctx)
	}
	quiet := cfg
	quiet.Out = io.Discard
	rehearsal := &stage{cfg: quiet, scene: crashFree}
	if report, err := rehearsal.play(ctx); err != nil {
		return report, fmt.Errorf("without a failure: %w", err)
	}
	return (&stage{cfg: cfg, scene: random(cfg.Seed, int(rehearsal.packets.Load()))}).play(ctx)
}

// judge holds the outcome against what must be.
func (s *stage) judge(total, once int64) error {
	s.report.Attempts, s.report.Executions = s.attempts.Load(), total/once
	switch {
	case total%once != 0 || s.report.Executions != 1:
		return fmt.Errorf("the account has %d after one call that adds %d", total, once)
	case s.scene.moment != never && len(s.report.Killed) == 0:
		return errors.New("nobody has died: the moment never came")
	}
	return nil
}
