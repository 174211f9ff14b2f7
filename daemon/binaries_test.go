package daemon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/bifrost-rack/bifrost/internal/control"
)

// script writes a program that says a word, as an install does: under a new inode.
func script(t *testing.T, path, word string) (hash string) {
	t.Helper()
	text := "#!/bin/sh\necho " + word + "\n"
	if err := os.WriteFile(path+".new", []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// A program whose file was replaced is started as it was; one that the blade has never had is
// refused.
func TestExec_Binaries(t *testing.T) {
	dir := t.TempDir()
	kept, err := OpenBinaries(filepath.Join(dir, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	run := func(hash string) (string, error) {
		var out strings.Builder
		p, err := (Exec{Binaries: kept}).Run(control.Start{Name: "p", Args: []string{path}, Binary: hash}, &out)
		if err != nil {
			return "", err
		}
		<-p.Done()
		return strings.TrimSpace(out.String()), p.Err()
	}
	one := script(t, path, "one")
	if out, err := run(one); out != "one" || err != nil {
		t.Errorf("the first program: %q, %v", out, err)
	}
	two := script(t, path, "two")
	for hash, want := range map[string]string{one: "one", two: "two", "": "two"} {
		if out, err := run(hash); out != want || err != nil {
			t.Errorf("%.8s: %q, %v; want %q", hash, out, err, want)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if out, err := run(two); out != "two" || err != nil {
		t.Errorf("a removed program: %q, %v", out, err)
	}
	never := strings.Repeat("0", 64)
	script(t, path, "three")
	if _, err := run(never); err == nil || !strings.Contains(err.Error(), "has not kept") {
		t.Errorf("content that was never here: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kept", one), []byte("#!/bin/sh\necho forged\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := run(one); err == nil {
		t.Errorf("a kept file was changed, and says %q", out)
	}
	if _, err := (Exec{}).Run(control.Start{Name: "p", Args: []string{path}, Binary: one}, nil); err == nil {
		t.Error("a daemon that keeps no programs has started one by its content")
	}
}

// Only the files that were used last are kept.
func TestBinaries_Bounded(t *testing.T) {
	dir := t.TempDir()
	kept, err := OpenBinaries(filepath.Join(dir, "kept"))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "program")
	var hashes []string
	for n := range maxBinaries + 2 {
		hashes = append(hashes, script(t, path, fmt.Sprint(n)))
		if _, err := kept.Find(path, hashes[n]); err != nil {
			t.Fatal(err)
		}
		old := time.Now().Add(time.Duration(n-100) * time.Hour)
		if err := os.Chtimes(filepath.Join(dir, "kept", hashes[n]), old, old); err != nil {
			t.Fatal(err)
		}
		if _, err := kept.Find(path+"x", hashes[0]); err != nil { // in use
			t.Fatal(err)
		}
	}
	all, err := os.ReadDir(filepath.Join(dir, "kept"))
	if err != nil || len(all) != maxBinaries {
		t.Errorf("%d files are kept, want %d; %v", len(all), maxBinaries, err)
	}
	if _, err := kept.Find(path+"x", hashes[1]); err == nil {
		t.Error("the file that was not used for the longest time is still there")
	}
}

// TestBinaries_Shared: blades of one machine keep and remove the same files at the same time.
func TestBinaries_Shared(t *testing.T) {
	dir := t.TempDir()
	var blades []*Binaries
	for range 4 {
		b, err := OpenBinaries(filepath.Join(dir, "kept"))
		if err != nil {
			t.Fatal(err)
		}
		blades = append(blades, b)
	}
	path := filepath.Join(dir, "program")
	for n := range 200 {
		hash := script(t, path, fmt.Sprint(n))
		var all errgroup.Group
		for _, b := range blades {
			all.Go(func() error {
				_, err := b.Find(path, hash)
				return err
			})
		}
		if err := all.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}
