package rack

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/bifrost-rack/bifrost/p4switch/shared/sdnotify"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// The test binary doubles as the bifrost binary: it behaves as the daemons do
// towards whoever starts them, and fails as FAKE says.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		if run, ok := fakes[os.Args[1]]; ok {
			os.Exit(run(os.Args[2:]))
		}
	}
	_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // else each fake takes a second to end under the race detector
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if buildDir != "" {
			_ = os.RemoveAll(buildDir)
		}
		os.Exit(code)
	}))
}

var fakes = map[string]func(args []string) int{
	"switch":     fakeSwitch,
	"gatekeeper": fakeDaemon,
	"compute":    fakeDaemon,
	"memory":     fakeDaemon,
	"serve":      fakeProgram,
	"upfake":     fakeUp,
	"execfake":   fakeExec,
}

// fakeVariable makes the daemon of one blade misbehave: "exit m1", "silent m1".
const fakeVariable = "FAKE"

func fakeSwitch(args []string) int {
	addr := args[slices.Index(args, "--grpc-server-addr")+1]
	l, err := net.Listen("unix", addr[len("unix:"):])
	if err != nil {
		fmt.Println(err)
		return 1
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	if err := sdnotify.Ready(); err != nil {
		fmt.Println(err)
		return 1
	}
	return untilTerminated()
}

func fakeDaemon(args []string) int {
	blade := ""
	if i := slices.Index(args, "--blade"); i >= 0 {
		blade = args[i+1]
	}
	switch os.Getenv(fakeVariable) {
	case "exit " + blade:
		fmt.Println("no room for", blade)
		return 3
	case "silent " + blade:
		return untilTerminated()
	}
	if err := sdnotify.Ready(); err != nil {
		fmt.Println(err)
		return 1
	}
	return untilTerminated()
}

// fakeProgram leaves a child behind in a session of its own, as a careless
// program may.
func fakeProgram(args []string) int {
	child := exec.Command("sleep", "1000")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := child.Start(); err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println(args[0], "is served")
	return untilTerminated()
}

// fakeUp starts a rack as the command does; the test kills it.
func fakeUp(args []string) int {
	h := &Host{Dir: args[0], Bifrost: "/proc/self/exe"}
	if err := h.Up(context.Background(), smallRack(args[1])); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// fakeExec is `rack exec`.
func fakeExec(args []string) int {
	h := &Host{Dir: args[0]}
	fmt.Println(h.Exec(args[1], args[2], args[3:]))
	return 1
}

func untilTerminated() int {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	<-stop
	return 0
}

// smallRack is a rack of one compute and one memory blade and a program.
func smallRack(name string) config.Config {
	c := config.Thesis()
	c.Name = name
	c.Blades = []config.Blade{c.Blades[0], c.Blades[3]}
	c.Programs = []config.Program{{Name: "p1", Blade: "c1", Command: []string{"/proc/self/exe", "serve", "it"}, Ready: "it is served"}}
	return c
}
