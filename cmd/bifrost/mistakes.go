package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/suggest"
)

// Mistakes of whoever types a command: each is an error that says what is wrong, and what to
// write instead.

// strict has a command, and those below it, refuse subcommands that do not exist, and say
// how they are used where arguments are missing or too many.
func strict(cmd *cobra.Command) {
	if cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.Args = cobra.ArbitraryArgs
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		}
	}
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error {
			if err := check(cmd, args); err != nil {
				return misused(cmd, wrongArgs(cmd, args, err))
			}
			return nil
		}
	}
	cmd.SetFlagErrorFunc(misused)
	for _, sub := range cmd.Commands() {
		strict(sub)
	}
}

// wrongArgs says which arguments a command takes, and which it was given, where err only counts them.
func wrongArgs(cmd *cobra.Command, args []string, err error) error {
	if text := err.Error(); !strings.Contains(text, "arg(s)") {
		return err
	}
	takes, given := "no argument", "none"
	if _, names, some := strings.Cut(cmd.Use, " "); some {
		takes = names
	}
	if len(args) > 0 {
		given = fmt.Sprintf("%q", args)
		given = given[1 : len(given)-1]
	}
	return fmt.Errorf("%s takes %s, and was given %s", cmd.CommandPath(), takes, given)
}

// misused adds to an error how the command is used.
func misused(cmd *cobra.Command, err error) error {
	text := fmt.Sprintf("%v\nusage: %s", err, cmd.UseLine())
	if example, _, _ := strings.Cut(strings.TrimSpace(cmd.Example), "\n"); example != "" {
		text += "\nfor example: " + example
	}
	return fmt.Errorf("%s\n%s --help says more", text, cmd.CommandPath())
}

// unknownCommand is the error of a subcommand that does not exist.
func unknownCommand(cmd *cobra.Command, name string) error {
	var names []string
	for _, sub := range cmd.Commands() {
		if sub.IsAvailableCommand() {
			names = append(names, sub.Name())
		}
	}
	return fmt.Errorf("unknown command %q for %q%s", name, cmd.CommandPath(), suggest.Text(name, names))
}

// remedies are what to do about errors of the operating system.
var remedies = []struct {
	err    error
	remedy string
}{
	{unix.EADDRINUSE, "somebody else listens there: choose another address, or end the process that does (ss -ltnp names it)"},
	{unix.ENOSPC, "the disk is full: make room (df -h), or name a directory on another disk"},
	{unix.EDQUOT, "the disk quota is used up: make room, or name another directory"},
	{unix.EROFS, "the file system cannot be written to: name a directory on another one"},
	{fs.ErrPermission, "this user may not do that: try it with sudo"},
	{exec.ErrNotFound, "the program is not there: name its path, or put it on PATH or beside bifrost"},
}

// withRemedy adds to an error what can be done about it, if the operating system is the
// cause and nobody has said that.
func withRemedy(err error) error {
	for _, r := range remedies {
		if errors.Is(err, r.err) && !strings.Contains(err.Error(), "sudo") {
			return fmt.Errorf("%w: %s", err, r.remedy)
		}
	}
	return err
}

// checkKinds refuses kinds of events that there are not. What ends with a dot, such as
// blade., is not complete either.
func checkKinds(kinds []string, known []string) error {
	for _, kind := range kinds {
		if !slices.Contains(known, kind) {
			return fmt.Errorf("--kind %s: there are no such events%s", kind, suggest.Text(kind, known))
		}
	}
	return nil
}

// checkMethod refuses a method that a service does not have. Of a service that nobody
// exports yet, nothing is known.
func checkMethod(services []api.Service, service, method string) error {
	i := slices.IndexFunc(services, func(s api.Service) bool { return s.Name == service })
	if i < 0 || method == "" {
		return nil
	}
	var names []string
	for _, m := range services[i].Methods {
		names = append(names, m.Name)
	}
	if slices.Contains(names, method) {
		return nil
	}
	return fmt.Errorf("service %s has no method %s%s", service, method, suggest.Text(method, names))
}
