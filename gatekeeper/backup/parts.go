package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// parts are a backup that is taken apart, in files without names: the regions of each blade as they are, and all records and ledgers
// as the lines of a backup.
type parts struct {
	manifest Manifest
	files    map[string]*os.File // by blade; those lines by ""
	lines    *json.Encoder
}

func newParts(m Manifest) *parts { return &parts{manifest: m, files: map[string]*os.File{}} }

// spool takes a backup apart that is whole.
func spool(r io.Reader) (*parts, error) {
	p := newParts(Manifest{})
	if err := Read(r, p); err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

// file is the file of a part, made if it is not there.
func (p *parts) file(part string) (*os.File, error) {
	if f := p.files[part]; f != nil {
		return f, nil
	}
	if part != "" && !slices.ContainsFunc(p.manifest.Blades, func(b Blade) bool { return b.Name == part }) {
		return nil, fmt.Errorf("%w: regions of blade %q, which the manifest does not name", ErrCut, part)
	}
	f, err := os.CreateTemp("", "bifrost-backup-*")
	if err != nil {
		return nil, err
	}
	p.files[part] = f
	return f, os.Remove(f.Name())
}

func (p *parts) close() {
	for _, f := range p.files {
		_ = f.Close()
	}
}

// reader reads a part from its beginning; one that is not there is empty.
func (p *parts) reader(part string) io.Reader {
	if f := p.files[part]; f != nil {
		return io.NewSectionReader(f, 0, math.MaxInt64)
	}
	return strings.NewReader("")
}

// names are the parts, in their order: records and ledgers first.
func (p *parts) names() []string {
	names := []string{""}
	for _, b := range p.manifest.Blades {
		names = append(names, b.Name)
	}
	return names
}

// Manifest implements Sink, and so do the other methods.
func (p *parts) Manifest(m Manifest) error { p.manifest = m; return nil }

func (p *parts) Record(r wal.Record) error {
	b, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	return p.line(Entry{Record: b})
}

func (p *parts) Ledgers(of Blade, ledgers []control.LedgerContent) error {
	return p.line(Entry{Blade: of.Name, Ledgers: ledgers})
}

func (p *parts) Regions(of Blade, part []byte) error {
	f, err := p.file(of.Name)
	if err == nil {
		_, err = f.Write(part)
	}
	return err
}

func (p *parts) line(e Entry) error {
	if p.lines == nil {
		f, err := p.file("")
		if err != nil {
			return err
		}
		p.lines = json.NewEncoder(f)
	}
	return p.lines.Encode(e)
}

// check compares the sums of all parts with those that they should have.
func (p *parts) check(want map[string]string) error {
	for _, name := range p.names() {
		sum, err := sumOf(p.reader(name))
		if err != nil {
			return err
		}
		if sum != want[name] {
			return fmt.Errorf("%w: its pieces do not make up what was saved", ErrCut)
		}
	}
	return nil
}

// feed hands the backup to a sink.
func (p *parts) feed(to Sink) error {
	if err := to.Manifest(p.manifest); err != nil {
		return err
	}
	d := reader{to: to, blades: map[string]Blade{}}
	for _, b := range p.manifest.Blades {
		d.blades[b.Name] = b
	}
	d.json = json.NewDecoder(bufio.NewReader(p.reader("")))
	for d.json.More() {
		if err := d.entry(); err != nil {
			return err
		}
	}
	part := make([]byte, maxData)
	for _, b := range p.manifest.Blades {
		for r := p.reader(b.Name); ; {
			n, err := io.ReadFull(r, part)
			if n > 0 {
				if err := to.Regions(b, part[:n]); err != nil {
					return err
				}
			}
			if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
				break
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// ManifestOf is the manifest of the backup in a file, of which nothing else is looked at.
func ManifestOf(name string) (Manifest, error) {
	f, err := os.Open(name)
	if err != nil {
		return Manifest{}, err
	}
	defer f.Close()
	return peek(f)
}

// ManifestTo returns a sink that keeps the manifest, and nothing else.
func ManifestTo(m *Manifest) Sink { return &manifestOnly{m} }

// manifestOnly is that sink.
type manifestOnly struct{ of *Manifest }

func (s *manifestOnly) Manifest(m Manifest) error                    { *s.of = m; return nil }
func (s *manifestOnly) Record(wal.Record) error                      { return nil }
func (s *manifestOnly) Ledgers(Blade, []control.LedgerContent) error { return nil }
func (s *manifestOnly) Regions(Blade, []byte) error                  { return nil }

// Bytes of a chunk: where one ends depends on what it has, not on where it is, so what is the same in two files has the same chunks.
const (
	minChunk = 2 << 10
	avgChunk = 8 << 10 // a power of two
	maxChunk = 64 << 10
)

// gear has a random number for each byte.
var gear = func() (table [256]uint64) {
	for i := range table {
		sum := sha256.Sum256([]byte{byte(i)})
		for _, b := range sum[:8] {
			table[i] = table[i]<<8 | uint64(b)
		}
	}
	return table
}()

// chunks hands over the chunks of what is read. They are valid until f returns.
func chunks(from io.Reader, f func(b []byte) error) error {
	r := bufio.NewReaderSize(from, 1<<20)
	var chunk bytes.Buffer
	hash := uint64(0)
	for {
		b, err := r.ReadByte()
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if err == nil {
			chunk.WriteByte(b)
			hash = hash<<1 + gear[b]
		}
		n := chunk.Len()
		if n > 0 && (err != nil || n >= minChunk && hash>>51&(avgChunk-1) == 0 || n == maxChunk) {
			if err := f(chunk.Bytes()); err != nil {
				return err
			}
			chunk.Reset()
			hash = 0
		}
		if err != nil {
			return nil
		}
	}
}
