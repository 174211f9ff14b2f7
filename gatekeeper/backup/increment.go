package backup

import (
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// An increment is a backup that has only what another one, its base, has not. It is gzip of JSON, too: the Manifest, which names the base, then
// pieces of the parts of the backup, part after part, then the sums of the parts. A piece has its bytes, or says where the base's part has them.

// Base is the file that an increment goes with.
type Base struct {
	Name string `json:"name"` // without its directory: it lies beside the increment
	Sum  string `json:"sum"`  // SHA-256 of the file
}

// piece is a line of an increment behind the Manifest; the last one has Sums only.
type piece struct {
	Part string            `json:"part,omitempty"` // the blade whose regions it is of; "" for records and ledgers
	Data []byte            `json:"data,omitempty"`
	From int64             `json:"from,omitempty"` // Size bytes of the base's part, from there on
	Size int64             `json:"size,omitempty"`
	Sums map[string]string `json:"sums,omitempty"` // SHA-256 of every part
}

// maxBases bounds how many increments may go with each other.
const maxBases = 1000

// maxData is how many bytes of its own a piece has at most.
const maxData = 1 << 20

// ErrBase means that an increment cannot be read because the file that it goes with is missing, or is another one.
var ErrBase = errors.New("the backup goes with another one")

// ReadFile hands a backup in a file to a sink, as Read does. Of an increment it reads the bases, too, which must lie in the same directory. It takes
// room in $TMPDIR for what an increment stands for, and once more for its base.
func ReadFile(name string, to Sink) error {
	f, err := os.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	m, err := peek(f)
	if err != nil {
		return err
	}
	if m.Base == nil {
		return Read(f, to)
	}
	p, err := load(name, 0)
	if err != nil {
		return err
	}
	defer p.close()
	return p.feed(to)
}

// peek reads the manifest, and goes back to the beginning.
func peek(f *os.File) (m Manifest, err error) {
	z, err := gzip.NewReader(f)
	if err != nil {
		return m, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	d := reader{json: json.NewDecoder(z), to: ManifestTo(&m)}
	if err := d.manifest(); err != nil {
		return m, err
	}
	_, err = f.Seek(0, io.SeekStart)
	return m, err
}

// Increment reads a backup that is whole, and writes to w what the backup in the file base has not. It returns the manifest.
func Increment(whole io.Reader, base string, w io.Writer) (Manifest, error) {
	p, err := spool(whole)
	if err != nil {
		return Manifest{}, err
	}
	defer p.close()
	before, err := load(base, 0)
	if err != nil {
		return Manifest{}, fmt.Errorf("%s: %w", base, err)
	}
	defer before.close()
	if before.manifest.Rack != p.manifest.Rack {
		return Manifest{}, fmt.Errorf("%w: %s is of another rack", ErrBase, base)
	}
	sum, err := sumOfFile(base)
	if err != nil {
		return Manifest{}, err
	}
	p.manifest.Base = &Base{Name: filepath.Base(base), Sum: sum}
	z := gzip.NewWriter(w)
	out := json.NewEncoder(z)
	if err := out.Encode(Entry{Manifest: &p.manifest}); err != nil {
		return Manifest{}, err
	}
	sums := map[string]string{}
	for _, name := range p.names() {
		if sums[name], err = p.differences(name, before, out); err != nil {
			return Manifest{}, err
		}
	}
	return p.manifest, errors.Join(out.Encode(piece{Sums: sums}), z.Close())
}

// differences writes the pieces of a part, and returns its sum.
func (p *parts) differences(name string, before *parts, out *json.Encoder) (string, error) {
	known := map[[sha256.Size]byte]int64{}
	there := int64(0)
	if err := chunks(before.reader(name), func(b []byte) error {
		known[sha256.Sum256(b)] = there
		there += int64(len(b))
		return nil
	}); err != nil {
		return "", err
	}
	var next piece
	flush := func() error {
		if len(next.Data) == 0 && next.Size == 0 {
			return nil
		}
		next.Part = name
		err := out.Encode(next)
		next = piece{}
		return err
	}
	sum := sha256.New()
	err := chunks(p.reader(name), func(b []byte) error {
		sum.Write(b)
		n := int64(len(b))
		at, same := known[sha256.Sum256(b)]
		follows := same && next.Size > 0 && next.From+next.Size == at || !same && next.Size == 0 && len(next.Data)+len(b) <= maxData
		if !follows {
			if err := flush(); err != nil {
				return err
			}
		}
		if !same {
			next.Data = append(next.Data, b...)
			return nil
		}
		if next.Size == 0 {
			next.From = at
		}
		next.Size += n
		return nil
	})
	return hex.EncodeToString(sum.Sum(nil)), errors.Join(err, flush())
}

// load takes the backup in a file apart: depth is how many increments go with it.
func load(name string, depth int) (*parts, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := peek(f)
	if err != nil {
		return nil, err
	}
	if m.Base == nil {
		return spool(f)
	}
	if m.Base.Name != filepath.Base(m.Base.Name) || depth > maxBases {
		return nil, fmt.Errorf("%w: it names a base %q", ErrCut, m.Base.Name)
	}
	base := filepath.Join(filepath.Dir(name), m.Base.Name)
	sum, err := sumOfFile(base)
	if err != nil {
		return nil, fmt.Errorf("%w, %s, which must lie beside it: %w", ErrBase, m.Base.Name, err)
	}
	if sum != m.Base.Sum {
		return nil, fmt.Errorf("%w, %s: the file of this name is not the one that it was made from", ErrBase, m.Base.Name)
	}
	before, err := load(base, depth+1)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", base, err)
	}
	defer before.close()
	return assemble(f, m, before)
}

// assemble puts an increment and its base together.
func assemble(f io.Reader, m Manifest, before *parts) (_ *parts, err error) {
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFormat, err)
	}
	p := newParts(m)
	defer func() {
		if err != nil {
			p.close()
		}
	}()
	d := json.NewDecoder(z)
	if err := d.Decode(&Entry{}); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrCut, err)
	}
	for {
		var x piece
		if err := d.Decode(&x); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCut, err)
		}
		if x.Sums != nil {
			if err := d.Decode(&piece{}); !errors.Is(err, io.EOF) { // reads the checksum, too
				return nil, errors.Join(fmt.Errorf("%w: data follow its end", ErrCut), err)
			}
			return p, p.check(x.Sums)
		}
		to, err := p.file(x.Part)
		if err != nil {
			return nil, err
		}
		if len(x.Data) > 0 {
			_, err = to.Write(x.Data)
		} else if from := before.files[x.Part]; from == nil || x.From < 0 || x.Size <= 0 {
			err = fmt.Errorf("%w: it names bytes that its base does not have", ErrCut)
		} else if n, short := io.Copy(to, io.NewSectionReader(from, x.From, x.Size)); short != nil || n != x.Size {
			err = errors.Join(fmt.Errorf("%w: it names bytes that its base does not have", ErrCut), short)
		}
		if err != nil {
			return nil, err
		}
	}
}

// sumOfFile is the SHA-256 of a file.
func sumOfFile(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return sumOf(f)
}

// sumOf is the SHA-256 of what is read.
func sumOf(r io.Reader) (string, error) {
	sum := sha256.New()
	_, err := io.Copy(sum, r)
	return hex.EncodeToString(sum.Sum(nil)), err
}
