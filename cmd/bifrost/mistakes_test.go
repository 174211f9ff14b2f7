package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/gatekeeper"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
)

// A subcommand that does not exist is an error, and so are arguments that are missing or
// too many; each says what to write.
func TestMistakes(t *testing.T) {
	for command, want := range map[string]string{
		"statsu":                 `unknown command "statsu" for "bifrost"`,
		"rack stauts":            `unknown command "stauts" for "bifrost rack" (did you mean status?)`,
		"rack nothing":           `unknown command "nothing" for "bifrost rack" (there are down, exec, fail`,
		"drain":                  "usage: bifrost drain BLADE",
		"mirror m1":              "for example: bifrost mirror m1 m2 --wait",
		"status now":             "usage: bifrost status",
		"return":                 "bifrost return takes BLADE",
		"cancel a b":             `and was given "a" "b"`,
		"drain s1 --reason x":    "usage: bifrost drain BLADE",
		"events --kind blade.dn": "--kind blade.dn: there are no such events",
		"events --kind call.refuse --admin-addr unix:/none": "(did you mean call.refused?)",
	} {
		_, err := bifrost(t, strings.Fields(command)...)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("bifrost %s: %v, want %q", command, err, want)
		}
	}
	if out, err := bifrost(t, "rack"); err != nil || !strings.Contains(out, "Available Commands:") {
		t.Errorf("bifrost rack: %v, %q", err, out)
	}
}

// Every command that only groups others refuses what is none of them.
func TestMistakes_Groups(t *testing.T) {
	root := newRoot()
	each(root, func(cmd *cobra.Command) {
		if !cmd.HasAvailableSubCommands() || cmd == root {
			return
		}
		path := append(strings.Fields(cmd.CommandPath())[1:], "no-such-command")
		if _, err := bifrost(t, path...); err == nil {
			t.Errorf("bifrost %s went well", strings.Join(path, " "))
		}
	})
}

// What the operating system refuses comes with what to do about it.
func TestRemedies(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, inUse := net.Listen("tcp", l.Addr().String())
	_, missing := exec.LookPath("no-such-program-" + t.Name()[:4])
	full := &os.PathError{Op: "write", Path: "/var/lib/bifrost/log", Err: unix.ENOSPC}
	denied := &os.PathError{Op: "open", Path: "/run/bifrost", Err: unix.EACCES}
	for _, tc := range []struct {
		err  error
		want string
	}{
		{fmt.Errorf("admin API: %w", inUse), "somebody else listens there"}, {missing, "put it on PATH"},
		{full, "the disk is full: make room"}, {denied, "try it with sudo"},
	} {
		if got := withRemedy(tc.err); got == nil || !errors.Is(got, tc.err) || !strings.Contains(got.Error(), tc.want) {
			t.Errorf("%v: %v, want %q", tc.err, got, tc.want)
		}
	}
	plain := errors.New("something else")
	if got := withRemedy(plain); !errors.Is(got, plain) || got.Error() != plain.Error() {
		t.Errorf("%v became %v", plain, got)
	}
	if withRemedy(nil) != nil {
		t.Error("nothing became an error")
	}
}

// Methods are checked where the service is known.
func TestCheckMethod(t *testing.T) {
	services := []api.Service{{Name: "Arrays", Methods: []api.Method{{Name: "add"}, {Name: "echo"}}}}
	for _, ok := range [][2]string{{"Arrays", "add"}, {"Arrays", ""}, {"Later", "any"}} {
		if err := checkMethod(services, ok[0], ok[1]); err != nil {
			t.Error(err)
		}
	}
	if err := checkMethod(services, "Arrays", "ad"); err == nil || !strings.Contains(err.Error(), "did you mean add?") {
		t.Error(err)
	}
}

// The kinds that the command line knows are the Gatekeeper's.
func TestKinds(t *testing.T) {
	for _, kind := range []gatekeeper.EventKind{gatekeeper.CallRefused, gatekeeper.MachineMirrored, gatekeeper.AccessDenied, gatekeeper.SwitchConnected} {
		if err := checkKinds([]string{string(kind)}, gatekeeper.EventKinds()); err != nil {
			t.Error(err)
		}
	}
}
