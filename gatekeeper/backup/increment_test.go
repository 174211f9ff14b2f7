package backup

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// write writes a backup to a file, and returns its content.
func write(t *testing.T, name string, rack uint64, ledgers int, regions []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := NewWriter(&b, Manifest{Rack: rack, Blades: []Blade{{Name: "m1", Machine: 1, Rack: rack, Regions: true}, {Name: "m2", Machine: 1, Rack: rack}}, Regions: 3})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		err = errors.Join(err, w.Record(&wal.Record{Kind: wal.KindMain, ID: wal.NameID("s"), Order: uint64(i), Data: bytes.Repeat([]byte{byte(i)}, 100)})) //nolint:gosec // few
	}
	for _, blade := range []string{"m1", "m2"} {
		for i := range ledgers {
			err = errors.Join(err, w.Ledgers(blade, []control.LedgerContent{{Name: control.LedgerName{byte(i)}, Run: 1, First: 4, Chunks: []control.LedgerChunk{{Number: 4, Data: bytes.Repeat([]byte{byte(i), 7}, 2000)}}}})) //nolint:gosec // few
		}
	}
	for len(regions) > 0 && err == nil {
		n := min(len(regions), 30_011)
		err = w.Regions("m1", regions[:n])
		regions = regions[n:]
	}
	if err = errors.Join(err, w.Close(), os.WriteFile(name, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// content is what a backup in a file has, its regions as one.
func content(t *testing.T, name string) (k kept, err error) {
	t.Helper()
	k = kept{ledgers: map[string][]control.LedgerContent{}}
	joined := joining{&k, map[string]*bytes.Buffer{"m1": {}, "m2": {}}}
	err = ReadFile(name, joined)
	k.regions = joined.regions["m1"].String()
	k.manifest.Base = nil
	return k, err
}

type joining struct {
	*kept
	regions map[string]*bytes.Buffer
}

func (j joining) Regions(of Blade, part []byte) error {
	_, err := j.regions[of.Name].Write(part)
	return err
}

// An increment, and one that goes with it, stand for what was saved. They are small when little has changed, also if what was there has
// moved. None is read without its base, with another one, or damaged.
func TestIncrement(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	dir := t.TempDir()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // the same each time
	regions := make([]byte, 4<<20)
	for i := range regions {
		regions[i] = byte(random.Uint32())
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	write(t, in("full"), 7, 5, regions)
	regions = append(append(append([]byte{}, regions[:1<<20]...), "new in the middle"...), regions[1<<20:]...)
	regions[3<<20] ^= 1
	increment := func(name, base string, whole []byte) (size int) {
		t.Helper()
		var b bytes.Buffer
		m, err := Increment(bytes.NewReader(whole), in(base), &b)
		if err = errors.Join(err, os.WriteFile(in(name), b.Bytes(), 0o600)); err != nil || m.Base == nil || m.Base.Name != base {
			t.Fatalf("%s: %+v, %v", name, m, err)
		}
		return b.Len()
	}
	same := func(name, whole string) {
		t.Helper()
		got, err := content(t, in(name))
		want, err2 := content(t, in(whole))
		if err = errors.Join(err, err2); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s is not %s: %v", name, whole, err)
		}
	}
	if n := increment("second", "full", write(t, in("whole2"), 7, 6, regions)); n > 100_000 {
		t.Errorf("the second backup takes %d bytes", n)
	}
	same("second", "whole2")
	regions = append(regions[2<<20:], "and at the end"...) // half of it is freed
	if n := increment("third", "second", write(t, in("whole3"), 7, 1, regions)); n > 100_000 {
		t.Errorf("the third backup takes %d bytes", n)
	}
	same("third", "whole3")
	if n := increment("fourth", "third", write(t, in("whole4"), 7, 0, nil)); n > 10_000 {
		t.Errorf("the fourth backup, of no region, takes %d bytes", n)
	}
	same("fourth", "whole4")

	file, err := os.ReadFile(in("second"))
	if err != nil {
		t.Fatal(err)
	}
	for n := 20; n < len(file); n += 9973 {
		bad := bytes.Clone(file)
		bad[n] ^= 4
		for what, b := range map[string][]byte{"changed": bad, "cut off": file[:n], "longer": append(bytes.Clone(file), file[:n]...)} {
			if err := os.WriteFile(in("bad"), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if got, err := content(t, in("bad")); err == nil {
				if want, _ := content(t, in("whole2")); !reflect.DeepEqual(got, want) { // a bit that means nothing
					t.Errorf("%s at %d, it is read", what, n)
				}
			}
		}
	}
	if err := Read(bytes.NewReader(file), &kept{}); !errors.Is(err, ErrBase) {
		t.Errorf("an increment alone: %v", err)
	}
	if err := os.Rename(in("whole3"), in("full")); err != nil { // another file of that name
		t.Fatal(err)
	}
	if _, err := content(t, in("third")); !errors.Is(err, ErrBase) {
		t.Errorf("with another base: %v", err)
	}
	if err := os.Remove(in("full")); err != nil {
		t.Fatal(err)
	}
	if _, err := content(t, in("second")); !errors.Is(err, ErrBase) {
		t.Errorf("without its base: %v", err)
	}
	other := write(t, in("other"), 8, 1, nil)
	if _, err := Increment(bytes.NewReader(other), in("whole4"), io.Discard); !errors.Is(err, ErrBase) {
		t.Errorf("of another rack: %v", err)
	}
	if left, err := os.ReadDir(os.TempDir()); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
}

// A backup stays what it is: an increment of an unchanged one has no byte of its own but the manifest and the sums.
func TestIncrement_Unchanged(t *testing.T) {
	name := filepath.Join(t.TempDir(), "full")
	whole := write(t, name, 7, 9, bytes.Repeat([]byte("0123456789abcdef"), 1<<16))
	var b bytes.Buffer
	if _, err := Increment(bytes.NewReader(whole), name, &b); err != nil || b.Len() > 2000 {
		t.Errorf("%d bytes, %v", b.Len(), err)
	}
}
