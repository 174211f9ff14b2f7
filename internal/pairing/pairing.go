// Package pairing says which memory blades serve a memory machine: one, or two of
// which each holds a copy. Unless somebody names the pairs, blades are paired in the
// order of their names, where numbers count as numbers: m1 + m2, m3 + m4, m9 + m10. The
// last one of an odd number stays alone. Where it is not known which blades there are, an odd
// number is paired with the next one: see ByNumber.
package pairing

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// MaxBlades is how many blades serve a machine at most.
const MaxBlades = 2

// Separator joins the names of a pair in texts: m1+m2.
const Separator = "+"

// Machines returns the blades of every memory machine: the given ones, in their order,
// then those that are not given, paired in the order of their names. Given machines
// must pass Check.
func Machines(given [][]string, blades []string) [][]string {
	machines := slices.Clone(given)
	var rest []string
	for _, b := range blades {
		if !slices.ContainsFunc(given, func(m []string) bool { return slices.Contains(m, b) }) {
			rest = append(rest, b)
		}
	}
	slices.SortFunc(rest, compareNames)
	for pair := range slices.Chunk(rest, MaxBlades) {
		machines = append(machines, slices.Clone(pair))
	}
	return machines
}

// ByNumber returns the two blades that are paired if nobody knows which others there are:
// an odd number with the next one, m1 + m2, m9 + m10, m03 + m04. It returns nil for a name
// that does not end with a number from 1 on, and for m09, since m10 is paired with m9.
func ByNumber(name string) []string {
	pair := numbered(name)
	for _, other := range pair {
		if !slices.Equal(numbered(other), pair) {
			return nil
		}
	}
	return pair
}

func numbered(name string) []string {
	prefix := strings.TrimRight(name, "0123456789")
	text := name[len(prefix):]
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil || n == 0 {
		return nil
	}
	width := 1
	if text[0] == '0' {
		width = len(text)
	}
	odd := n - (n-1)%2
	return []string{fmt.Sprintf("%s%0*d", prefix, width, odd), fmt.Sprintf("%s%0*d", prefix, width, odd+1)}
}

// Parse reads the blades of one machine: m1+m2, or m1 for a machine with one blade.
func Parse(text string) ([]string, error) {
	blades := strings.Split(text, Separator)
	return blades, Check([][]string{blades})
}

// Check reports what is wrong with machines: one without a blade or with more than two,
// and a blade that serves two machines, or one twice.
func Check(machines [][]string) error {
	of := map[string]bool{}
	for _, blades := range machines {
		if len(blades) < 1 || len(blades) > MaxBlades {
			return fmt.Errorf("machine %s: %d blades: name one blade or two", strings.Join(blades, Separator), len(blades))
		}
		for _, name := range blades {
			switch {
			case name == "":
				return fmt.Errorf("machine %s: a blade's name is empty: write e.g. m1 or m1+m2", strings.Join(blades, Separator))
			case of[name]:
				return fmt.Errorf("blade %s is named twice: a blade serves one machine, so name it once", name)
			}
			of[name] = true
		}
	}
	return nil
}

// compareNames compares names character by character, and digits in a row as one
// number.
func compareNames(a, b string) int {
	for a != "" && b != "" {
		x, y := digits(a), digits(b)
		if x == "" || y == "" {
			if a[0] != b[0] {
				return cmp.Compare(a[0], b[0])
			}
			a, b = a[1:], b[1:]
			continue
		}
		a, b = a[len(x):], b[len(y):]
		m, n := strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if d := cmp.Or(cmp.Compare(len(m), len(n)), cmp.Compare(m, n), cmp.Compare(len(x), len(y))); d != 0 {
			return d
		}
	}
	return cmp.Compare(a, b)
}

// digits returns the digits that a text begins with.
func digits(s string) string {
	return s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
}
