package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/internal/simrack"
	"github.com/bifrost-rack/bifrost/p4switch/shared/bubble"
	"github.com/bifrost-rack/bifrost/rpc"
)

// waited runs a command that waits, and returns what it prints, and what it shows meanwhile.
func waited(t *testing.T, args ...string) (out, shown string, err error) {
	t.Helper()
	return waitedUntil(t, "", nil, args...)
}

// waitedUntil is waited that calls then, with what interrupts the command, whenever something is shown and the text is part of all that was.
func waitedUntil(t *testing.T, text string, then func(interrupt func()), args ...string) (out, shown string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var o bytes.Buffer
	var e shows
	e.changed = func() {
		if then != nil && strings.Contains(e.String(), text) {
			then(cancel)
		}
	}
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(&o)
	root.SetErr(&e)
	err = root.ExecuteContext(ctx)
	return o.String(), e.String(), err
}

// shows is what a command shows; it says when that has changed.
type shows struct {
	bytes.Buffer
	changed func()
}

func (s *shows) Write(p []byte) (int, error) {
	defer s.changed()
	return s.Buffer.Write(p)
}

// TestWait: each command that waits ends when its change is done, and otherwise says what is not there, and why.
func TestWait(t *testing.T) {
	defer func(a, b time.Duration) { askInterval, blockedPatience = a, b }(askInterval, blockedPatience)
	askInterval, blockedPatience = 10*time.Millisecond, 100*time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	var held sync.RWMutex // while it is locked, no program joins
	joins := func(ctx context.Context, j join.Joiner, _ control.Start) error {
		held.RLock()
		held.RUnlock() //nolint:staticcheck // it has waited
		n, err := rpc.Join(join.NewContext(ctx, j), rpc.WithName("p"))
		if err != nil {
			return err
		}
		<-ctx.Done()
		return n.Close(context.WithoutCancel(ctx))
	}
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute, Machines: [][]string{{"m1", "m2"}}, Programs: map[string]simrack.Program{"p": joins}})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	address := serveRackAdmin(ctx, t, rack)
	t.Chdir(t.TempDir())
	deploy := func(nodes, blades string, args ...string) (string, string, error) {
		must(t, os.WriteFile("app.yaml", []byte("name: a\nprograms: [{name: p, command: [/opt/p], nodes: "+nodes+", blades: ["+blades+"]}]\n"), 0o600))
		return waited(t, append([]string{"deploy", "app.yaml", "--any-binary", "--admin-addr", address}, args...)...)
	}
	run := func(command string) (string, string, error) {
		return waited(t, append(strings.Fields(command), "--admin-addr", address)...)
	}
	interrupted := func(command, shown string) (string, string, error) {
		return waitedUntil(t, shown, func(interrupt func()) { interrupt() }, append(strings.Fields(command), "--admin-addr", address)...)
	}
	expect := func(what string, want string, out, shown string, err error) {
		t.Helper()
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v\n%s%swant %s", what, err, shown, out, want)
		}
	}
	refused := func(what string, wants []string, out, shown string, err error) {
		t.Helper()
		if err == nil || slices.ContainsFunc(wants, func(want string) bool { return !strings.Contains(err.Error(), want) }) {
			t.Errorf("%s: %v\n%s%swant %q", what, err, shown, out, wants)
		}
	}
	out, shown, err := deploy("3", "s1", "--wait")
	expect("deploy", "a/p/3", out, shown, err)
	held.Lock()
	release := sync.OnceFunc(held.Unlock)
	defer release()
	out, shown, err = waitedUntil(t, "a/p/1 is ", func(func()) { release() }, "restart", "a", "--wait", "--admin-addr", address)
	expect("restart", "a/p/3", out, shown, err)
	if !strings.Contains(shown, "a/p/1 is ") || !strings.Contains(shown, "a/p/3 is done\n") {
		t.Errorf("restart shows\n%s", shown)
	}
	out, shown, err = run("drain s1 --wait")
	refused("drain without room", []string{"drain s1 does not go on by itself: a/p/", " is running since ", "no other blade has room for it: s1 is draining"}, out, shown, err)
	blockedPatience = time.Minute
	out, shown, err = interrupted("drain s1 --wait", "a/p/3 is running")
	refused("drain that is interrupted", []string{"drain s1 was interrupted: a/p/", " is running since ", "; a/p/", "the change itself goes on"}, out, shown, err)
	out, shown, err = deploy("2", "s1, s2", "--timeout", "1m")
	expect("deploy of fewer nodes", "a/p/", out, shown, err)
	out, shown, err = run("drain s1 --wait")
	expect("drain", "s1 is draining", out, shown, err)
	out, shown, err = run("return s1 --wait")
	expect("return", "s1 is free", out, shown, err)
	// Whoever has started a program by hand has to end it.
	n, err := rack.Join(ctx, "s1", "mine")
	must(t, err)
	out, shown, err = interrupted("drain s1 --wait", "mine is there")
	refused("drain of a program that was started by hand", []string{"mine is there: somebody has started it by hand: it stays until it ends"}, out, shown, err)
	must(t, n.Close(ctx))
	out, shown, err = run("undeploy a --wait")
	expect("undeploy", "APP", out, shown, err)
	out, _, err = run("apps")
	if err != nil || strings.Contains(out, "a/p/") {
		t.Errorf("undeployed, but there is\n%s%v", out, err)
	}
	out, shown, err = run("restart a --wait")
	refused("restart of what is gone", []string{`no deployment is called "a"`}, out, shown, err)
}

// TestJobRun: a finished job runs again, with arguments, and needs no undeploy.
func TestJobRun(t *testing.T) {
	defer func(a time.Duration) { askInterval = a }(askInterval)
	askInterval = 10 * time.Millisecond
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	t.Cleanup(cancel)
	ran := make(chan []string, 10)
	rack, err := simrack.Start(ctx, simrack.Config{Heartbeat: time.Minute, Machines: [][]string{{"m1", "m2"}}, Programs: map[string]simrack.Program{
		"report": func(ctx context.Context, j join.Joiner, s control.Start) error {
			n, err := rpc.Join(join.NewContext(ctx, j))
			if err != nil {
				return err
			}
			ran <- s.Args
			return n.Close(ctx)
		},
	}})
	must(t, err)
	t.Cleanup(func() { must(t, rack.Close()) })
	address := serveRackAdmin(ctx, t, rack)
	t.Chdir(t.TempDir())
	must(t, os.WriteFile("app.yaml", []byte("name: shop\nprograms: [{name: report, command: [/opt/report, all], job: true}]\n"), 0o600))
	_, _, err = waited(t, "deploy", "app.yaml", "--any-binary", "--wait", "--admin-addr", address)
	must(t, err)
	if got := <-ran; !slices.Equal(got, []string{"/opt/report", "all"}) {
		t.Errorf("first %q", got)
	}
	for out := ""; !strings.Contains(out, "finished"); {
		out, _, err = waited(t, "apps", "--admin-addr", address)
		must(t, err)
	}
	out, shown, err := waited(t, "job", "run", "shop/report", "--wait", "--admin-addr", address, "--", "--month", "5")
	if err != nil || !strings.Contains(out, "finished") {
		t.Errorf("%s%s%v", shown, out, err)
	}
	if got := <-ran; !slices.Equal(got, []string{"/opt/report", "all", "--month", "5"}) {
		t.Errorf("then %q", got)
	}
	if _, _, err := waited(t, "job", "run", "shop", "--admin-addr", address); err == nil || !strings.Contains(err.Error(), "write APP/PROGRAM") {
		t.Errorf("no job: %v", err)
	}
}

// A change is waited for until --timeout, and a Gatekeeper that is away, but not for ever. The time is not real: a slow machine changes nothing.
func TestWait_Limits(t *testing.T) {
	_, away := (&clientOptions{address: "unix:" + t.TempDir() + "/none"}).connectAndAsk(t)
	bubble.Test(t, func(t *testing.T) {
		cmd := newDrainCmd()
		cmd.SetContext(t.Context())
		cmd.SetErr(io.Discard)
		asked := 0
		is := func(context.Context) ([]thing, error) {
			if asked++; asked < 3 {
				return nil, away
			}
			return nil, nil
		}
		var w waitOptions
		if err := w.until(cmd, "drain s1", is); err != nil || asked != 3 {
			t.Errorf("away for a moment: %v, asked %d times", err, asked)
		}
		began := time.Now()
		err := w.until(cmd, "drain s1", func(context.Context) ([]thing, error) { return nil, away })
		if took := time.Since(began); err == nil || !strings.Contains(err.Error(), "drain s1 does not go on by itself: the Gatekeeper is away: ") || took < blockedPatience || took > 2*blockedPatience {
			t.Errorf("away for good: %v, after %v", err, took)
		}
		limited, began := waitOptions{timeout: 50 * time.Millisecond}, time.Now()
		err = limited.until(cmd, "drain s1", func(context.Context) ([]thing, error) {
			return []thing{{name: "p", state: "running"}, {name: "q", state: "new"}}, nil
		})
		if want := "drain s1 is not done after 50ms: p is running; q is new; the change itself goes on"; err == nil || err.Error() != want || time.Since(began) != limited.timeout {
			t.Errorf("with a timeout: %v, after %v; want %s", err, time.Since(began), want)
		}
		err = limited.until(cmd, "drain s1", func(ctx context.Context) ([]thing, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		if want := "drain s1 is not done after 50ms: the Gatekeeper has not answered; the change itself goes on"; err == nil || err.Error() != want {
			t.Errorf("no answer in time: %v; want %s", err, want)
		}
		broken := errors.New("it cannot come")
		if err := w.until(cmd, "drain s1", func(context.Context) ([]thing, error) { return nil, broken }); !errors.Is(err, broken) {
			t.Errorf("what cannot come: %v", err)
		}
	})
}

// connectAndAsk asks for the status of a rack.
func (o *clientOptions) connectAndAsk(t *testing.T) (string, error) {
	t.Helper()
	c, err := o.connect()
	must(t, err)
	defer c.Close()
	s, err := c.Status(t.Context())
	return s.Version, err
}

// TestProgress: what is waited for is shown, each thing on a line of its own.
func TestProgress(t *testing.T) {
	now := time.Now()
	at := func(state, why string) thing { return thing{name: "p/1", state: state, why: why} }
	var out bytes.Buffer
	lines := newProgress(&out)
	for i, left := range [][]thing{{at("filling", "10 %")}, {at("filling", "11 %")}, {at("filling", "20 %")}, {at("filling", "20 %"), {name: "p/2", state: "new"}}, {at("ready", "")}, nil} {
		lines.show(left, now.Add(time.Duration(i)*tellInterval/2))
	}
	if got, want := out.String(), "p/1 is filling: 10 %\np/1 is filling: 20 %\np/2 is new\np/1 is ready\np/2 is done\np/1 is done\n"; got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
	out.Reset()
	line := newProgress(&out)
	line.terminal = &out
	line.show([]thing{at("filling", "10 %")}, now)
	line.show([]thing{at("filling", "11 %"), {name: "p/2", state: "new"}}, now)
	line.show(nil, now)
	if got, want := out.String(), "\x1b[Jp/1 is filling: 10 %\n\x1b[1A\r\x1b[Jp/1 is filling: 11 %\np/2 is new\n\x1b[2A\r\x1b[J"; got != want {
		t.Errorf("a terminal: %q, want %q", got, want)
	}
	if got := cut("a line of text", 8); got != "a line …" {
		t.Errorf("cut: %q", got)
	}
}
