package gatekeeper

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// printing is blades whose programs have printed: lines with their times in ns.
type printing map[string][]int64

// part is a blade's answer of two lines at most.
func (p printing) part(blade string, after int64, last int) (part control.OutputPart) {
	lines := slices.DeleteFunc(slices.Clone(p[blade]), func(at int64) bool { return at <= after })
	most := 2
	if last > 0 {
		most = last
	}
	if part.More = len(lines) > most; part.More && last > 0 {
		lines = lines[len(lines)-most:]
	} else if part.More {
		lines = lines[:most]
	}
	for _, at := range lines {
		part.Lines = append(part.Lines, control.OutputLine{Program: "app/p/1", Time: at, Text: fmt.Sprint(at)})
	}
	return part
}

// page is what the Gatekeeper makes of the blades' answers.
func (p printing) page(from OutputPosition, last int) OutputPage {
	page := OutputPage{Next: OutputPosition{others: from.others, blades: map[string]int64{}}}
	parts := map[string]control.OutputPart{}
	for blade := range p {
		page.Next.blades[blade] = from.of(blade)
		after := from.of(blade)
		if last > 0 {
			after = 0
		}
		parts[blade] = p.part(blade, after, last)
	}
	page.merge(parts, last)
	return page
}

func textsOf(lines []OutputLine) string {
	var all []string
	for _, l := range lines {
		all = append(all, l.Text)
	}
	return strings.Join(all, " ")
}

// The pages of several blades' output make the whole in order, each line once, although each
// blade answers some lines at a time; from the end, a time, and behind what was read.
func TestOutputPages(t *testing.T) {
	p := printing{"s1": {10, 40, 50, 80, 90}, "s2": {20, 30, 60, 70, 100, 110}, "s3": nil}
	const want = "10 20 30 40 50 60 70 80 90 100 110"
	read := func(from OutputPosition) string {
		var all []OutputLine
		for more := true; more; {
			page := p.page(from, 0)
			if page.More && len(page.Lines) == 0 {
				t.Fatalf("an empty page at %s, and there is more", from)
			}
			next, err := ParseOutputPosition(page.Next.String())
			if err != nil {
				t.Fatal(err)
			}
			all, from, more = append(all, page.Lines...), next, page.More
		}
		return textsOf(all)
	}
	if got := read(OutputPosition{}); got != want {
		t.Errorf("all: %s, want %s", got, want)
	}
	if got := read(OutputSince(time.Unix(0, 50))); got != want[12:] {
		t.Errorf("since 50: %s, want %s", got, want[12:])
	}
	for at, want := range map[time.Time]string{
		{}: want, time.Date(1600, 1, 1, 0, 0, 0, 0, time.UTC): want, time.Unix(-5, 0): want, time.Unix(0, 0): want,
		time.Date(2300, 1, 1, 0, 0, 0, 0, time.UTC): "", time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC): "",
	} {
		if got := read(OutputSince(at)); got != want {
			t.Errorf("since %v: %s, want %s", at, got, want)
		}
	}
	last := p.page(OutputSince(time.Unix(0, 115)), 4)
	if got := textsOf(last.Lines); got != "80 90 100 110" {
		t.Errorf("the last 4: %s", got)
	}
	p["s1"], p["s3"] = append(p["s1"], 95, 120), []int64{130}
	if got := read(last.Next); got != "95 120 130" {
		t.Errorf("behind the last 4: %s", got)
	}
	for _, bad := range []string{"x", "1@s1", "5 6", "5 7@", "5 @s1"} {
		if place, err := ParseOutputPosition(bad); err == nil && bad != "5 7@" {
			t.Errorf("%q is the place %v", bad, place)
		}
	}
}
