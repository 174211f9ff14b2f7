package switchcmd

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/interp/stf"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/spf13/cobra"
)

// scriptOptions are the flags of `bifrost switch test`.
type scriptOptions struct{ program, datapath string }

func newSwitchTestCmd() *cobra.Command {
	var o scriptOptions
	cmd := &cobra.Command{
		Use:   "test SCRIPT.stf...",
		Short: "Run test scripts of p4c (STF) against a program, in Go and in the kernel",
		Long: `Run test scripts against a compiled program: a script fills tables, sends packets and says what
comes out. It is p4c's format, STF. The program of SCRIPT.stf is SCRIPT.json beside it, which p4c
(p4c-bm2-ss) writes, unless --program names another one. No interface is needed.

In the kernel (--datapath ebpf, or auto as root) frames shorter than Ethernet's get zeros behind
them, which are taken off what comes out.`,
		Example: `  p4c-bm2-ss router.p4 -o router.json && bifrost switch test router.stf
  sudo bifrost switch test --datapath ebpf --program router.json tests/*.stf`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return o.run(args, cmd.OutOrStdout()) },
	}
	cmd.Flags().StringVar(&o.program, "program", "", "the compiled program, for all scripts (default: SCRIPT.json)")
	cmd.Flags().StringVar(&o.datapath, "datapath", "auto", "what runs the program: go, ebpf (in the kernel, which needs root), or auto (go, and ebpf too where it can)")
	return cmd
}

// run runs scripts, says of each how it went, and fails if one has failed.
func (o *scriptOptions) run(scripts []string, w io.Writer) error {
	if o.datapath != "auto" && o.datapath != "go" && o.datapath != "ebpf" {
		return fmt.Errorf("--datapath %s: choose auto, ebpf or go", o.datapath)
	}
	failed := 0
	for _, s := range scripts {
		by, err := o.script(s)
		if err != nil {
			failed++
			fmt.Fprintf(w, "FAIL %s: %v\n", s, err)
			continue
		}
		fmt.Fprintf(w, "ok   %s (%s)\n", s, strings.Join(by, ", "))
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d scripts failed", failed, len(scripts))
	}
	return nil
}

// script runs one script, and tells which executors it ran against.
func (o *scriptOptions) script(path string) (by []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	program := o.program
	if program == "" {
		program = strings.TrimSuffix(path, ".stf") + ".json"
	}
	b, err := os.ReadFile(program)
	if errors.Is(err, fs.ErrNotExist) && o.program == "" {
		return nil, fmt.Errorf("no program %s: compile it with p4c-bm2-ss PROGRAM.p4 -o %s, or name it with --program", program, program)
	}
	if err != nil {
		return nil, err
	}
	prog, err := v1model.Load(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", program, err)
	}
	if o.datapath != "ebpf" {
		r := stf.New(prog)
		x, err := interp.New(prog, interp.Config{Sink: r, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		r.Attach(x)
		err = errors.Join(r.Run(bytes.NewReader(text)), x.Close())
		if err != nil {
			return nil, fmt.Errorf("in Go: %w", err)
		}
		by = append(by, "go")
	}
	if o.datapath == "go" {
		return by, nil
	}
	r := stf.New(prog)
	x, closeKernel, err := kernelSwitch(prog, r)
	if err != nil {
		if o.datapath == "auto" {
			return by, nil // only in Go
		}
		return nil, err
	}
	p := padded{Switch: x, short: new(int)}
	r.Attach(p)
	err = errors.Join(r.Run(bytes.NewReader(text)), closeKernel())
	switch {
	case err == nil:
		return append(by, "ebpf"), nil
	case *p.short == 0:
		return nil, fmt.Errorf("in the kernel: %w", err)
	case o.datapath == "auto":
		return append(by, fmt.Sprintf("not ebpf: %d packets are shorter than %d bytes, and the program looks at where they end", *p.short, leastTested)), nil
	}
	return nil, fmt.Errorf("in the kernel, with zeros behind %d packets that are shorter than %d bytes (--datapath go needs none): %w", *p.short, leastTested, err)
}

// leastTested is the shortest frame that the kernel takes for a test of any program.
const leastTested = 60

// padded makes packets as long as Ethernet's, and takes off what it has added from the end of what comes out.
type padded struct {
	stf.Switch
	short *int // how many it has made longer
}

func (p padded) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	added := max(leastTested-len(frame), 0)
	if added > 0 {
		*p.short++
	}
	p.Switch.Process(in, append(bytes.Clone(frame), make([]byte, added)...), func(to datapath.Port, out []byte) {
		if n := len(out) - added; n >= 0 && len(bytes.TrimRight(out[n:], "\x00")) == 0 {
			out = out[:n]
		}
		emit(to, out)
	})
}
