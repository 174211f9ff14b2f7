package rack

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
)

// tail agrees with cutting the whole text, wherever its blocks end.
func TestTail(t *testing.T) {
	long := strings.Repeat("x", tailBlock-1)
	for _, text := range []string{
		"", "\n", "a", "a\n", "a\nb", "a\nb\n", "\n\n\n", "a\n\nb\n",
		long + "\n", long + "\nb", "a\n" + long, "a\n" + long + "\nb\n", long + long + "\n" + long + "\n",
		strings.Repeat("line\n", 40_000),
	} {
		for _, n := range []int{1, 2, 3, 30_000} {
			var got bytes.Buffer
			if err := tail(&got, strings.NewReader(text), n); err != nil {
				t.Fatal(err)
			}
			lines := strings.SplitAfter(text, "\n")
			if lines[len(lines)-1] == "" {
				lines = lines[:len(lines)-1]
			}
			if want := strings.Join(lines[max(len(lines)-n, 0):], ""); got.String() != want {
				t.Errorf("last %d lines of %d bytes %.10q…: %d bytes, want %d", n, len(text), text, got.Len(), len(want))
			}
		}
	}
}

// Following shows what is added, and ends with the file or the context.
func TestFollow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		l := Log{Process: "p", Path: filepath.Join(t.TempDir(), "p.log")}
		f, err := os.Create(l.Path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprintln(f, "first")
		var out bytes.Buffer
		done := make(chan error)
		follow := func(ctx context.Context) { done <- l.Print(ctx, &out, 10, true) }
		go follow(t.Context())
		synctest.Wait()
		fmt.Fprintln(f, "second")
		if err := os.Remove(l.Path); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil || out.String() != "first\nsecond\n" {
			t.Errorf("followed %q, %v", &out, err)
		}
		if err := os.WriteFile(l.Path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		go follow(ctx)
		synctest.Wait()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestPrinted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for text, want := range map[string]bool{"": false, "it is up": false, "it is up\n": true, "so\nit is up now\nand": true, "it is\nup\n": false} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := printed(path, "is up"); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if printed(path+".none", "") {
		t.Error("a file that is not there")
	}
}
