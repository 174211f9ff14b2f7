package machine

import "testing"

func TestField(t *testing.T) {
	const info = "processor\t: 0\nmodel name\t: A CPU: fast\nmodel name\t: another\nMemTotal:  2048 kB\nNAME=\"x\"\n"
	for _, tc := range []struct{ key, separator, want string }{
		{"model name", ":", "A CPU: fast"}, {"MemTotal", ":", "2048 kB"}, {"NAME", "=", `"x"`}, {"absent", ":", ""}, {"model", ":", ""},
	} {
		if got := field(info, tc.key, tc.separator); got != tc.want {
			t.Errorf("%s: %q", tc.key, got)
		}
	}
	for s, want := range map[string]uint64{"2048 kB": 2 << 20, "": 0, "-1 kB": 0, "x": 0} {
		if got := kilobytes(s); got != want {
			t.Errorf("%q: %d", s, got)
		}
	}
}

// This machine has a CPU, memory and a kernel.
func TestDescribe(t *testing.T) {
	m := Describe()
	if m.CPUs < 1 || m.Memory == 0 || m.Kernel == "" || Load() < 0 {
		t.Errorf("%+v", m)
	}
	if v := Versions("1.2"); v["bifrost"] != "1.2" || v["go"] == "" {
		t.Errorf("%v", v)
	}
}
