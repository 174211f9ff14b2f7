package backup

import (
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// kept is a sink that keeps everything.
type kept struct {
	manifest Manifest
	records  []wal.Record
	ledgers  map[string][]control.LedgerContent
	regions  string
}

func (k *kept) Regions(of Blade, part []byte) error {
	k.regions += of.Name + " " + string(part)
	return nil
}

func (k *kept) Manifest(m Manifest) error { k.manifest = m; return nil }
func (k *kept) Record(r wal.Record) error { k.records = append(k.records, r); return nil }

func (k *kept) Ledgers(of Blade, ledgers []control.LedgerContent) error {
	k.ledgers[of.Name] = append(k.ledgers[of.Name], ledgers...)
	return nil
}

// sample is a small backup.
func sample(t testing.TB) (file []byte, has kept) {
	t.Helper()
	has = kept{
		manifest: Manifest{Format: Format, Rack: 7, Blades: []Blade{{"m1", 1, 5, 7, 9, 1, true}, {"m2", 1, 5, 7, 8, 0, false}}, Regions: 3, Lacks: 1},
		records:  []wal.Record{{Kind: wal.KindRack, Data: []byte("{}")}, {Kind: wal.KindMain, ID: wal.NameID("s"), Order: 9, Data: []byte("state")}},
		ledgers: map[string][]control.LedgerContent{
			"m1": {{Name: control.LedgerName{1}, Run: 1, First: 4, Chunks: []control.LedgerChunk{{Number: 4, Data: []byte("chunk")}}}},
			"m2": {{Name: control.LedgerName{1}, Run: 1, First: 5}},
		},
		regions: "m1 items",
	}
	var b bytes.Buffer
	w, err := NewWriter(&b, has.manifest)
	for i := range has.records {
		err = errors.Join(err, w.Record(&has.records[i]))
	}
	for _, blade := range has.manifest.Blades {
		err = errors.Join(err, w.Ledgers(blade.Name, has.ledgers[blade.Name]))
	}
	err = errors.Join(err, w.Regions("m1", []byte("items")))
	if err = errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes(), has
}

// TestRead: what was written is read; a file that is cut off anywhere, or in which a bit has
// changed, is refused.
func TestRead(t *testing.T) {
	file, has := sample(t)
	got := kept{ledgers: map[string][]control.LedgerContent{}}
	if err := Read(bytes.NewReader(file), &got); err != nil {
		t.Fatal(err)
	}
	got.manifest.Release = control.Release{}
	if !reflect.DeepEqual(got, has) {
		t.Errorf("read\n%+v\nwant\n%+v", got, has)
	}
	for n := range file {
		if err := Read(bytes.NewReader(file[:n]), &kept{ledgers: map[string][]control.LedgerContent{}}); err == nil {
			t.Errorf("the first %d bytes of %d are read as a whole", n, len(file))
		}
		if n >= 10 { // behind gzip's header, which has no checksum
			bad := bytes.Clone(file)
			bad[n] ^= 4
			if err := Read(bytes.NewReader(bad), &kept{ledgers: map[string][]control.LedgerContent{}}); err == nil {
				t.Errorf("nobody sees that byte %d has changed", n)
			}
		}
	}
}

// zipped is a file with these lines.
func zipped(lines string) io.Reader {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	_, _ = z.Write([]byte(lines))
	_ = z.Close()
	return &b
}

// TestReadRefuses: files that are no whole backups are refused as what they are.
func TestReadRefuses(t *testing.T) {
	const manifest = `{"manifest":{"format":2,"blades":[{"name":"m1"}]}}` + "\n"
	for lines, want := range map[string]error{
		"":                             ErrFormat,
		`{"end":{}}`:                   ErrFormat,
		`{"manifest":{"format":3}}`:    ErrFormat,
		manifest:                       ErrCut,
		manifest + `{}`:                ErrCut,
		manifest + `{"record":"AAAA"}`: wal.ErrCorrupt,
		manifest + `{"blade":"m2"}`:    ErrCut,
		manifest + `{"blade":"m1","ledgers":[]}` + `{"end":{"records":1,"ledgers":0}}`: ErrCut,
		manifest + `{"blade":"m1","regions":"AAAA"}` + `{"end":{"regions":4}}`:         ErrCut,
		manifest + `{"end":{}}{"blade":"m1"}`:                                          ErrCut,
	} {
		if err := Read(zipped(lines), &kept{ledgers: map[string][]control.LedgerContent{}}); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", lines, err, want)
		}
	}
	if err := Read(strings.NewReader("no gzip"), &kept{}); !errors.Is(err, ErrFormat) {
		t.Error(err)
	}
	if err := Read(zipped(manifest+`{"end":{}}`), &kept{}); err != nil {
		t.Error(err)
	}
}

// FuzzRead: a file is read as a whole, or refused as what it is.
func FuzzRead(f *testing.F) {
	file, _ := sample(f)
	z, err := gzip.NewReader(bytes.NewReader(file))
	if err != nil {
		f.Fatal(err)
	}
	lines, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(lines))
	f.Fuzz(func(t *testing.T, lines string) {
		err := Read(zipped(lines), &kept{ledgers: map[string][]control.LedgerContent{}})
		if err != nil && !errors.Is(err, ErrFormat) && !errors.Is(err, ErrCut) && !errors.Is(err, wal.ErrCorrupt) && !errors.Is(err, wal.ErrVersion) {
			t.Error(err)
		}
	})
}
