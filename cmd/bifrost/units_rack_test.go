package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/shared/privilege"
	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
)

// runAsBifrost has the test binary be bifrost.
const runAsBifrost = "BIFROST_TEST_IS_BIFROST"

func TestMain(m *testing.M) {
	if os.Getenv(runAsBifrost) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// machines are network namespaces that stand for the machines of a rack.
type machines struct {
	*testing.T
	prefix, dir, bifrost string
}

// run runs a command on a machine.
func (m *machines) run(machine string, args ...string) {
	m.Helper()
	if said, err := exec.Command("ip", append([]string{"netns", "exec", m.prefix + machine}, args...)...).CombinedOutput(); err != nil {
		m.Fatalf("on %s: %q: %v\n%s", machine, args, err, said)
	}
}

// start runs a service as systemd would: with the unit's command and capabilities and
// as an ordinary user, until the test ends. It returns when the service is ready.
func (m *machines) start(machine, name string, change func(env map[string]string)) {
	m.Helper()
	u := readUnit(m.T, filepath.Join(unitDir, "bifrost-"+name+".service"))
	env := u.variables(m.T)
	change(env)
	args := u.commands(m.T, env, "")[0]
	for i := range args {
		args[i] = strings.NewReplacer(installed, m.bifrost, "/run/bifrost-", m.dir+"/", "/var/lib/bifrost", m.dir+"/state", "/var/log/bifrost", m.dir+"/state", "/var/cache/bifrost", m.dir+"/files").Replace(args[i])
	}
	caps := "-all"
	for _, c := range strings.Fields(strings.ToLower(strings.Join(u["CapabilityBoundingSet"], " "))) {
		caps += ",+" + strings.TrimPrefix(c, "cap_")
	}
	as := []string{"netns", "exec", m.prefix + machine, "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--no-new-privs",
		"--inh-caps=" + caps, "--ambient-caps=" + caps, "--bounding-set=" + caps}
	cmd := exec.Command("ip", append(as, args...)...)
	notify := filepath.Join(m.dir, name+".ready")
	l, err := sdnotify.Listen(notify)
	must(m.T, err)
	defer l.Close()
	must(m.T, os.Chmod(notify, 0o777))
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.Env = append(os.Environ(), runAsBifrost+"=1", sdnotify.Variable+"="+notify)
	must(m.T, cmd.Start())
	ended := make(chan error, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	go func() {
		ended <- cmd.Wait()
		cancel()
	}()
	m.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		if err := <-ended; err != nil {
			m.Errorf("%s ended: %v\n%s", name, err, said.String())
		}
	})
	if err := l.Wait(ctx); err != nil {
		m.Fatalf("%s is not ready: %v", name, err)
	}
}

// A rack of the units: each service does its work with the rights that its unit gives
// it, on an interface that bifrost-iface has made ready.
func TestUnits_Rack(t *testing.T) {
	privilege.Need(t)
	dir, err := os.MkdirTemp("", "bifrost-units")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	for _, d := range []string{dir, dir + "/switch", dir + "/gatekeeper", dir + "/state"} {
		must(t, os.MkdirAll(d, 0o777))
		must(t, os.Chmod(d, 0o777))
	}
	self, err := os.ReadFile("/proc/self/exe")
	must(t, err)
	m := &machines{T: t, prefix: fmt.Sprintf("bfu%d-", os.Getpid()), dir: dir, bifrost: dir + "/bifrost"}
	must(t, os.WriteFile(m.bifrost, self, 0o755))

	blades := []string{"compute", "memory"}
	for _, machine := range append([]string{"switch"}, blades...) {
		must(t, exec.Command("ip", "netns", "add", m.prefix+machine).Run())
		t.Cleanup(func() { must(t, exec.Command("ip", "netns", "del", m.prefix+machine).Run()) })
		m.run(machine, "ip", "link", "set", "lo", "up")
	}
	ports := ""
	for i, machine := range blades {
		port := fmt.Sprint("port", i+1)
		m.run("switch", "ip", "link", "add", port, "mtu", "9000", "type", "veth", "peer", "name", "eth1", "netns", m.prefix+machine)
		m.run("switch", "ip", "link", "set", port, "up")
		ports += fmt.Sprintf(" -i %d@%s", i+1, port)
		iface := readUnit(t, unitDir+"/bifrost-iface@.service")
		for _, args := range iface.commands(t, iface.variables(t), "eth1") {
			m.run(machine, args...)
		}
	}
	m.start("switch", "switch", func(env map[string]string) { env["BIFROST_SWITCH"] = ports })
	m.start("switch", "gatekeeper", func(map[string]string) {})
	m.start("compute", "compute", func(env map[string]string) { env["BIFROST_COMPUTE"] += " --blade c1" })
	m.start("memory", "memory", func(env map[string]string) { env["BIFROST_MEMORY"] += " --blade m1" })

	status, err := bifrost(t, "blades", "--admin-addr", "unix:"+dir+"/gatekeeper/admin.sock")
	must(t, err)
	lines := strings.Split(strings.TrimSpace(status), "\n")
	if len(lines) != 3 || !slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "c1") && strings.Contains(l, "free") }) ||
		!slices.ContainsFunc(lines, func(l string) bool { return strings.HasPrefix(l, "m1") && strings.Contains(l, "64 GiB") }) {
		t.Errorf("blades:\n%s", status)
	}
}
