package rack

import (
	"errors"
	"strings"
	"testing"
)

func TestFailAndRestore(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	before := states(t, h, name)
	link := func() bool {
		st, err := h.Status(name)
		if err != nil {
			t.Fatal(err)
		}
		return st.Blades[2].Link // c1, behind switch and Gatekeeper
	}
	for _, tc := range []struct {
		blade string
		how   How
		want  map[string]string // what differs meanwhile
		link  bool
	}{
		{"c1", Kill, map[string]string{"c1": "gone", "p1": "gone"}, true},
		{"c1", Pause, map[string]string{"c1": "paused", "p1": "paused"}, true},
		{"c1", Link, nil, false},
		{"gatekeeper", Kill, map[string]string{"gatekeeper": "gone"}, true},
		{"switch", Kill, map[string]string{"switch": "gone"}, true},
		{"switch", Pause, map[string]string{"switch": "paused"}, true},
	} {
		t.Run(tc.blade+" "+string(tc.how), func(t *testing.T) {
			if err := h.Fail(t.Context(), name, tc.blade, tc.how); err != nil {
				t.Fatal(err)
			}
			if link() != tc.link {
				t.Errorf("link is up: %v", !tc.link)
			}
			// A stop is carried out when its process next runs.
			eventually(t, func() bool {
				now := states(t, h, name)
				for process, state := range before {
					if want, ok := tc.want[process]; ok {
						state = want
					}
					if now[process] != state {
						return false
					}
				}
				return true
			})
			if err := h.Restore(t.Context(), name, tc.blade); err != nil {
				t.Fatal(err)
			}
			if !link() {
				t.Error("the link is down after restore")
			}
			for process, state := range states(t, h, name) {
				if state != "running" {
					t.Errorf("after restore %s is %s", process, state)
				}
			}
		})
	}
}

// A dead program on a living blade is started again, and only it.
func TestRestoreProgram(t *testing.T) {
	h, name := testRack(t)
	up(t, h, name)
	pids := func() map[string]int {
		st, err := h.Status(name)
		if err != nil {
			t.Fatal(err)
		}
		m := map[string]int{}
		for _, p := range st.Blades[2].Processes {
			m[p.Name] = p.PID
		}
		return m
	}
	before := pids()
	s, err := h.open(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.kill(t.Context(), "p1"); err != nil {
		t.Fatal(err)
	}
	if err := h.Restore(t.Context(), name, "c1"); err != nil {
		t.Fatal(err)
	}
	if after := pids(); after["c1"] != before["c1"] || after["p1"] == before["p1"] {
		t.Errorf("processes %v, before %v", after, before)
	}
}

func TestFailWrongly(t *testing.T) {
	h, name := testRack(t)
	if err := h.Fail(t.Context(), name, "c1", Kill); !errors.Is(err, ErrNotUp) {
		t.Errorf("no rack: %v", err)
	}
	up(t, h, name)
	for _, err := range []error{
		h.Fail(t.Context(), name, "c9", Kill), h.Restore(t.Context(), name, "p1"), h.Fail(t.Context(), name, "switch", Link),
	} {
		if !errors.Is(err, ErrNoBlade) {
			t.Errorf("error %v", err)
		}
	}
	if err := h.Fail(t.Context(), name, "c1", "melt"); err == nil || !strings.Contains(err.Error(), "kill, pause, link or daemon") {
		t.Errorf("error %v", err)
	}
	if err := h.Down(t.Context(), "../x"); err == nil || errors.Is(err, ErrNotUp) {
		t.Errorf("a path as a name: %v", err)
	}
}
