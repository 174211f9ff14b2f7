// Package backup is the file that a backup of a rack is: what the Gatekeeper's log and the
// memory blades held at one moment. The file is gzip of JSON, an Entry on each line:
// the Manifest, the records of the log in their order, ledgers and regions blade after blade, the End.
package backup

import (
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/wal"
	"github.com/bifrost-rack/bifrost/internal/control"
)

// Format is the version of the file.
const Format = 2

// The reasons why a file is refused; compare with errors.Is.
var (
	// ErrFormat: it is no backup, or has another format than Format.
	ErrFormat = errors.New("it is not a backup that this program can read")
	// ErrCut: it is not whole, or was changed.
	ErrCut = errors.New("the backup is damaged, or not whole")
)

// Manifest says what a backup is of.
type Manifest struct {
	Format  int             `json:"format"`
	Time    time.Time       `json:"time"` // when the log was copied
	Release control.Release `json:"release,omitzero"`
	// Rack is the rack's number (control.Welcome.Began).
	Rack uint64 `json:"rack"`
	// Blades are the memory blades whose content the backup has.
	Blades []Blade `json:"blades"`
	// Regions is how many regions there were, Lacks how many of them are not in the backup,
	// because no blade of their machine was in service.
	Regions int `json:"regions"`
	Lacks   int `json:"lacks,omitempty"`
	// Base is what an increment goes with; nil for a backup that is whole.
	Base *Base `json:"base,omitempty"`
}

// Blade is a memory blade whose ledgers a backup has, and whose regions unless its machine's
// other blade has them.
type Blade struct {
	Name    string `json:"name"`
	Machine uint8  `json:"machine"`
	Birth   uint64 `json:"birth"` // of its ledgers
	Rack    uint64 `json:"rack"`  // likewise
	// Boot is its daemon's boot number, Incarnation that of its copy (control.Mirror).
	Boot        uint64 `json:"boot"`
	Incarnation uint32 `json:"incarnation,omitempty"`
	Regions     bool   `json:"regions,omitempty"` // the backup has them
}

// Entry is a line of the file; exactly one of Manifest, Record, Blade and End is set.
type Entry struct {
	Manifest *Manifest `json:"manifest,omitempty"`
	Record   []byte    `json:"record,omitempty"` // wal.Record's binary form
	// Blade is whose Ledgers or Regions follow; Regions are bytes of the items that the blade
	// would fill another copy with (package dsm/memory).
	Blade   string                  `json:"blade,omitempty"`
	Ledgers []control.LedgerContent `json:"ledgers,omitempty"`
	Regions []byte                  `json:"regions,omitempty"`
	End     *End                    `json:"end,omitempty"`
}

// End says how much there was, so that a file that was cut off is known.
type End struct {
	Records int `json:"records"`
	Ledgers int `json:"ledgers"` // those that begin in a line; one with many chunks has several
	Regions int `json:"regions"` // bytes of items
}

// Writer writes a backup. Its methods are called one at a time.
type Writer struct {
	zip  *gzip.Writer
	json *json.Encoder
	end  End
}

// NewWriter begins a backup.
func NewWriter(w io.Writer, m Manifest) (*Writer, error) {
	z := gzip.NewWriter(w)
	b := &Writer{zip: z, json: json.NewEncoder(z)}
	m.Format = Format
	return b, b.json.Encode(Entry{Manifest: &m})
}

// Record adds a record of the log.
func (w *Writer) Record(r *wal.Record) error {
	b, err := r.MarshalBinary()
	if err != nil {
		return err
	}
	w.end.Records++
	return w.json.Encode(Entry{Record: b})
}

// Ledgers adds ledgers of a blade, or further chunks of them.
func (w *Writer) Ledgers(blade string, ledgers []control.LedgerContent) error {
	w.end.Ledgers += len(ledgers)
	return w.json.Encode(Entry{Blade: blade, Ledgers: ledgers})
}

// Regions adds regions of a blade.
func (w *Writer) Regions(blade string, part []byte) error {
	w.end.Regions += len(part)
	return w.json.Encode(Entry{Blade: blade, Regions: part})
}

// Close writes the end. Without it the backup is refused as cut off.
func (w *Writer) Close() error {
	return errors.Join(w.json.Encode(Entry{End: &w.end}), w.zip.Close())
}

// Sink takes what a backup has, in its order. An error ends the reading.
type Sink interface {
	Manifest(m Manifest) error
	Record(r wal.Record) error
	Ledgers(of Blade, ledgers []control.LedgerContent) error
	Regions(of Blade, part []byte) error
}

// Read hands a backup that is whole to a sink. What the sink has got counts only if Read returns nil.
func Read(r io.Reader, to Sink) error {
	z, err := gzip.NewReader(r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	d := reader{json: json.NewDecoder(z), to: to}
	if err := d.manifest(); err != nil {
		return err
	}
	if d.base {
		return fmt.Errorf("%w: read it from its file, with the other one beside it", ErrBase)
	}
	for d.end == nil {
		if err := d.entry(); err != nil {
			return err
		}
	}
	if *d.end != d.got {
		return fmt.Errorf("%w: it holds %+v, and should hold %+v", ErrCut, d.got, *d.end)
	}
	if err := d.json.Decode(&Entry{}); !errors.Is(err, io.EOF) { // reads the checksum, too
		return errors.Join(fmt.Errorf("%w: data follow its end", ErrCut), err)
	}
	return nil
}

// reader reads a backup.
type reader struct {
	json   *json.Decoder
	to     Sink
	blades map[string]Blade
	got    End
	end    *End
	base   bool // it has one
}

func (d *reader) manifest() error {
	var e Entry
	if err := d.json.Decode(&e); err != nil {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	if e.Manifest == nil {
		return fmt.Errorf("%w: it does not begin with a manifest", ErrFormat)
	}
	if e.Manifest.Format != Format {
		return fmt.Errorf("%w: it has format %d, this program knows %d; restore it with the build that made it (%s)", ErrFormat, e.Manifest.Format, Format, e.Manifest.Release.Build)
	}
	d.blades = map[string]Blade{}
	for _, b := range e.Manifest.Blades {
		d.blades[b.Name] = b
	}
	d.base = e.Manifest.Base != nil
	return d.to.Manifest(*e.Manifest)
}

func (d *reader) entry() error {
	var e Entry
	if err := d.json.Decode(&e); err != nil {
		return fmt.Errorf("%w: after %d records and %d ledgers: %w", ErrCut, d.got.Records, d.got.Ledgers, err)
	}
	switch {
	case e.Record != nil:
		d.got.Records++
		var r wal.Record
		if err := r.UnmarshalBinary(e.Record); err != nil {
			return err
		}
		return d.to.Record(r)
	case e.Blade != "":
		b, ok := d.blades[e.Blade]
		if !ok {
			return fmt.Errorf("%w: ledgers of blade %q, which the manifest does not name", ErrCut, e.Blade)
		}
		if len(e.Regions) > 0 {
			d.got.Regions += len(e.Regions)
			return d.to.Regions(b, e.Regions)
		}
		d.got.Ledgers += len(e.Ledgers)
		return d.to.Ledgers(b, e.Ledgers)
	case e.End != nil:
		d.end = e.End
		return nil
	}
	return fmt.Errorf("%w: an empty line", ErrCut)
}
