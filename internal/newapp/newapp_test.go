package newapp

import (
	"bytes"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

var update = flag.Bool("update", false, "write the code of the template that follows from its IDL")

func TestWrite(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "deep", "shop")
	written, err := Write(dir, App{Name: "shop", Module: "zoo.org/shop", Version: "v1.2.3", Go: "1.26.0"})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"go.mod", ".gitignore", "Makefile", "app.yaml", "greeter.thrift", "main.go", "service.go", "service_test.go", "gen-go/greeter/greeter.go"} {
		if !slices.Contains(written, name) {
			t.Errorf("%s is not among %v", name, written)
		}
	}
	for _, name := range written {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || len(b) == 0 {
			t.Error(name, err)
		}
		if bytes.Contains(b, []byte("{{")) || bytes.Contains(b, []byte("<no value>")) {
			t.Errorf("%s is not filled in", name)
		}
	}
	want := "module zoo.org/shop\n\ngo 1.26.0\n\nrequire github.com/bifrost-rack/bifrost v1.2.3\n"
	if b, _ := os.ReadFile(filepath.Join(dir, "go.mod")); string(b) != want {
		t.Errorf("go.mod is %q", b)
	}
	ours, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	if out, err := exec.Command("gofmt", append([]string{"-l"}, ours...)...).CombinedOutput(); err != nil || len(out) > 0 || len(ours) < 3 {
		t.Errorf("gofmt of %v: %v, %s", ours, err, out)
	}
	if again, err := Write(dir, App{Name: "shop", Version: "v1.2.3", Go: "1.26.0"}); err == nil || again != nil || !strings.Contains(err.Error(), "name a new one") {
		t.Error(again, err)
	}
}

func TestWrite_Refused(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, a := range []App{{Name: ""}, {Name: "1st"}, {Name: "a b"}, {Name: "../up"}, {Name: ".hidden"}, {Name: "-f"}, {Name: strings.Repeat("a", 64)}, {Name: "ünder"},
		{Name: "a", Module: "fmt"}, {Name: "a", Module: "example.com/../a"}, {Name: "a", Module: "example.com/a b"}, {Name: "a", Module: "example.com/"}} {
		dir := filepath.Join(t.TempDir(), "new")
		if written, err := Write(dir, a); err == nil || written != nil {
			t.Errorf("%+v: %v", a, written)
		}
		if _, err := os.Lstat(dir); !os.IsNotExist(err) {
			t.Errorf("%+v has left a directory", a)
		}
	}
	if _, err := Write(file, App{Name: "a"}); err == nil {
		t.Error("a file was taken for a directory")
	}
	if _, err := Write(t.TempDir(), App{Name: "a", Version: "v1.2.3", Go: "1.26.0"}); err != nil {
		t.Error("an empty directory:", err)
	}
}

// What follows from the template's IDL is what bifrost gen and the Thrift compiler make of it now.
func TestGenerated(t *testing.T) {
	idl, err := files.ReadFile(root + "/greeter.thrift" + suffix)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "greeter.thrift")
	if err := os.WriteFile(path, idl, 0o600); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "gen-go")
	made, err := gen.Generate("greeter.thrift", func(string) ([]byte, error) { return idl, nil }, gen.Options{
		Beside: func(name string) ([]byte, error) { return files.ReadFile(root + "/gen-go/" + name + suffix) },
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range made {
		same(t, f.Name, f.Content)
	}
	thrift := privilege.Program(t, "thrift")
	if err := os.Mkdir(out, 0o700); err != nil {
		t.Fatal(err)
	}
	if b, err := exec.Command(thrift, "-nowarn", "-out", out, "--gen", "go:skip_remote", path).CombinedOutput(); err != nil {
		t.Fatalf("thrift: %v: %s", err, b)
	}
	plain, _ := filepath.Glob(filepath.Join(out, "greeter", "*.go"))
	if len(plain) != 3 {
		t.Errorf("thrift has made %v", plain)
	}
	for _, name := range plain {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		same(t, "greeter/"+filepath.Base(name), b)
	}
}

// same compares a file of the template with what it is to be, or writes it.
func same(t *testing.T, name string, want []byte) {
	t.Helper()
	path := filepath.Join(root, "gen-go", name+suffix)
	if *update {
		if err := os.WriteFile(path, want, 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not what the IDL says (%v): go test ./internal/newapp -update", path, err)
	}
}
