package main

import (
	"archive/zip"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
)

const (
	moduleVersion = "v0.1.0-test"
	switchPath    = modulePath + "/p4switch"
)

// publish makes a directory a module proxy that has a module of this checkout, as a release would.
func publish(t *testing.T, proxy, module, version, root string) {
	t.Helper()
	dir := filepath.Join(proxy, module, "@v")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "list"), []byte(version+"\n"), 0o600))
	mod, err := os.ReadFile(filepath.Join(root, "go.mod"))
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, version+".mod"), mod, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, version+".info"), []byte(`{"Version":"`+version+`"}`), 0o600))
	f, err := os.Create(filepath.Join(dir, version+".zip"))
	must(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	must(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case path == root:
			return nil
		case d.IsDir() && (name[0] == '.' || name == "bin" || name == "out" || name == "testdata" || isModule(path)):
			return filepath.SkipDir // not of the module, or not of the command
		case !d.Type().IsRegular():
			return nil
		}
		content, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // it was another test's: the drills of docs write backups here
		}
		if err != nil {
			return err
		}
		w, err := z.Create(module + "@" + version + "/" + filepath.ToSlash(strings.TrimPrefix(path, root+"/")))
		if err == nil {
			_, err = w.Write(content)
		}
		return err
	}))
	must(t, z.Close())
}

func isModule(directory string) bool {
	_, err := os.Stat(filepath.Join(directory, "go.mod"))
	return err == nil
}

// switchVersion is the version of the switch that Bifröst requires.
func switchVersion(t *testing.T) string {
	t.Helper()
	file, err := filepath.Abs("../../go.mod")
	must(t, err)
	var mod struct {
		Require []struct{ Path, Version string }
		Replace []any
	}
	must(t, json.Unmarshal([]byte(goTool(t, nil, "mod", "edit", "-json", file)), &mod))
	if len(mod.Replace) > 0 {
		t.Errorf("go.mod replaces %v: go install refuses that", mod.Replace)
	}
	for _, r := range mod.Require {
		if r.Path == switchPath {
			return r.Version
		}
	}
	t.Fatal("go.mod does not require the switch")
	return ""
}

// TestInstall is what a user does first: go install, of a release, of Bifröst or of its switch alone. Go refuses it for a
// module with a replace. The releases come from a directory, and what they need from what has been downloaded for this checkout.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds everything once more")
	}
	downloaded := filepath.Join(goTool(t, nil, "env", "GOMODCACHE"), "cache", "download")
	bin, version := t.TempDir(), switchVersion(t)
	install := func(proxy, what string) {
		t.Helper()
		goTool(t, []string{
			"GOPROXY=file://" + proxy + ",file://" + downloaded, "GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath", "GOWORK=off",
			"GOMODCACHE=" + t.TempDir(), "GOBIN=" + bin,
		}, "install", what)
	}
	alone := t.TempDir() // has nothing of Bifröst
	publish(t, alone, switchPath, version, "../../p4switch")
	install(alone, switchPath+"/cmd/bifrost-switch@latest")
	out, err := exec.Command(filepath.Join(bin, "bifrost-switch"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), version) {
		t.Errorf("bifrost-switch --version: %v\n%s", err, out)
	}
	modules := goTool(t, nil, "version", "-m", filepath.Join(bin, "bifrost-switch"))
	if !strings.Contains(modules, "\tmod\t"+switchPath+"\t"+version) || strings.Contains(modules, "\tdep\t"+modulePath) {
		t.Errorf("bifrost-switch is made of\n%s", modules)
	}
	all := t.TempDir()
	publish(t, all, switchPath, version, "../../p4switch")
	publish(t, all, modulePath, moduleVersion, "../..")
	install(all, modulePath+"/cmd/bifrost@"+moduleVersion)
	out, err = exec.Command(filepath.Join(bin, "bifrost"), "version", "--json").Output()
	var b build
	if err != nil || json.Unmarshal(out, &b) != nil || b.Version != moduleVersion {
		t.Errorf("bifrost version --json: %v\n%s", err, out)
	}
}

// goTool runs the go command outside of any module.
func goTool(t *testing.T, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Env, cmd.Dir = append(os.Environ(), env...), t.TempDir()
	out, err := cmd.Output()
	if err != nil {
		var said *exec.ExitError
		if errors.As(err, &said) {
			t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, said.Stderr)
		}
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

// TestSudo is what a user does next: make install, and then sudo bifrost, with the real sudo and its
// own idea of PATH. /usr/local/bin is another directory meanwhile, for this test only.
func TestSudo(t *testing.T) {
	privilege.Need(t)
	privilege.Program(t, "sudo")
	checkout, err := filepath.Abs("../..")
	must(t, err)
	bin, local := t.TempDir(), t.TempDir()
	self, err := os.ReadFile("/proc/self/exe") // it stands for bifrost
	must(t, err)
	must(t, os.WriteFile(filepath.Join(bin, "bifrost"), self, 0o755))
	script := `set -e
mount --bind "$1" /usr/local/bin
make -s -C "$2" install "BIN=$3"
cd /
export PATH=/usr/bin:/bin
! command -v bifrost
sudo -n "$4=1" bifrost version
sudo -n "$4=1" bifrost rack status --rack none-of-this-name || echo "and says so"`
	cmd := exec.Command("unshare", "--mount", "sh", "-c", script, "sh", local, checkout, bin, runAsBifrost)
	cmd.Env = []string{"HOME=/root", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "bifrost") || !strings.Contains(string(out), "none-of-this-name") || !strings.Contains(string(out), "and says so") {
		t.Errorf("%v\n%s", err, out)
	}
}
