package bench

import (
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/bench/stats"
)

// A flood is judged by the slowest calls of others, and by blades that have failed.
func TestJudge(t *testing.T) {
	quiet := Fair{Summary: stats.Summary{P99: 100}}
	if err := Judge([]Fair{quiet, {Class: Dropped, Summary: stats.Summary{P99: 500}}, {Class: "calls", Summary: stats.Summary{P99: 300}}}); err != nil {
		t.Error(err)
	}
	err := Judge([]Fair{quiet, {Class: "calls", Summary: stats.Summary{P99: 301}}, {Class: "control", Failed: []string{"m1"}}})
	if err == nil || !strings.Contains(err.Error(), "flood of calls") || !strings.Contains(err.Error(), "m1") {
		t.Errorf("judged as %v", err)
	}
}
