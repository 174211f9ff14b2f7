package gen

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

var update = flag.Bool("update", false, "rewrite testdata")

// TestErrors: each case in testdata/errors.txt is a file, "== name" in front, and
// behind it the errors, each with a line and what to do. Cases see each other as
// includes.
func TestErrors(t *testing.T) {
	const golden = "testdata/errors.txt"
	b, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	files, order := cases(string(b))
	read := func(path string) ([]byte, error) {
		text, ok := files[path]
		if !ok {
			return nil, &fs.PathError{Op: "open", Path: path, Err: fs.ErrNotExist}
		}
		return []byte(text), nil
	}
	var out strings.Builder
	for _, name := range order {
		_, err := Generate(name, read, Options{})
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		out.WriteString("== " + name + "\n" + files[name])
		for line := range strings.Lines(err.Error()) {
			out.WriteString("-- " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if out.String() != string(b) && !*update {
		t.Errorf("other errors than in %s (-update rewrites it):\n%s", golden, out.String())
	}
}

// cases takes the golden file apart.
func cases(text string) (files map[string]string, order []string) {
	files = map[string]string{}
	for line := range strings.Lines(text) {
		if name, ok := strings.CutPrefix(line, "== "); ok {
			order = append(order, strings.TrimSpace(name))
			continue
		}
		if !strings.HasPrefix(line, "-- ") {
			files[order[len(order)-1]] += line
		}
	}
	return files, order
}

// TestCollision: no two names are known to have one short form, so the test cuts
// them off instead.
func TestCollision(t *testing.T) {
	cut := func(name string) (rpcpacket.Method, error) {
		if !strings.HasSuffix(name, ".ref") {
			name = name[:7]
		}
		return rpcpacket.MethodOf(name)
	}
	read := func(string) ([]byte, error) {
		return []byte("service S {\n  void developFilm(1: binary b (bifrost.ref))\n  void developPrint()\n}\n"), nil
	}
	_, err := generate("s.thrift", read, Options{}, cut)
	const want = "s.thrift:3: methods developFilm and developPrint of service S are both develop in the 16 bytes of a packet's header; rename one of them"
	if err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
	var e *Error
	if !errors.As(err, &e) || e.Line != 3 || e.Remedy == "" {
		t.Errorf("got %#v", err)
	}
}

// TestDeterministic: the same files, in any run, make the same output.
func TestDeterministic(t *testing.T) {
	dir := filepath.Join("internal", "lab")
	var first string
	for range 5 {
		files, err := Generate(filepath.Join(dir, "lab.thrift"), os.ReadFile, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := files[0].Name + string(files[0].Content); first == "" {
			first = got
		} else if got != first {
			t.Fatal("two outputs of one input")
		}
	}
}

// each are the errors that one joins.
func each(err error) []error {
	var joined interface{ Unwrap() []error }
	switch {
	case err == nil:
		return nil
	case errors.As(err, &joined):
		return joined.Unwrap()
	}
	return []error{err}
}

// TestComments: what may not be in source stays out of the stubs, whatever the IDL's comments and its file's name have.
func TestComments(t *testing.T) {
	const strange = "a\x00b\x1bc\rd\ufeffe\xfff\u0085g"
	file := strings.ReplaceAll(strange, "\xff", "") + "\n.thrift"
	read := func(string) ([]byte, error) {
		return []byte("namespace go s\n/** " + strange + " */\nservice S {\n // " + strange + "\n binary a(1: binary b (bifrost.ref)) // " + strange + "\n}"), nil
	}
	for _, generate := range []func(string, ReadFunc, Options) ([]File, error){Generate, Python} {
		files, err := generate(file, read, Options{})
		if err != nil {
			t.Error(err)
			continue
		}
		if strings.ContainsAny(string(files[0].Content), "\x00\x1b\r\ufeff\u0085") || !utf8.Valid(files[0].Content) {
			t.Errorf("%q", files[0].Content)
		}
	}
}

// FuzzGenerate: what is generated is Go (else the error is no Error), and each mistake has a place.
func FuzzGenerate(f *testing.F) {
	for _, name := range []string{"internal/lab/lab.thrift", "internal/lab/shared.thrift", "testdata/errors.txt"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		files, order := map[string]string{"x": string(b)}, []string{"x"}
		if strings.HasSuffix(name, ".txt") {
			files, order = cases(string(b))
		}
		for _, n := range order {
			f.Add(files[n])
		}
	}
	f.Add("service S {\n void a(1: binary b (bifrost.ref =(bifrost.ref, bifrost.ref)")
	f.Fuzz(func(t *testing.T, text string) {
		read := func(path string) ([]byte, error) {
			if path == "a.thrift" || path == "b.thrift" {
				return []byte(text), nil
			}
			return nil, fs.ErrNotExist
		}
		for _, generate := range []func(string, ReadFunc, Options) ([]File, error){Generate, Python} {
			files, err := generate("a.thrift", read, Options{})
			if (err == nil) != (len(files) == 1) {
				t.Errorf("%d files, %v", len(files), err)
			}
			for _, e := range each(err) {
				var mistake *Error
				if !errors.As(e, &mistake) || mistake.File == "" || mistake.Line > strings.Count(text, "\n")+1 {
					t.Errorf("it is not said where: %v", e)
				}
			}
		}
	})
}
