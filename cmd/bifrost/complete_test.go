package main

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Names are completed from what is there.
func TestComplete(t *testing.T) {
	defer func(was time.Duration) { completionTime = was }(completionTime)
	completionTime = time.Minute
	address, pointer := watched(t)
	ask := func(args ...string) string {
		got, err := bifrost(t, append([]string{cobra.ShellCompRequestCmd}, args...)...)
		must(t, err)
		return got
	}
	for command, want := range map[string]string{
		"drain":             `(?s)^c1\tcompute, in use\n.*m3\tmemory, .*\n:4\n$`,
		"return c1":         `^:0\n$`,
		"undeploy":          `^:4\n$`,
		"rollback":          `^:4\n$`,
		"trace":             `^([0-9a-f]{32}\t\S*\n)+:4\n$`,
		"policy":            `^Ping\nPing\.ping\n:4\n$`,
		"policy Ping":       `^recover\nfate-share\ntainted\nnone\ndefault\n:4\n$`,
		"methods --service": `^Ping\n:4\n$`,
		"trace --service":   `^Ping\n:4\n$`,
		"trace --method":    `^ping\n:4\n$`,
		"trace --caller":    `^fd00:b1f0:0:2::1\tc1/client\n:4\n$`,
		"trace --code":      `(?s)^ok\n.*unavailable\n.*:4\n$`,
		"events --kind":     `(?s)program.failed\n.*:4\n$`,
		"events --blade":    `(?s)^c1\tcompute, in use\n`,
		"cancel":            `^:4\n$`,
		"who":               "^" + regexp.QuoteMeta(pointer) + `\t4 KiB on m\d\n:4\n$`,
		"regions --node":    `^fd00:b1f0:0:2::1\tc1/client\n:4\n$`,
		"regions --pointer": "^" + regexp.QuoteMeta(pointer) + `\t`,
		"rules --table":     `(?s)^identity\n.*control_rule\n.*next_hop\n.*:4\n$`,
	} {
		words := strings.Fields(command)
		if got := ask(append(append([]string{words[0], "--admin-addr", address}, words[1:]...), "")...); !regexp.MustCompile(want).MatchString(got) {
			t.Errorf("bifrost %s: %swant %s", command, got, want)
		}
	}
	for command, want := range map[string]string{
		"switch --log-level": "trace\ndebug\ninfo\nwarn\nerror\noff\n:4\n",
		"memory --log-level": "debug\ninfo\nwarn\nerror\noff\n:4\n",
		"rack fail --how":    "kill\npause\nlink\ndaemon\n:4\n",
		"rack up --switch":   "bifrost\nbmv2\n:4\n",
		"completion":         "bash\nzsh\nfish\n:4\n",
		"drain --cause":      ":4\n",
		"token add":          ":4\n",
		"backup --since":     ":0\n",
		"deploy":             ":0\n",
	} {
		if got := ask(append(strings.Fields(command), "")...); got != want {
			t.Errorf("bifrost %s: %q, want %q", command, got, want)
		}
	}
	tokens := filepath.Join(t.TempDir(), "admin.tokens")
	if _, err := bifrost(t, "token", "add", "ci", "--role", "read", "--admin-tokens", tokens); err != nil {
		t.Error(err)
	}
	for want, args := range map[string][]string{
		"ci\tread\n:4\n": {"token", "revoke", "--admin-tokens", tokens}, "lo\n": {"compute", "--iface"}, "rollback\t": {"man"}, "\n:4\n": {"demo", "--fail"},
	} {
		if got := ask(append(args, "")...); !strings.Contains(got, want) {
			t.Errorf("bifrost %s: %q, want %q", args, got, want)
		}
	}
	// A policy of a service that nobody has is refused, in plain words.
	if out, err := bifrost(t, "policy", "Pong.add", "tainted", "--admin-addr", address); err == nil || err.Error() != "no node exports a service Pong, and no deployment declares one: deploy it first (did you mean Ping?)" {
		t.Errorf("policy of a service that is not there: %s, %v", out, err)
	}
	if out, err := bifrost(t, "rollback", "nobody", "--admin-addr", address); err == nil || strings.Contains(err.Error(), "Not Found") {
		t.Errorf("rollback of an app that is not there: %s, %v", out, err)
	}
	// Who cannot be asked is not waited for, and spoils no command line.
	if got := ask("drain", "--admin-addr", "unix:"+t.TempDir()+"/none", ""); got != ":4\n" {
		t.Errorf("nobody there: %q", got)
	}
}

// What is completed is there to be completed.
func TestComplete_Tables(t *testing.T) {
	commands, flags := map[string]bool{}, map[string]bool{}
	each(newRoot(), func(cmd *cobra.Command) {
		commands[cmd.CommandPath()] = true
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
			flags["--"+f.Name], flags[cmd.CommandPath()+" --"+f.Name] = true, true
		})
	})
	for path := range completeArgs {
		if !commands[path] {
			t.Errorf("there is no %s", path)
		}
	}
	for flag := range completeFlags {
		if !flags[flag] {
			t.Errorf("there is no %s", flag)
		}
	}
}

// The scripts are what the shells take.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := bifrost(t, "completion", shell)
		if err != nil || !strings.Contains(script, "__complete") {
			t.Errorf("%s: %d bytes, %v", shell, len(script), err)
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.Command(path, "-n")
			check.Stdin = strings.NewReader(script)
			if said, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s -n: %v\n%s", shell, err, said)
			}
		}
	}
	for _, args := range [][]string{{"completion"}, {"completion", "csh"}} {
		if _, err := bifrost(t, args...); err == nil {
			t.Errorf("bifrost %v went well", args)
		}
	}
}
