package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/internal/newapp"
)

// newOptions are the flags of `bifrost new`.
type newOptions struct{ module, checkout string }

func newNewCmd() *cobra.Command {
	var o newOptions
	cmd := &cobra.Command{
		Use:   "new DIRECTORY",
		Short: "Write a first service of your own, which builds, tests and runs",
		Long: `Write a first service into a new directory, whose last element is the app's name: its
Thrift IDL and the code that follows from it, a handler, a program that serves and calls, a
test in which programs and blades die, the app file, and a Makefile. README.md in the
directory says what to do next.

The Go module requires the release of Bifröst that this program is of. A bifrost from a
checkout has the module use that checkout.`,
		Example: `  bifrost new myapp && cd myapp && make test && make dev
  bifrost new myapp --module github.com/me/myapp`,
		Args: cobra.ExactArgs(1),
		RunE: o.run,
	}
	cmd.Flags().StringVar(&o.module, "module", "", "the `PATH` of the Go module (default: example.com/ and the app's name)")
	cmd.Flags().StringVar(&o.checkout, "checkout", "", "a `DIRECTORY` with the source of Bifröst, which the module uses (default: the one that this bifrost is in the bin directory of)")
	return cmd
}

func (o *newOptions) run(cmd *cobra.Command, args []string) error {
	dir := args[0]
	a := newapp.App{Name: filepath.Base(filepath.Clean(dir)), Module: o.module, Checkout: o.checkout, Version: noRelease, Go: goVersion}
	if info, ok := debug.ReadBuildInfo(); ok && release.MatchString(info.Main.Version) {
		a.Version = info.Main.Version
	}
	if a.Checkout == "" && a.Version == noRelease {
		a.Checkout = ownCheckout()
	}
	switch {
	case a.Checkout != "":
		abs, err := filepath.Abs(a.Checkout)
		if err != nil {
			return err
		}
		if !isCheckout(abs) {
			return fmt.Errorf("--checkout %s: it has no source of Bifröst (go.mod of module %s)", a.Checkout, modulePath)
		}
		a.Checkout, a.Version = abs, noRelease
	case a.Version == noRelease:
		return errors.New("this bifrost is not of a release, and not in a checkout: name a directory with the source of Bifröst with --checkout")
	}
	written, err := newapp.Write(dir, a)
	for _, name := range written {
		fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, name))
	}
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nnext:  cd %s && make test && make dev\n", dir)
	return err
}

const (
	modulePath = "github.com/bifrost-rack/bifrost"
	// noRelease is the version that a module requires whose source is a checkout.
	noRelease = "v0.0.0"
	// goVersion is that of go.mod.
	goVersion = "1.26.0"
)

var release = regexp.MustCompile(`^v\d+\.\d+\.\d+(-(alpha|beta|rc)[.\d]*)?$`)

// ownCheckout is the checkout in whose bin directory this program is, "" if it is elsewhere.
func ownCheckout() string {
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if dir := filepath.Dir(filepath.Dir(self)); err == nil && isCheckout(dir) {
		return dir
	}
	return ""
}

// isCheckout reports whether a directory has Bifröst's source.
func isCheckout(dir string) bool {
	b, err := os.ReadFile(filepath.Join(dir, "go.mod"))
	return err == nil && strings.HasPrefix(string(b), "module "+modulePath+"\n")
}
