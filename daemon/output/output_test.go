package output

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/rotate"
)

// clock is a time that moves when it is told to.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func open(t *testing.T, dir string, size int64, c *clock) *Store {
	t.Helper()
	s, err := Open(Config{Dir: dir, Size: size, Now: c.now})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func texts(lines []Line) (all []string) {
	for _, l := range lines {
		all = append(all, l.Text)
	}
	return all
}

func read(t *testing.T, s *Store, q Query) ([]Line, bool) {
	t.Helper()
	if q.Max == 0 {
		q.Max = 1 << 20
	}
	lines, more, err := s.Read(q)
	if err != nil {
		t.Fatal(err)
	}
	return lines, more
}

// What programs print is read by name, by time, and from its end, across rotation and a
// restart of the daemon whose clock has gone back.
func TestRead(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	dir := t.TempDir()
	s := open(t, dir, 200, c)
	a, b := s.Writer("shop/a/1"), s.Writer("shop/b.c/1")
	for k := range 8 {
		fmt.Fprintf(a, "a%d\n", k)
		fmt.Fprintf(b, "b%d", k)
		fmt.Fprintln(b)
		c.at = c.at.Add(time.Second)
	}
	fmt.Fprint(a, "half")
	if lines, more := read(t, s, Query{Name: "shop"}); more || !slices.Equal(texts(lines), strings.Fields("a0 b0 a1 b1 a2 b2 a3 b3 a4 b4 a5 b5 a6 b6 a7 b7")) {
		t.Errorf("all: %q, %v", texts(lines), more)
	}
	a.Close()
	b.Close()
	c.at = time.Unix(900, 0) // the clock is set back
	s = open(t, dir, 200, c)
	a = s.Writer("shop/a/1")
	fmt.Fprintln(a, "again")
	lines, _ := read(t, s, Query{Name: "shop/a"})
	if got := texts(lines); !slices.Equal(got, strings.Fields("a0 a1 a2 a3 a4 a5 a6 a7 half again")) {
		t.Errorf("of one program: %q", got)
	}
	for k, l := range lines {
		if got, _ := read(t, s, Query{Name: "shop/a/1", After: l.Time}); !slices.Equal(texts(got), texts(lines[k+1:])) {
			t.Errorf("after %q: %q", l.Text, texts(got))
		}
	}
	for _, name := range []string{"sho", "shop/a/", "shop/a/11", "shop/b"} {
		if got, _ := read(t, s, Query{Name: name}); len(got) > 0 {
			t.Errorf("%q has %q", name, texts(got))
		}
	}
	if got, more := read(t, s, Query{Last: 3}); !slices.Equal(texts(got), []string{"b7", "half", "again"}) || !more {
		t.Errorf("the last 3: %q, %v", texts(got), more)
	}
	a.Close()
}

// Answers are bounded, and those behind each other make the whole, whatever the bound.
func TestReadInParts(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	s := open(t, t.TempDir(), 60_000, c)
	w, v := s.Writer("p/x/1"), s.Writer("p/y/1")
	var want []string
	for k := range 90 {
		text := fmt.Sprintf("%d %s", k, strings.Repeat("z", k*37%1500))
		want = append(want, text)
		fmt.Fprintln([]*Writer{w, v}[k%2], text)
	}
	defer w.Close()
	defer v.Close()
	for _, most := range []int{1, 9_000, 20_000} {
		var got []string
		var after time.Time
		for more := true; more; {
			var part []Line
			part, more = read(t, s, Query{Name: "p", After: after, Max: most})
			if len(part) == 0 {
				t.Fatalf("nothing after %v, and there is more", after)
			}
			size := 0
			for _, l := range part {
				size += len(l.Text)
			}
			if size > max(most, MaxLine+overhead) {
				t.Errorf("an answer of %d bytes, want %d at most", size, most)
			}
			got, after = append(got, texts(part)...), part[len(part)-1].Time
		}
		if !slices.Equal(got, want) {
			t.Errorf("in parts of %d: %d lines, want %d", most, len(got), len(want))
		}
		last, more := read(t, s, Query{Last: 1000, Max: most})
		if !more || !slices.Equal(texts(last), want[len(want)-len(last):]) {
			t.Errorf("the last of %d bytes: %d lines", most, len(last))
		}
	}
}

// Two files of a program are kept, long lines are cut, and what is no text is made some.
func TestBounds(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	dir := t.TempDir()
	s := open(t, dir, 30_000, c)
	w := s.Writer("p/x/1")
	for range 20 {
		fmt.Fprintln(w, strings.Repeat("y", MaxLine+10))
	}
	fmt.Fprint(w, "\xff\n")
	w.Close()
	total := int64(0)
	for _, p := range []string{"p~x~1.log", "p~x~1.log" + rotate.Older} {
		info, err := os.Stat(filepath.Join(dir, p))
		if err != nil {
			t.Fatal(err)
		}
		total += info.Size()
	}
	if total > 60_000 {
		t.Errorf("%d bytes are kept", total)
	}
	lines, _ := read(t, s, Query{Last: 3})
	if got := texts(lines); len(got) != 3 || len(got[0]) != MaxLine || got[1] != "yyyyyyyyyy" || got[2] != "�" {
		t.Errorf("the last 3: %.20q", got)
	}
}

// Of programs that have ended, those that printed longest ago go; those that run stay.
func TestPrograms(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	dir := t.TempDir()
	s := open(t, dir, 0, c)
	runs := s.Writer("app/0/0")
	fmt.Fprintln(runs, "still here")
	for k := 1; k <= MaxPrograms+5; k++ {
		c.at = c.at.Add(time.Second)
		w := s.Writer(fmt.Sprintf("app/%d/1", k))
		fmt.Fprintln(w, "text")
		w.Close()
	}
	left := s.Programs()
	if len(left) != MaxPrograms || !slices.Contains(left, "app/0/0") || slices.Contains(left, "app/6/1") || !slices.Contains(left, "app/7/1") {
		t.Errorf("%d programs are left, from %v", len(left), left[:5])
	}
	if files, _ := os.ReadDir(dir); len(files) != MaxPrograms {
		t.Errorf("%d files are left", len(files))
	}
	runs.Close()
}

// What cannot be written is dropped and counted, and what comes later is kept.
func TestFullDisk(t *testing.T) {
	c := &clock{time.Unix(1000, 0)}
	dir := t.TempDir()
	s := open(t, dir, 0, c)
	w := s.Writer("p/x/1")
	obstacle := filepath.Join(dir, FileName("p/x/1"))
	if err := os.Mkdir(obstacle, 0o700); err != nil { // a directory, where the file would be
		t.Fatal(err)
	}
	if n, err := fmt.Fprintln(w, "lost"); n != 5 || err != nil {
		t.Errorf("write: %d, %v", n, err)
	}
	if err := os.Remove(obstacle); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(w, "kept")
	w.Close()
	if lines, _ := read(t, s, Query{}); !slices.Equal(texts(lines), []string{"kept"}) || s.Dropped() != 1 {
		t.Errorf("kept %q, dropped %d", texts(lines), s.Dropped())
	}
}

// checkLines: lines are as a query asks for them.
func checkLines(t *testing.T, q *Query, lines []Line) {
	t.Helper()
	used := 0
	for i, l := range lines {
		used += len(l.Text)
		if l.Program != "p/x/1" || len(l.Text) > MaxLine || !l.Time.After(q.After) && !q.After.IsZero() || i > 0 && l.Time.Before(lines[i-1].Time) {
			t.Errorf("line %d of %d to %+v: %+v", i, len(lines), q, l)
		}
	}
	if q.Last > 0 && len(lines) > q.Last || used > MaxLine {
		t.Errorf("%d lines of %d bytes to %+v", len(lines), used, q)
	}
}

// FuzzRead reads whatever lies in the directory: an answer, or an error that names the file.
func FuzzRead(f *testing.F) {
	f.Add([]byte("1000 a\n2000 b\n"), int64(1500), 1)
	f.Add([]byte("no time\n"), int64(0), 0)
	f.Add([]byte("5 half"), int64(4), 0)
	f.Fuzz(func(t *testing.T, content []byte, after int64, last int) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "p~x~1.log"), content, 0o600); err != nil {
			t.Fatal(err)
		}
		s, err := Open(Config{Dir: dir})
		if err == nil {
			q := Query{After: time.Unix(0, after), Last: max(last, 0), Max: 100}
			var lines []Line
			if lines, _, err = s.Read(q); err == nil {
				checkLines(t, &q, lines)
			}
		}
		if err != nil && !strings.Contains(err.Error(), "p~x~1.log") {
			t.Errorf("the error does not name the file: %v", err)
		}
	})
}

// Lines are lines however they are written; the last one needs no end.
func TestLines(t *testing.T) {
	long := strings.Repeat("x", MaxLine)
	cases := map[string]struct {
		writes []string
		want   []string
	}{
		"whole lines":   {[]string{"one\ntwo\n"}, []string{"one", "two"}},
		"in pieces":     {[]string{"o", "ne\nt", "wo", "\n\n"}, []string{"one", "two", ""}},
		"without end":   {[]string{"one\ntwo"}, []string{"one", "two"}},
		"too long":      {[]string{long + "tail\nnext\n"}, []string{long, "tail", "next"}},
		"just fits":     {[]string{long, "\n"}, []string{long, ""}},
		"very long":     {[]string{long + long, "\n"}, []string{long, long, ""}},
		"long and end":  {[]string{"a\n" + long + "b"}, []string{"a", long, "b"}},
		"nothing":       {nil, nil},
		"pieces, long":  {[]string{long[:100], long[100:] + "y", "z\n"}, []string{long, "yz"}},
		"newline alone": {[]string{"\n"}, []string{""}},
	}
	for name, tc := range cases {
		var got []string
		l := &Lines{Each: func(line []byte) { got = append(got, string(line)) }}
		for _, w := range tc.writes {
			if n, err := l.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("%s: wrote %d, %v", name, n, err)
			}
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s: %.80q, want %.80q", name, got, tc.want)
		}
	}
}
