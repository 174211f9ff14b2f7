package packaging

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/switchcmd"
	"github.com/prometheus/client_golang/prometheus"
)

// TestMetrics: what alerts and dashboard ask of the switch exists. That the Gatekeeper's metrics exist, package admin tests.
func TestMetrics(t *testing.T) {
	described := make(chan *prometheus.Desc, 100)
	switchcmd.Metrics(nil).Describe(described)
	close(described)
	var all strings.Builder
	for d := range described {
		all.WriteString(d.String())
	}
	used, err := Metrics("bifrost_switch_")
	if err != nil || len(used) < 3 {
		t.Errorf("they use only %q, %v", used, err)
	}
	for _, name := range used {
		if !strings.Contains(all.String(), `fqName: "`+name+`"`) {
			t.Errorf("there is no metric %s", name)
		}
	}
}

// Prometheus's own tool finds nothing wrong with the alerts, and each fires when it
// should and not when it should not.
func TestAlerts(t *testing.T) {
	promtool := privilege.Program(t, "promtool")
	for _, args := range [][]string{
		{"check", "rules", "--lint=all", "--lint-fatal", "prometheus/bifrost.rules.yml"},
		{"test", "rules", "prometheus/bifrost.rules.test.yml"},
		{"check", "config", "--syntax-only", "prometheus/scrape.yml"},
	} {
		if said, err := exec.Command(promtool, args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %v: %v\n%s", args, err, said)
		}
	}
}

// Every panel of the dashboard has a title, something to show and a place of its own.
func TestDashboard(t *testing.T) {
	b, err := os.ReadFile("grafana/bifrost.json")
	if err != nil {
		t.Fatal(err)
	}
	type position struct{ H, W, X, Y int }
	var dashboard struct {
		UID    string
		Panels []struct {
			ID          int
			Type, Title string
			GridPos     position
			Targets     []struct{ Expr string }
		}
	}
	if err := json.Unmarshal(b, &dashboard); err != nil || dashboard.UID == "" || len(dashboard.Panels) < 20 {
		t.Fatalf("%d panels, %v", len(dashboard.Panels), err)
	}
	taken := map[[2]int]string{}
	ids := map[int]bool{}
	for _, p := range dashboard.Panels {
		if p.Title == "" || ids[p.ID] || (len(p.Targets) == 0) != (p.Type == "row") {
			t.Errorf("panel %+v", p)
		}
		ids[p.ID] = true
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("%q is at (%d, %d), as is %q", p.Title, x, y, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}
