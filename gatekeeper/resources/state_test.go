package resources

import (
	"strings"
	"testing"
	"time"
)

// Load refuses what contradicts itself.
func TestLoadRefuses(t *testing.T) {
	now := time.Unix(1000, 0).UTC()
	good := string(busyState(t, now))
	if _, err := Load(DefaultConfig(), exports{}, []byte(good), now); err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string][2]string{
		"newer format":             {`"format":1`, `"format":2`},
		"no JSON":                  {`{`, ``},
		"blade twice":              {`"name":"c2"`, `"name":"c1"`},
		"node nowhere":             {`"blade":"c1","instance"`, `"blade":"c9","instance"`},
		"node unknown to instance": {`"instance":"app/p/1"`, `"instance":"app/p/2"`},
		"instance without node":    {`"status":"running"`, `"status":"waiting"`},
		"instance of no status":    {`"status":"running"`, `"status":"flying"`},
		"instance number":          {`"number":1`, `"number":2`},
		"spare nowhere":            {`"spares":["c2"]`, `"spares":["c9"]`},
		"deployment bad":           {`"args":["p"]`, `"args":[]`},
		"policy unknown":           {`"policy":"recover"`, `"policy":"perhaps"`},
	} {
		bad := strings.Replace(good, edit[0], edit[1], 1)
		if bad == good {
			t.Errorf("%s: %s does not occur in %s", name, edit[0], good)
		}
		if _, err := Load(DefaultConfig(), exports{}, []byte(bad), now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Config){
		"no start time":  func(c *Config) { c.StartTimeout = 0 },
		"pauses shrink":  func(c *Config) { c.RestartMax = c.RestartMin - 1 },
		"negative grace": func(c *Config) { c.StopGrace = -1 },
	} {
		cfg := DefaultConfig()
		spoil(&cfg)
		if _, err := New(cfg, exports{}); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestBackoff(t *testing.T) {
	cfg := DefaultConfig()
	want := []time.Duration{0, 0, 100, 200, 400}
	for n, w := range want {
		if got := cfg.backoff(n); got != w*time.Millisecond {
			t.Errorf("after %d failures %v, want %v", n, got, w*time.Millisecond)
		}
	}
	if got := cfg.backoff(1000); got != cfg.RestartMax {
		t.Errorf("after 1000 failures %v", got)
	}
}
