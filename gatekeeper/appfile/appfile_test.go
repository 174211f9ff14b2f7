package appfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/yamlfile"
)

const example = "../../examples/arrays/app.yaml"

func TestRead_Example(t *testing.T) {
	got, err := Read(example)
	want := resources.Spec{Name: "arrays", Programs: []resources.Program{{
		Name: "server", Args: []string{"arrays", "server", "--services", "Arrays"}, Word: resources.Word{Policy: "none"}, Nodes: 2, Spares: 1,
		Services: []resources.ServiceSpec{{Name: "Arrays"}},
	}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// Every key that the example shows, also those that it leaves as comments.
func TestParse_EveryKey(t *testing.T) {
	got, err := Parse("app.yaml", []byte(`
name: all
programs:
  - name: p
    command: [a, "1"]
    env: {K: v}
    services:
      - name: S
        stateful: true
        methods: [{name: m, policy: recover, max_failures: 40}]
    policy: tainted
    max_failures: 0
    spares: 2
    blades: [s1, s2]
  - {name: q, command: [b], job: true, nodes: 0}
`))
	want := resources.Spec{Name: "all", Programs: []resources.Program{
		{
			Name: "p", Args: []string{"a", "1"}, Env: map[string]string{"K": "v"}, Word: resources.Word{Policy: "tainted", MaxFailures: new(0)}, Nodes: 1, Spares: 2, Blades: []string{"s1", "s2"},
			Services: []resources.ServiceSpec{{Name: "S", Stateful: true, Methods: []resources.MethodSpec{{Name: "m", Word: resources.Word{Policy: "recover", MaxFailures: new(40)}}}}},
		},
		{Name: "q", Args: []string{"b"}, Job: true},
	}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestParse_Mistakes(t *testing.T) {
	const good = "name: a\nprograms:\n  - name: p\n    command: [x]\n"
	for what, q := range map[string]struct{ text, want string }{
		"an unknown key":      {good + "    nodez: 2\n", `app.yaml:5: programs[0]: unknown key "nodez"`},
		"one above":           {"nam: a\n" + good, `app.yaml:1: unknown key "nam"`},
		"two mistakes":        {good + "    nodez: 2\n    spare: 1\n", "job, liveness, max_failures, name, nodes, policy, services, spares\napp.yaml:6: programs[0]: unknown key \"spare\""},
		"a repeated key":      {good + "    name: q\n", `app.yaml:5: programs[0].name: it is given twice (first on line 3)`},
		"a text for a number": {good + "    nodes: many\n", `app.yaml:5: programs[0].nodes: "many" is not a number`},
		"a text for a list":   {strings.Replace(good, "[x]", "x", 1), `app.yaml:4: programs[0].command: it is the text "x": write a list`},
		"a list for a text":   {strings.Replace(good, "name: a", "name: [a]", 1), `app.yaml:1: name: it is a list`},
		"a text for a bool":   {good + "    job: maybe\n", `write true or false`},
		"no YAML":             {"name: [", "yaml: line 2"},
		"nothing":             {"", "the file is empty"},
		"two documents":       {good + "---\n" + good, "a second document"},
		"no program":          {"name: a\n", "0 programs"},
		"a bad threshold":     {good + "    liveness: {answer: soon}\n", `app.yaml:5: programs[0].liveness.answer: "soon" is not a time`},
		"a short threshold":   {good + "    liveness: {ready: 1ms}\n", `liveness ready of 1ms: must be 100ms to 24h0m0s, or off`},
		"nothing to run":      {"name: a\nprograms: [{name: p}]\n", "program p: nothing to run"},
		"an unknown policy":   {good + "    policy: some\n", "must be none, recover, fate-share or tainted"},
		"too long":            {good + strings.Repeat("#", yamlfile.MaxFile), "too long"},
	} {
		_, err := Parse("app.yaml", []byte(q.text))
		if err == nil || !strings.HasPrefix(err.Error(), "app.yaml:") || !strings.Contains(err.Error(), q.want) {
			t.Errorf("%s: %v, want %q", what, err, q.want)
		}
	}
}

func TestRead_NoFile(t *testing.T) {
	if _, err := Read(filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// FuzzParse: whatever a file holds, there is either a valid specification or an
// error that names the file.
func FuzzParse(f *testing.F) {
	b, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte("name: a\nprograms:\n  - &x {name: p, command: [x], nodez: 1}\n  - *x\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Parse("app.yaml", b)
		switch {
		case err == nil:
			if err := s.Validate(); err != nil {
				t.Errorf("accepted, but %v", err)
			}
		case !strings.HasPrefix(err.Error(), "app.yaml:"):
			t.Errorf("error %v", err)
		}
	})
}

// Thresholds are times; 0s is none, and what is not said has its default.
func TestLiveness(t *testing.T) {
	s, err := Parse("app.yaml", []byte("name: a\nprograms:\n  - {name: p, command: [x], liveness: {answer: 0s, progress: 1m}}\n  - {name: q, command: [x]}\n"))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []resources.Liveness{{Progress: time.Minute}, {Answer: resources.DefaultAnswer}} {
		if got := s.Programs[i].Liveness.WithDefaults(); got != want {
			t.Errorf("program %d: %+v, want %+v", i, got, want)
		}
	}
}
