package topology

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/rack"
	"github.com/bifrost-rack/bifrost/rack/config"
)

func TestParseMininet(t *testing.T) {
	const good = `{"switch":"ovs","mtu":9000,"protected":false,"blades":[{"name":"c1","pid":7,"address":"fd00:b1f0:0:1::1"}]}`
	m, err := parseMininet("x", []byte(good))
	if err != nil {
		t.Fatal(err)
	}
	if a, err := m.Address("c1"); err != nil || a.String() != "fd00:b1f0:0:1::1" {
		t.Errorf("%s, %v", a, err)
	}
	if d := m.Describe(); d.Kind != "mininet" || d.Switch != "ovs" || d.MTU != 9000 || d.Protected || len(d.Blades) != 1 {
		t.Errorf("%+v", d)
	}
	if _, err := m.Address("s1"); err == nil || !strings.Contains(err.Error(), "no blade s1") {
		t.Error(err)
	}
	if err := m.Start("s1", exec.Command("true")); err == nil || !strings.Contains(err.Error(), "no blade s1") {
		t.Error(err)
	}
	for _, bad := range []string{
		"", "[]", `{"blades":[]}`, strings.Replace(good, `"pid":7`, `"pid":0`, 1), strings.Replace(good, "fd00:b1f0:0:1::1", "10.0.0.1", 1),
		strings.Replace(good, `"c1"`, `""`, 1), strings.Replace(good, "fd00:b1f0:0:1::1", "here", 1),
	} {
		if _, err := parseMininet("x.json", []byte(bad)); err == nil || !strings.Contains(err.Error(), "topology x.json") {
			t.Errorf("%s: %v", bad, err)
		}
	}
	if _, err := ReadMininet("/no/such/file"); err == nil {
		t.Error("a file that is not there was read")
	}
}

// FuzzParseMininet: whatever is written there, it is refused or it is whole.
func FuzzParseMininet(f *testing.F) {
	f.Add([]byte(`{"blades":[{"name":"c1","pid":7,"address":"fd00::1"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := parseMininet("x", b)
		if err != nil {
			return
		}
		for _, blade := range m.Blades {
			if a, err := m.Address(blade.Name); err != nil || !a.Is6() {
				t.Errorf("%+v: %s, %v", blade, a, err)
			}
		}
	})
}

// A name is one run's at a time, and free again afterwards.
func TestClaim(t *testing.T) {
	h := &rack.Host{Dir: filepath.Join(t.TempDir(), "racks")}
	quiet := func(string, ...any) {}
	release, err := Claim(t.Context(), h, "one", quiet)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Claim(t.Context(), h, "one", quiet); err == nil || !strings.Contains(err.Error(), "another run is on the rack one") {
		t.Errorf("twice: %v", err)
	}
	other, err := Claim(t.Context(), h, "two", quiet)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(release(), other()); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(h.Dir); !os.IsNotExist(err) {
		t.Errorf("the directory stays: %v", err)
	}
}

// needRack skips where no namespaces can be made.
func needRack(t *testing.T) (*rack.Host, config.Config) {
	t.Helper()
	privilege.Need(t)
	bin, err := filepath.Abs("../../bin/bifrost")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(bin); err != nil {
		t.Skip("needs bin/bifrost: make build")
	}
	c := config.Thesis()
	c.Name, c.Blades, c.Programs = fmt.Sprintf("bt%d", os.Getpid()), c.Blades[:1], nil
	return &rack.Host{Dir: filepath.Join(t.TempDir(), "racks"), Bifrost: bin}, c
}

// What a killed run has left is cleared away; a rack that is no run's is refused by
// name and left alone.
func TestStale(t *testing.T) {
	h, c := needRack(t)
	if err := h.Up(t.Context(), c); err != nil { // and nobody ends it: a run that was killed
		t.Fatal(err)
	}
	var told []string
	n, err := Up(t.Context(), h, c, func(format string, a ...any) { told = append(told, fmt.Sprintf(format, a...)) })
	if err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 || !strings.Contains(told[0], "removed what a killed run had left of the rack "+c.Name) {
		t.Errorf("progress: %q", told)
	}
	cmd := exec.Command("true")
	if err := errors.Join(n.Start("c1", cmd), cmd.Wait()); err != nil {
		t.Errorf("a command on a blade: %v", err)
	}
	if _, err := n.Address("x9"); err == nil {
		t.Error("a blade that is not there has an address")
	}
	if err := n.Close(); err != nil {
		t.Fatal(err)
	}
	if entries, _ := os.ReadDir(h.Dir); len(entries) > 0 {
		t.Errorf("left behind: %v", entries)
	}
	theirs := &rack.Host{Dir: filepath.Join(t.TempDir(), "theirs"), Bifrost: h.Bifrost}
	if err := theirs.Up(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := theirs.Down(context.Background(), c.Name); err != nil {
			t.Errorf("the rack that is no run's was harmed: %v", err)
		}
	}()
	if _, err := Up(t.Context(), h, c, func(string, ...any) {}); err == nil || !strings.Contains(err.Error(), c.Name) {
		t.Errorf("somebody's rack: %v", err)
	}
}
