package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// goPrints runs the go command in the repository and returns what it prints.
func goPrints(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Stderr = "..", os.Stderr
	out, err := cmd.Output()
	must(t, err)
	return out
}

// TestDependencies: ARCHITECTURE.md names every module that a go.mod requires directly, and
// a program that imports rpc and dsm gets no other module than the ones that it says.
func TestDependencies(t *testing.T) {
	page, err := os.ReadFile("../ARCHITECTURE.md")
	must(t, err)
	_, section, ok := strings.Cut(string(page), "\n## Dependencies\n")
	section, _, _ = strings.Cut(section, "\n## ")
	if !ok {
		t.Fatal("ARCHITECTURE.md has no section Dependencies")
	}
	for _, file := range []string{"go.mod", "p4switch/go.mod", "bench/go.mod", "checks/go.mod", "internal/crash/go.mod"} {
		var mod struct {
			Require []struct {
				Path     string
				Indirect bool
			}
		}
		must(t, json.Unmarshal(goPrints(t, "mod", "edit", "-json", file), &mod))
		for _, r := range mod.Require {
			name := path.Base(r.Path)
			if strings.HasPrefix(name, "v") && len(name) < 4 { // a major version
				name = path.Base(path.Dir(r.Path))
			}
			if !r.Indirect && !strings.Contains(section, name) {
				t.Errorf("ARCHITECTURE.md does not say why %s requires %s", file, r.Path)
			}
		}
	}
	want := []string{"github.com/apache/thrift", "github.com/vishvananda/netlink", "github.com/vishvananda/netns", "golang.org/x/sys"}
	list := goPrints(t, "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "./rpc", "./rpc/stub", "./dsm")
	got := strings.Fields(string(list))
	slices.Sort(got)
	if got = slices.Compact(got); !slices.Equal(got, want) {
		t.Errorf("rpc and dsm bring %v, want %v", got, want)
	}
}

// TestModules: each module has what it needs without the others' go.mod, the switch has it from nobody of Bifröst, and the
// library requires nothing that only benchmarks, a browser or a checker need.
func TestModules(t *testing.T) {
	t.Setenv("GOWORK", "off")
	for _, dir := range []string{"p4switch", "bench", "checks", "internal/crash"} {
		goPrints(t, "-C", dir, "list", "-test", "-deps", "./...")
	}
	alone := string(goPrints(t, "mod", "edit", "-json", "p4switch/go.mod"))
	if n := strings.Count(alone, "bifrost-rack"); n != 1 || strings.Contains(alone, `"Replace": [`) {
		t.Errorf("the switch's go.mod names modules of Bifröst %d times, or replaces some:\n%s", n, alone)
	}
	all := string(goPrints(t, "mod", "edit", "-json"))
	for _, apart := range []string{"gonum.org", "chromedp", "porcupine", "jsonschema"} {
		if strings.Contains(all, apart) {
			t.Errorf("go.mod requires %s, which no program that uses Bifröst needs", apart)
		}
	}
	// Bifröst's requires the switch's at a version that may not be published yet: the directory stands for it.
	file := filepath.Join(t.TempDir(), "go.mod")
	for _, name := range []string{"go.mod", "go.sum"} {
		b, err := os.ReadFile("../" + name)
		must(t, err)
		must(t, os.WriteFile(filepath.Join(filepath.Dir(file), name), b, 0o600))
	}
	goPrints(t, "mod", "edit", "-replace", module+"p4switch=./p4switch", file)
	goPrints(t, "list", "-modfile", file, "-test", "-deps", "./...")
}
