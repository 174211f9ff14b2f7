package bench

import (
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/bench/stats"
)

// A flood is judged by the slowest calls of others, and by blades that have failed.
func TestJudge(t *testing.T) {
	quiet := Fair{Summary: stats.Summary{P99: 100}}
	if err := Judge([]Fair{quiet, {Class: Dropped, Flood: 1e5, Summary: stats.Summary{P99: 500}}, {Class: "no-route", Flood: 1e5, Summary: stats.Summary{P99: 300}}}); err != nil {
		t.Error(err)
	}
	hog := Fair{Class: Hog, Summary: stats.Summary{P99: 200}}
	if err := Judge([]Fair{quiet, hog, {Class: "no-route", Flood: 1e5, Summary: stats.Summary{P99: 600}}}); err != nil {
		t.Errorf("beside a hog: %v", err)
	}
	if err := Judge([]Fair{quiet, hog, {Class: "no-route", Flood: 1e5, Summary: stats.Summary{P99: 601}}}); err == nil {
		t.Error("more than three times what it is beside a hog")
	}
	err := Judge([]Fair{quiet, {Class: "no-route", Flood: 1e5, Summary: stats.Summary{P99: 301}}, {Class: "control", Flood: 1e5, Failed: []string{"m1"}}, {Class: "no-home", Flood: 1e3}})
	if err == nil || !strings.Contains(err.Error(), "flood of no-route") || !strings.Contains(err.Error(), "m1") || !strings.Contains(err.Error(), "1000 packets a second are none") {
		t.Errorf("judged as %v", err)
	}
}
