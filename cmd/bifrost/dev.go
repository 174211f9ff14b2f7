package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/devrack"
	"github.com/bifrost-rack/bifrost/internal/join"
	"github.com/bifrost-rack/bifrost/p4switch/shared/process"
)

// devOptions are the flags of `bifrost dev`.
type devOptions struct {
	dir     string
	page    string
	ingress string
	logging process.LogOptions
}

func newDevCmd() *cobra.Command {
	var o devOptions
	cmd := &cobra.Command{
		Use:   "dev [APP.YAML]",
		Short: "A whole rack in this process, for programs of your own; no root, no namespaces",
		Long: `Run a whole rack in one unprivileged process: the switch with its P4 program, the
Gatekeeper, the compute blades c1, s1 and s2, and the memory blades m1 and m2, which
hold a copy each. Calls from outside of the rack come by HTTP (see bifrost ingress). It runs
on Linux and macOS, until Ctrl-C.

The programs of the app file run as processes of their own. The rack starts them, starts
them again when they end, and rolls them out anew when their files or the app file change:
build in another terminal. What they print comes out here, behind their names. Blades that
the app file names are there, too.

Programs that you start by hand join the rack if ` + join.SocketVariable + ` is set as the
command prints it. Commands such as bifrost apps or bifrost calls ask this rack if
` + addressVariable + ` is set so.

With --dir, deployments, policies, the states of services and durable mains, and memory
regions are there again in the next run. After a run that was killed, regions are not. The
directory belongs to one rack at a time.`,
		Example: `  bifrost dev                          # an empty rack, for programs that you start
  bifrost dev app.yaml
  bifrost dev --dir .bifrost app.yaml  # keeps its state`,
		Args: cobra.MaximumNArgs(1),
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.dir, "dir", "", "`DIRECTORY` that keeps the rack's state from run to run (default: a temporary one)")
	cmd.Flags().StringVar(&o.page, "page", "", "serve the rack's page at loopback `HOST:PORT` (default: "+defaultAdmin+", or another port if that is taken)")
	cmd.Flags().StringVar(&o.ingress, "ingress", "", "take calls from outside of the rack at loopback `HOST:PORT` (default: "+defaultIngress+", or another port if that is taken)")
	o.logging.Register(cmd.Flags(), "")
	o.logging.Level = "off" // what matters to a program's author is told
	cmd.Flags().Lookup("log-level").DefValue = o.logging.Level
	return cmd
}

// run runs the rack until the command's context ends.
func (o *devOptions) run(cmd *cobra.Command, args []string) error {
	process.CollectRarely()
	log, err := o.logging.Open()
	if err != nil {
		return err
	}
	cfg := devrack.Config{Dir: o.dir, Version: versionString(), Token: cmp.Or(os.Getenv(tokenVariable), admin.NewToken()), Log: log}
	for _, file := range args {
		cfg.Apps = append(cfg.Apps, devrack.App{File: file, Read: func() (resources.Spec, error) { return readHere(file) }})
	}
	if cfg.Page, err = o.listen(); err != nil {
		return err
	}
	if cfg.Ingress, err = o.listenIngress(log); err != nil {
		return errors.Join(err, cfg.Page.Close())
	}
	c := newConsole(cmd.OutOrStdout())
	cfg.Print = c.print
	cfg.Ready = func(a devrack.Addresses) { o.introduce(c, &cfg, a) }
	// Who has not the patience to wait for an orderly end interrupts once more.
	stop := context.AfterFunc(cmd.Context(), func() { signal.Reset(os.Interrupt, syscall.SIGTERM) })
	defer stop()
	return devrack.Run(cmd.Context(), cfg)
}

// readHere reads an app whose programs are all on this machine.
func readHere(file string) (resources.Spec, error) {
	spec, absent, err := readSpec(file, true)
	if err == nil && len(absent) > 0 {
		err = fmt.Errorf("%s: cannot find the program %s: build it, or give its path", file, strings.Join(absent, " and "))
	}
	return spec, err
}

// listen opens the page's address.
func (o *devOptions) listen() (admin.Listener, error) {
	l, err := admin.Listen(cmp.Or(o.page, defaultAdmin), nil)
	if o.page == "" && errors.Is(err, syscall.EADDRINUSE) {
		l, err = admin.Listen("127.0.0.1:0", nil)
	}
	if err != nil {
		err = fmt.Errorf("--page: %w", err)
	}
	return l, err
}

// listenIngress opens the address for calls from outside of the rack.
func (o *devOptions) listenIngress(log *slog.Logger) (net.Listener, error) {
	l, err := (&ingressOptions{listen: cmp.Or(o.ingress, defaultIngress)}).open(log)
	if o.ingress == "" && errors.Is(err, syscall.EADDRINUSE) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		err = fmt.Errorf("--ingress: %w", err)
	}
	return l, err
}

// introduce says how the rack is used.
func (o *devOptions) introduce(c *console, cfg *devrack.Config, a devrack.Addresses) {
	say := func(format string, args ...any) { c.print("", fmt.Sprintf(format, args...)) }
	say("a rack is up, until Ctrl-C")
	say("  page      http://%s/#token=%s", cfg.Page.Addr(), cfg.Token)
	say("  calls     http://%s/    # forms; POST /call/SERVICE/METHOD", cfg.Ingress.Addr())
	say("  commands  export %s=%s    # bifrost apps, bifrost calls, …", addressVariable, a.Admin)
	say("  programs  export %s=%s    # before you start one by hand", join.SocketVariable, a.Join)
	if o.dir == "" {
		say("  state     goes with this process; --dir DIRECTORY keeps it")
	} else {
		say("  state     %s", a.Dir)
	}
}
