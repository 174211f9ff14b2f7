// Package report is the result of the benchmarks: its form as JSON, the tables and
// the text made of it, the thesis's numbers, and the aims. It does no I/O and
// measures nothing.
//
//	Report ──▶ JSON
//	   ├─────▶ tables (table.go)
//	   ├─────▶ findings: ratios beside the thesis's and the aims (findings.go)
//	   └─────▶ docs/evaluation.md (document.go), with pictures from bench/plots
package report

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/bench/stats"
)

// Schema is the version of the form; it changes when a field's meaning does.
const Schema = 1

// Report is everything that one run has measured.
type Report struct {
	Schema  int       `json:"schema"`
	Started time.Time `json:"started"`
	// Seconds is how long the run has taken.
	Seconds  float64           `json:"seconds"`
	Machine  Machine           `json:"machine"`
	Versions map[string]string `json:"versions"`
	Topology Topology          `json:"topology"`
	// LowLatency: idle CPUs were kept from sleeping for the run, for every contender.
	LowLatency bool `json:"low_latency,omitempty"`
	// Pinned maps what runs to its CPUs.
	Pinned      map[string][]int  `json:"pinned"`
	Peers       map[string]string `json:"peers"` // how each is set up
	Experiments []Experiment      `json:"experiments"`
}

// Machine is where it ran.
type Machine struct {
	CPU    string `json:"cpu"`
	CPUs   int    `json:"cpus"`
	Memory uint64 `json:"memory"` // bytes
	Kernel string `json:"kernel"`
	OS     string `json:"os"`
	// Virtual is what it is virtualized by, "" if nothing is known of it.
	Virtual string `json:"virtual,omitempty"`
}

// Topology is the rack.
type Topology struct {
	// Kind is namespaces or mininet; Switch is bifrost, bmv2, ovs or bridge.
	Kind   string `json:"kind"`
	Switch string `json:"switch"`
	// MTU in bytes.
	MTU int `json:"mtu"`
	// Protected is whether a P4 switch and the Gatekeeper protect memory: without
	// them only baselines are measured.
	Protected bool     `json:"protected"`
	Blades    []string `json:"blades"`
}

// Experiment is one question's answer.
type Experiment struct {
	Name     string `json:"name"`
	Question string `json:"question"`
	// Figures are those of the thesis's chapter 7 that it repeats.
	Figures string `json:"figures,omitempty"`
	// Method says what exactly is measured.
	Method string `json:"method"`
	X      Axis   `json:"x"`
	Y      Axis   `json:"y"`
	// Load is the machine's load average over a minute, before and after.
	LoadBefore float64 `json:"load_before"`
	LoadAfter  float64 `json:"load_after"`
	// WarmupSeconds and MeasureSeconds are of each point and repeat.
	WarmupSeconds  float64  `json:"warmup_seconds"`
	MeasureSeconds float64  `json:"measure_seconds"`
	Repeats        int      `json:"repeats"`
	Seconds        float64  `json:"seconds"`
	Series         []Series `json:"series"`
	// Notes say what is missing, and why.
	Notes []string `json:"notes,omitempty"`
}

// Kinds of axes.
const (
	Linear = "linear"
	Log    = "log"
	// Category is an axis of labels.
	Category = "category"
	// Parts is a category axis whose series are stacked on each other.
	Parts = "parts"
)

// Axis is what is drawn along one direction.
type Axis struct {
	Title string `json:"title"`
	Unit  string `json:"unit,omitempty"`
	Scale string `json:"scale"`
}

// Series is one contender's points.
type Series struct {
	Name   string  `json:"name"`
	Title  string  `json:"title"`
	Points []Point `json:"points"`
}

// Point is what was measured at one X.
type Point struct {
	X     float64 `json:"x"`
	Label string  `json:"label,omitempty"`
	// Value is what is drawn, in the Y axis's unit; Low and High are the least and
	// the largest of the repeats.
	Value float64 `json:"value"`
	Low   float64 `json:"low"`
	High  float64 `json:"high"`
	// Latency in microseconds and rates a second, where operations were timed.
	Detail *stats.Combined `json:"detail,omitempty"`
}

// Experiment returns an experiment of the report, nil if it was not run.
func (r *Report) Experiment(name string) *Experiment {
	i := slices.IndexFunc(r.Experiments, func(e Experiment) bool { return e.Name == name })
	if i < 0 {
		return nil
	}
	return &r.Experiments[i]
}

// Add adds a point to a series, which begins with its first point.
func (e *Experiment) Add(name, title string, p Point) {
	i := slices.IndexFunc(e.Series, func(s Series) bool { return s.Name == name })
	if i < 0 {
		i = len(e.Series)
		e.Series = append(e.Series, Series{Name: name, Title: title})
	}
	e.Series[i].Points = append(e.Series[i].Points, p)
}

// series returns a contender's series; the zero Series if there is none.
func (e *Experiment) series(name string) Series {
	if e != nil {
		for _, s := range e.Series {
			if s.Name == name {
				return s
			}
		}
	}
	return Series{}
}

// at returns the point at x.
func (s Series) at(x float64) (Point, bool) {
	i := slices.IndexFunc(s.Points, func(p Point) bool { return p.X == x })
	if i < 0 {
		return Point{}, false
	}
	return s.Points[i], true
}

// labelled returns the point of a label.
func (s Series) labelled(label string) (Point, bool) {
	i := slices.IndexFunc(s.Points, func(p Point) bool { return p.Label == label })
	if i < 0 {
		return Point{}, false
	}
	return s.Points[i], true
}

// WriteJSON writes a report.
func WriteJSON(w io.Writer, r *Report) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	return e.Encode(r)
}

// ReadJSON reads a report.
func ReadJSON(from io.Reader) (*Report, error) {
	r := &Report{}
	if err := json.NewDecoder(from).Decode(r); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	if r.Schema != Schema {
		return nil, fmt.Errorf("report: of schema %d; this program knows %d", r.Schema, Schema)
	}
	return r, nil
}
