package resources

import (
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// Config holds the limits of a Registry.
type Config struct {
	// Heartbeat is how often blades promise to report. A blade that was silent
	// for Missed such intervals has failed.
	Heartbeat time.Duration
	Missed    int
	// StartTimeout is how long a started program may take to join.
	StartTimeout time.Duration
	// ReadyTimeout is how long a node with a new program may take from its join until it is
	// ready, before its deployment is rolled back.
	ReadyTimeout time.Duration
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
	// MaxHops is the size of the switch's next_hop table, at most 65535.
	MaxHops uint16
	// Policy holds for methods about which nobody said anything.
	Policy rpcpacket.Policy
}

// DefaultConfig returns the limits of a rack that nobody configured.
func DefaultConfig() Config {
	return Config{
		Heartbeat:     100 * time.Millisecond,
		Missed:        3,
		StartTimeout:  30 * time.Second,
		ReadyTimeout:  30 * time.Second,
		RestartMin:    100 * time.Millisecond,
		RestartMax:    10 * time.Second,
		StopGrace:     5 * time.Second,
		DrainPatience: 30 * time.Second,
		MaxHops:       4096,
	}
}

// check refuses a configuration with which a rack would not work.
func (c *Config) check() error {
	switch {
	case c.Heartbeat <= 0 || c.Missed < 1:
		return fault.New(fault.BadRequest, "resources", "heartbeat %v, missed %d: both must be positive", c.Heartbeat, c.Missed)
	case c.StartTimeout <= 0 || c.ReadyTimeout <= 0 || c.RestartMin <= 0 || c.RestartMax < c.RestartMin || c.StopGrace < 0 || c.DrainPatience < 0:
		return fault.New(fault.BadRequest, "resources", "start timeout %v, ready timeout %v, restart %v to %v, grace %v, patience %v: not usable",
			c.StartTimeout, c.ReadyTimeout, c.RestartMin, c.RestartMax, c.StopGrace, c.DrainPatience)
	case c.MaxHops == 0:
		return fault.New(fault.BadRequest, "resources", "no hops")
	}
	return nil
}

// silence is how long a blade may be silent.
func (c *Config) silence() time.Duration { return c.Heartbeat * time.Duration(c.Missed) }

// backoff is the pause before a program that failed n times in a row is started again.
func (c *Config) backoff(n int) time.Duration {
	if n <= 1 {
		return 0
	}
	d := c.RestartMin
	for i := 2; i < n && d < c.RestartMax; i++ {
		d *= 2
	}
	return min(d, c.RestartMax)
}
