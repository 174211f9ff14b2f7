package gen

import (
	"bytes"
	"flag"
	"fmt"
	"go/ast"
	"go/importer"
	goparser "go/parser"
	gotoken "go/token"
	"go/types"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

// corpusDir: with -corpus, the IDL of another directory is tried by hand.
var corpusDir = flag.String("corpus", "testdata/corpus", "IDL files for TestCorpus")

// TestCorpus: what Apache's compiler takes, this takes, and the two write code that
// compiles together: once with the files' own marks, once with every mark that is legal.
func TestCorpus(t *testing.T) {
	privilege.Program(t, "thrift")
	files, err := filepath.Glob(filepath.Join(*corpusDir, "*.thrift"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no IDL in %s: %v", *corpusDir, err)
	}
	library := exports(t)
	for _, file := range files {
		for _, all := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/all=%t", strings.TrimSuffix(filepath.Base(file), ".thrift"), all), func(t *testing.T) {
				compileTogether(t, library, file, all)
			})
		}
	}
}

// corpusPrefix is in front of the import paths of generated packages.
const corpusPrefix = "corpus.test/"

// compileTogether generates code for a file and what it includes with both compilers,
// and checks the types of each package.
func compileTogether(t *testing.T, library types.Importer, file string, all bool) {
	out := t.TempDir()
	gen := "go:skip_remote,package_prefix=" + corpusPrefix
	if msg, err := exec.Command("thrift", "-nowarn", "-r", "-I", *corpusDir, "-out", out, "--gen", gen, file).CombinedOutput(); err != nil {
		t.Fatalf("Apache's compiler: %v\n%s", err, msg)
	}
	beside := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(out, name)) }
	l := loader{read: os.ReadFile, dirs: []string{*corpusDir}, units: map[string]*unit{}}
	if _, err := l.load(path.Clean(file)); err != nil {
		t.Fatal(err)
	}
	c := &typeChecker{t: t, library: library, files: map[string][]string{}, done: map[string]*types.Package{}, set: gotoken.NewFileSet()}
	stubs := 0
	for _, u := range l.units {
		if all {
			markAll(u)
		}
	}
	for _, u := range l.units {
		files, err := generateUnit(u, Options{PackagePrefix: corpusPrefix, Beside: beside}, wireNames)
		if err != nil && !strings.Contains(err.Error(), "nothing to generate") {
			t.Error(err)
			continue
		}
		for _, f := range files {
			stubs++
			if err := os.WriteFile(filepath.Join(out, f.Name), f.Content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	err := filepath.WalkDir(out, func(name string, d fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(name, ".go") {
			dir, _ := filepath.Rel(out, filepath.Dir(name))
			c.files[corpusPrefix+filepath.ToSlash(dir)] = append(c.files[corpusPrefix+filepath.ToSlash(dir)], name)
		}
		return err
	})
	if err != nil || len(c.files) == 0 {
		t.Fatalf("%d packages, %v", len(c.files), err)
	}
	if stubs == 0 && *corpusDir == "testdata/corpus" && all && !strings.HasSuffix(file, "result.thrift") {
		t.Error("no stubs")
	}
	for p := range c.files {
		_, _ = c.Import(p)
	}
}

// markAll gives a unit's methods and arguments every reference that they may have.
func markAll(u *unit) {
	ref := annotation{markRef, bare}
	for _, s := range u.doc.Services {
		for _, f := range s.Functions {
			c := checker{scope: newScope(u, naming{}, "")}
			legal := func(t *idlType) bool { return c.passable(u, 0, "", t) }
			if f.Type != nil && !f.Oneway && len(f.Annotations.Get(markRef)) == 0 && legal(f.Type) {
				f.Annotations = append(f.Annotations, ref)
			}
			for _, a := range f.Arguments {
				if len(a.Annotations.Get(markRef)) == 0 && legal(a.Type) {
					a.Annotations = append(a.Annotations, ref)
				}
			}
		}
	}
}

// exports imports the packages that stubs and Thrift's code use, as the compiler has
// built them.
func exports(t *testing.T) types.Importer {
	cmd := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}}={{.Export}}",
		"../stub", "../form", "../idl/bifrost", "iter", "log/slog", "database/sql/driver", "regexp", "strings", "bytes", "errors", "fmt", "time")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	list, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	files := map[string]string{}
	for line := range strings.Lines(string(list)) {
		p, file, _ := strings.Cut(strings.TrimSpace(line), "=")
		files[p] = file
	}
	return importer.ForCompiler(gotoken.NewFileSet(), "gc", func(p string) (io.ReadCloser, error) {
		if files[p] == "" {
			return nil, fmt.Errorf("no export data of %s", p)
		}
		return os.Open(files[p])
	})
}

// typeChecker imports generated packages by checking them.
type typeChecker struct {
	t       *testing.T
	library types.Importer
	set     *gotoken.FileSet
	files   map[string][]string // by import path
	done    map[string]*types.Package
}

func (c *typeChecker) Import(p string) (*types.Package, error) {
	if c.files[p] == nil {
		return c.library.Import(p)
	}
	if done := c.done[p]; done != nil {
		return done, nil
	}
	var parsed []*ast.File
	for _, name := range c.files[p] {
		f, err := goparser.ParseFile(c.set, name, nil, goparser.SkipObjectResolution)
		if err != nil {
			c.t.Fatal(err)
		}
		parsed = append(parsed, f)
	}
	config := types.Config{Importer: c, Error: func(err error) {
		if !strings.Contains(err.Error(), "declared and not used") || strings.Contains(err.Error(), "-bifrost.go") {
			c.t.Error(err)
		}
	}}
	pkg, _ := config.Check(p, c.set, parsed, nil)
	c.done[p] = pkg
	return pkg, nil
}
