// Package suggest finds the names that somebody may have meant who has written one that
// does not exist.
package suggest

import (
	"fmt"
	"slices"
	"strings"
)

// maxListed is how many names are worth listing when none resembles the one given.
const maxListed = 12

// Text says which of the names that exist was meant: " (did you mean m1?)", or, if none
// resembles it, which there are: " (there are c1, m1 and m2)". It begins with a space and
// is meant to follow an error's text; it is "" if there is nothing to say.
func Text(name string, names []string) string {
	near := Near(name, names)
	switch {
	case len(near) > 0:
		return fmt.Sprintf(" (did you mean %s?)", list(near, "or"))
	case len(names) == 0 || len(names) > maxListed:
		return ""
	case len(names) == 1:
		return fmt.Sprintf(" (there is %s)", names[0])
	}
	return fmt.Sprintf(" (there are %s)", list(names, "and"))
}

// Near returns the names that differ from name by the fewest letters, at most three of
// them; none if all differ by more than a third of the letters, or by more than one in a
// short name.
func Near(name string, names []string) (near []string) {
	best := max(1, len([]rune(name))/3)
	for _, n := range names {
		switch d := distance(strings.ToLower(name), strings.ToLower(n)); {
		case d > best:
		case d < best:
			best, near = d, []string{n}
		default:
			near = append(near, n)
		}
	}
	return near[:min(len(near), 3)]
}

// list writes names with commas, and a word before the last one.
func list(names []string, word string) string {
	if len(names) == 1 {
		return names[0]
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " " + word + " " + names[last]
}

// distance is how many letters are to be inserted, removed or replaced to make b of a.
func distance(a, b string) int {
	x, y := []rune(a), []rune(b)
	row := make([]int, len(y)+1)
	for j := range row {
		row[j] = j
	}
	for i := range x {
		before := slices.Clone(row)
		row[0] = i + 1
		for j := range y {
			replaced := before[j]
			if x[i] != y[j] {
				replaced++
			}
			row[j+1] = min(replaced, before[j+1]+1, row[j]+1)
		}
	}
	return row[len(y)]
}
