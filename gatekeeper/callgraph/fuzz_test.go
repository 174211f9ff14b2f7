package callgraph

import "testing"

func FuzzParseCursor(f *testing.F) {
	f.Add("")
	f.Add("17-000102030405060708090a0b0c0d0e0f")
	f.Fuzz(func(t *testing.T, s string) {
		c, err := ParseCursor(s)
		if err != nil {
			return
		}
		if again, err := ParseCursor(c.String()); err != nil || again != c {
			t.Fatalf("%q became %v, then %v, %v", s, c, again, err)
		}
	})
}
