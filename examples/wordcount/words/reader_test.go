package words

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"

	"testing"
)

// parts cuts files and returns all parts.
func parts(t *testing.T, part, count int, texts ...string) (all [][]byte) {
	t.Helper()
	r := reader{part: part}
	for i, text := range texts {
		name := filepath.Join(t.TempDir(), string(rune('a'+i)))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		r.files = append(r.files, name)
	}
	for {
		next, err := r.next(count)
		if err != nil {
			t.Fatal(err)
		}
		if len(next) == 0 {
			return all
		}
		if len(next) > count {
			t.Fatalf("%d parts, asked for %d", len(next), count)
		}
		all = append(all, next...)
	}
}

// TestReader: parts hold the whole text and no word is cut, however small they are.
func TestReader(t *testing.T) {
	const text = "Bifröst, die Brücke: три богатыря.\n虹の橋 and a-very-long-word-without-spaces-but-dashes  "
	words := count([]byte(text))
	for size := 1; size < len(text)+2; size++ {
		all := parts(t, size, 3, text, "", text)
		if got := string(bytes.Join(all, nil)); got != text+text {
			t.Fatalf("parts of %d: %q", size, got)
		}
		sum := map[string]int64{}
		for _, part := range all {
			for w, n := range count(part) {
				sum[w] += n
			}
		}
		for w, n := range words {
			if sum[w] != 2*n {
				t.Errorf("parts of %d: %q occurs %d times, want %d", size, w, sum[w], 2*n)
			}
		}
		if len(sum) != len(words) {
			t.Errorf("parts of %d: %d words, want %d", size, len(sum), len(words))
		}
	}
}

func TestReader_Errors(t *testing.T) {
	r := reader{files: []string{filepath.Join(t.TempDir(), "none")}, part: 1}
	if _, err := r.next(1); !os.IsNotExist(err) {
		t.Errorf("no such file: %v", err)
	}
}

// FuzzReader: whatever a file holds, nothing of it is lost or doubled.
func FuzzReader(f *testing.F) {
	f.Add([]byte("a b\xff c"), 2)
	f.Add([]byte("\xe8\x99\xb9\xe8\x99"), 1)
	f.Fuzz(func(t *testing.T, text []byte, size int) {
		size = 1 + (size&0xff+0x100)%0x100
		if all := parts(t, size, 2, string(text)); !bytes.Equal(bytes.Join(all, nil), text) {
			t.Errorf("%q", all)
		}
	})
}

func TestCount(t *testing.T) {
	got := count([]byte("One fish, two FISH; 2 fish."))
	want := map[string]int64{"one": 1, "two": 1, "fish": 3, "2": 1}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}
