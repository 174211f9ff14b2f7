package pairing

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// What is given comes first; the rest is paired by name, and an odd one is alone.
func TestMachines(t *testing.T) {
	for _, tc := range []struct {
		given  [][]string
		blades string
		want   string
	}{
		{nil, "", "[]"},
		{nil, "m1", "[[m1]]"},
		{nil, "m3 m1 m2", "[[m1 m2] [m3]]"},
		{nil, "m10 m9 m2 m1", "[[m1 m2] [m9 m10]]"},
		{nil, "m01 m1 m001 m2", "[[m1 m01] [m001 m2]]"},
		{nil, "far near far2 near1", "[[far far2] [near near1]]"},
		{[][]string{{"m3", "m1"}}, "m1 m2 m3", "[[m3 m1] [m2]]"},
		{[][]string{{"m2"}}, "m1 m2 m3 m4", "[[m2] [m1 m3] [m4]]"},
		{[][]string{{"m1"}, {"m2"}}, "m1 m2", "[[m1] [m2]]"},
	} {
		if got := fmt.Sprint(Machines(tc.given, strings.Fields(tc.blades))); got != tc.want {
			t.Errorf("%v given of %s: %s, want %s", tc.given, tc.blades, got, tc.want)
		}
	}
}

func TestByNumber(t *testing.T) {
	for name, want := range map[string]string{
		"m1": "[m1 m2]", "m2": "[m1 m2]", "m3": "[m3 m4]", "m9": "[m9 m10]", "m10": "[m9 m10]", "rack-2-mem07": "[rack-2-mem07 rack-2-mem08]",
		"4": "[3 4]", "m": "[]", "": "[]", "m0": "[]", "m00": "[]", "m09": "[]", "m1a": "[]", "m4294967296": "[]", "m4294967295": "[]",
	} {
		if got := fmt.Sprint(ByNumber(name)); got != want {
			t.Errorf("%q: %s, want %s", name, got, want)
		}
	}
}

func TestMachinesDoesNotChangeWhatIsGiven(t *testing.T) {
	given := make([][]string, 1, 9)
	given[0] = []string{"b"}
	names := []string{"c", "b", "a"}
	Machines(given, names)
	if !slices.Equal(names, []string{"c", "b", "a"}) || given[:2][1] != nil {
		t.Errorf("names are now %v, given machines %v", names, given[:2])
	}
}

func TestParse(t *testing.T) {
	for text, want := range map[string]string{"m1": "[m1]", "m1+m2": "[m1 m2]"} {
		if got, err := Parse(text); err != nil || fmt.Sprint(got) != want {
			t.Errorf("%s: %v, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{
		"": "empty", "+": "empty", "m1+": "empty", "m1+m1": "named twice", "m1+m2+m3": "one blade or two",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// FuzzParse: what is taken reads back as it was written, and pairs nobody with itself.
func FuzzParse(f *testing.F) {
	for _, text := range []string{"m1", "m1+m2", "+", "m1+m1", "a+b+c"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		blades, err := Parse(text)
		if err != nil {
			return
		}
		if strings.Join(blades, Separator) != text || len(slices.Compact(slices.Sorted(slices.Values(blades)))) != len(blades) {
			t.Errorf("%q was read as %q", text, blades)
		}
		for _, m := range Machines(nil, blades) {
			if len(m) > MaxBlades {
				t.Errorf("machine %q", m)
			}
		}
	})
}
