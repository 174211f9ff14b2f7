package resources

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/pace"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Config holds the limits of a Registry.
type Config struct {
	// StartTimeout is how long a started program may take to join.
	StartTimeout time.Duration
	// ReadyTimeout is how long a node with a new program may take from its join until it is
	// ready, before its deployment is rolled back.
	ReadyTimeout time.Duration
	// Watch is for how long the first node that runs a new program must be ready without trouble, before others follow.
	Watch time.Duration
	// A program that fails again and again is started again after RestartMin,
	// then twice as long each time, up to RestartMax. The first time it is
	// started at once; so it is again after it has run without trouble for a second,
	// and for four times as long as it paused before.
	RestartMin, RestartMax time.Duration
	// StopGrace is what a program gets between SIGTERM and SIGKILL.
	StopGrace time.Duration
	// DrainPatience is how long a program may take to finish its calls when its blade
	// is drained, or its deployment taken back. After that it is stopped; on a draining
	// blade it is recovered elsewhere, as after a crash.
	DrainPatience time.Duration
	// Policy holds for methods about which nobody said anything.
	Policy rpcpacket.Policy
	// MaxFailures is after how many failures a call of such a method is given up; 0 is never.
	MaxFailures int
}

// DefaultConfig returns the limits of a rack that nobody configured.
func DefaultConfig() Config {
	return Config{
		StartTimeout:  30 * time.Second,
		ReadyTimeout:  30 * time.Second,
		Watch:         3 * time.Second,
		RestartMin:    100 * time.Millisecond,
		RestartMax:    10 * time.Second,
		StopGrace:     5 * time.Second,
		DrainPatience: 30 * time.Second,
	}
}

// check refuses a configuration with which a rack would not work.
func (c *Config) check() error {
	if c.StartTimeout <= 0 || c.ReadyTimeout <= 0 || c.Watch < 0 || c.RestartMin <= 0 || c.RestartMax < c.RestartMin || c.StopGrace < 0 || c.DrainPatience < 0 {
		return fault.New(fault.BadRequest, "resources", "start timeout %v, ready timeout %v, watch %v, restart %v to %v, grace %v, patience %v: not usable",
			c.StartTimeout, c.ReadyTimeout, c.Watch, c.RestartMin, c.RestartMax, c.StopGrace, c.DrainPatience)
	}
	return nil
}

// backoff is the pause before a program that failed n times in a row is started again.
func (c *Config) backoff(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	return pace.Pauses{First: c.RestartMin, Most: c.RestartMax}.After(n - 2)
}
