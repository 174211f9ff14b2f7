package plots

import (
	"bytes"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/bench/report"
)

func series(name string, points ...report.Point) report.Series {
	return report.Series{Name: name, Title: name, Points: points}
}

var drawn = []report.Experiment{
	{
		Name: "lines", Question: "How long?", X: report.Axis{Title: "array", Unit: "bytes", Scale: report.Log}, Y: report.Axis{Title: "latency", Unit: "µs", Scale: report.Log},
		Series: []report.Series{
			series("tcp", report.Point{X: 1, Value: 30, Low: 28, High: 40}, report.Point{X: 2 << 20, Value: 900, Low: 900, High: 950}),
			series("udp", report.Point{X: 1, Value: 20, Low: 20, High: 20}), series("absent"),
		},
	},
	{
		Name: "bars", Question: "Which?", X: report.Axis{Title: "call", Scale: report.Category}, Y: report.Axis{Title: "latency", Scale: report.Linear},
		Series: []report.Series{series("a", report.Point{Label: "x", Value: 3}, report.Point{Label: "y", Value: 4}), series("b", report.Point{Label: "y", Value: 1})},
	},
	{
		Name: "single", Question: "Which?", X: report.Axis{Title: "call", Scale: report.Category}, Y: report.Axis{Title: "latency", Scale: report.Linear},
		Series: []report.Series{series("one", report.Point{Label: "ping", Value: 3}), series("two", report.Point{Label: "ping", Value: 4}), series("none")},
	},
	{
		Name: "parts", Question: "Where?", X: report.Axis{Title: "call", Scale: report.Parts}, Y: report.Axis{Title: "time", Scale: report.Linear},
		Series: []report.Series{series("net", report.Point{Label: "add\nThrift", Value: 3}), series("cpu", report.Point{Label: "add\nThrift", Value: 1})},
	},
	{Name: "empty", Question: "Nothing?", X: report.Axis{Scale: report.Log}, Y: report.Axis{Scale: report.Log}},
}

// Every kind of picture is drawn, in both formats, with its title and legend.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	for _, e := range drawn[:4] {
		if err := Save(&e, dir); err != nil {
			t.Fatal(err)
		}
		svg, err := os.ReadFile(filepath.Join(dir, e.Name+".svg"))
		if err != nil || !bytes.Contains(svg, []byte(e.Question)) {
			t.Errorf("%s.svg lacks %q: %v", e.Name, e.Question, err)
		}
		for _, s := range e.Series {
			if has := strings.Contains(string(svg), ">"+s.Title+"<"); has != (len(s.Points) > 0) {
				t.Errorf("%s.svg: series %s is shown: %v", e.Name, s.Name, has)
			}
		}
		b, err := os.ReadFile(filepath.Join(dir, e.Name+".png"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := png.Decode(bytes.NewReader(b)); err != nil {
			t.Errorf("%s.png: %v", e.Name, err)
		}
	}
}

// What cannot be written, or has nothing to show, is an error and no panic.
func TestSaveFails(t *testing.T) {
	if err := Save(&drawn[0], "/no/such/directory"); err == nil || !strings.Contains(err.Error(), "picture of lines") {
		t.Errorf("no directory: %v", err)
	}
	if err := Save(&drawn[4], t.TempDir()); err == nil {
		t.Error("a picture of nothing on logarithmic axes")
	}
}

func TestBinaryTicks(t *testing.T) {
	var labels []string
	for _, tick := range (binaryTicks{}).Ticks(1, 2<<20) {
		if tick.Label != "" {
			labels = append(labels, tick.Label)
		}
	}
	if got := strings.Join(labels, " "); got != "1 8 64 512 4Ki 32Ki 256Ki 2Mi" {
		t.Errorf("ticks %s", got)
	}
}
