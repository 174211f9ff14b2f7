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

	"github.com/bifrost-rack/bifrost/internal/privilege"
)

const (
	moduleVersion = "v0.1.0-test"
)

// publish makes a directory a module proxy that has this module, as a release would.
func publish(t *testing.T, proxy string) {
	t.Helper()
	dir := filepath.Join(proxy, modulePath, "@v")
	must(t, os.MkdirAll(dir, 0o755))
	must(t, os.WriteFile(filepath.Join(dir, "list"), []byte(moduleVersion+"\n"), 0o600))
	mod, err := os.ReadFile("../../go.mod")
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, moduleVersion+".mod"), mod, 0o600))
	must(t, os.WriteFile(filepath.Join(dir, moduleVersion+".info"), []byte(`{"Version":"`+moduleVersion+`"}`), 0o600))
	f, err := os.Create(filepath.Join(dir, moduleVersion+".zip"))
	must(t, err)
	defer f.Close()
	z := zip.NewWriter(f)
	must(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case d.IsDir() && (len(name) > 2 && name[0] == '.' || name == "bin" || name == "out" || name == "testdata" || name == "bench"):
			return filepath.SkipDir // not of the module, or not of the command
		case d.IsDir() && path != "../.." && isModule(path):
			return filepath.SkipDir
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
		w, err := z.Create(modulePath + "@" + moduleVersion + "/" + filepath.ToSlash(strings.TrimPrefix(path, "../../")))
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

// TestInstall is what a user does first: go install, of a release, of Bifröst or of its switch alone. Go refuses it for a
// module with a replace. The release comes from a directory, and what it needs from what has been downloaded for this checkout.
func TestInstall(t *testing.T) {
	if testing.Short() {
		t.Skip("builds everything once more")
	}
	downloaded := filepath.Join(goTool(t, nil, "env", "GOMODCACHE"), "cache", "download")
	proxy, bin := t.TempDir(), t.TempDir()
	publish(t, proxy)
	env := []string{
		"GOPROXY=file://" + proxy + ",file://" + downloaded, "GOSUMDB=off", "GOFLAGS=-modcacherw -trimpath", "GOWORK=off",
		"GOMODCACHE=" + t.TempDir(), "GOBIN=" + bin,
	}
	goTool(t, env, "install", modulePath+"/cmd/bifrost@"+moduleVersion, modulePath+"/cmd/bifrost-switch@"+moduleVersion)
	out, err := exec.Command(filepath.Join(bin, "bifrost"), "version", "--json").Output()
	var b build
	if err != nil || json.Unmarshal(out, &b) != nil || b.Version != moduleVersion {
		t.Errorf("bifrost version --json: %v\n%s", err, out)
	}
	out, err = exec.Command(filepath.Join(bin, "bifrost-switch"), "--version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), moduleVersion) {
		t.Errorf("bifrost-switch --version: %v\n%s", err, out)
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
