package rotate

import (
	"os"
	"path/filepath"
	"testing"
)

// A full file becomes the older one; a write is never divided; the next start goes on.
func TestFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	opened := 0
	r := &File{Path: path, Max: 10, Opened: func(*os.File) error { opened++; return nil }}
	write := func(s string) {
		t.Helper()
		if n, err := r.Write([]byte(s)); err != nil || n != len(s) {
			t.Fatalf("write %q: %d, %v", s, n, err)
		}
	}
	check := func(newer, older string) {
		t.Helper()
		for p, want := range map[string]string{path: newer, path + Older: older} {
			if b, _ := os.ReadFile(p); string(b) != want {
				t.Errorf("%s holds %q, want %q", p, b, want)
			}
		}
	}
	write("12345")
	write("67890")
	check("1234567890", "")
	write("a")
	check("a", "1234567890")
	write("a whole line that is longer than that")
	check("a whole line that is longer than that", "a")
	write("b")
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = &File{Path: path, Max: 10, Opened: r.Opened}
	write("123456789") // 10 with what is there
	check("b123456789", "a whole line that is longer than that")
	write("c")
	check("c", "b123456789")
	if opened != 6 {
		t.Errorf("opened %d files, want 6", opened)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Remove(path); err != nil {
		t.Error(err)
	}
	if err := Remove(path); err != nil {
		t.Errorf("remove what is gone: %v", err)
	}
}
