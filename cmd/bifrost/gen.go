package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// newGenCmd builds "bifrost gen": Thrift IDL in, stubs that pass values by
// reference out.
func newGenCmd() *cobra.Command {
	f := genFlags{}
	cmd := &cobra.Command{
		Use:   "gen FILE.thrift...",
		Short: "Generate stubs that pass values by reference",
		Long: `Read Thrift IDL, and write Go stubs for each service that has a mark such as (bifrost.ref).
The stubs go into the packages that "thrift --gen go" makes of the same files:

  service Lab {
    binary develop(1: binary raw (bifrost.ref)) throws (1: Corrupt c) (bifrost.ref)
  }

(bifrost.ref) after an argument's name makes the argument a reference. (bifrost.ref) after
the method makes its result a reference. Strings, binary, lists, sets, maps, structs and
unions can be references. (bifrost.policy = "recover") after a method says what becomes of its calls when
a node fails, and (bifrost.max_failures = "100") after how many ends of its program a call is
given up. (bifrost.state) after a service says that the service has state.

With --python, write for each file what a program in Python is to know of its marks, into the package that
"thrift --gen py" makes: FILE_bifrost.py, whose MARKS["Lab"] is for bifrost.refs.`,
		Example: `  thrift --gen go lab.thrift
  bifrost gen lab.thrift --out gen-go

  thrift --gen py lab.thrift
  bifrost gen --python lab.thrift

  //go:generate bifrost gen lab.thrift --out gen-go`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			if f.python && !cmd.Flags().Changed("out") {
				f.out = "gen-py"
			}
			return f.run(cmd.OutOrStdout(), files)
		},
	}
	cmd.Flags().StringVarP(&f.out, "out", "o", "gen-go", "directory that thrift --gen writes to; with --python the default is gen-py")
	cmd.Flags().BoolVar(&f.python, "python", false, "write what a program in Python is to know, instead of Go stubs")
	cmd.Flags().StringArrayVarP(&f.options.Include, "include", "I", nil, "directory to look for included files in (repeatable)")
	cmd.Flags().StringVar(&f.options.PackagePrefix, "package-prefix", "", "prefix of the import paths of included packages, like thrift's package_prefix")
	return cmd
}

type genFlags struct {
	out     string
	python  bool
	options gen.Options
}

// run generates for every file before it writes any.
func (f genFlags) run(out io.Writer, files []string) error {
	var all []gen.File
	var errs []error
	generate := gen.Generate
	if f.python {
		generate = gen.Python
	}
	for _, file := range files {
		f.options.Beside = func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(f.out, filepath.FromSlash(name))) }
		generated, err := generate(file, os.ReadFile, f.options)
		all, errs = append(all, generated...), append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, g := range all {
		name := filepath.Join(f.out, filepath.FromSlash(g.Name))
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, g.Content, 0o644); err != nil {
			return err
		}
		fmt.Fprintln(out, name)
	}
	return nil
}
