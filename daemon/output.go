package daemon

import (
	"io"
	"time"

	"github.com/bifrost-rack/bifrost/daemon/output"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// outputOf is where a program prints: what the blade keeps of it, or else the daemon's log.
func (c *Compute) outputOf(program string) io.WriteCloser {
	if c.cfg.Output != nil {
		return c.cfg.Output.Writer(program)
	}
	return &output.Lines{Each: func(line []byte) { c.reg.log.Info(string(line), "program", program) }}
}

// printed answers what programs have printed.
func (c *Compute) printed(q control.Output) (control.OutputPart, error) {
	if c.cfg.Output == nil {
		return control.OutputPart{}, fault.New(fault.Unsupported, "output", "blade %s keeps no output of programs", c.cfg.Name)
	}
	ask := output.Query{Name: q.Program, Last: q.Last, Max: min(max(q.Max, 0), control.OutputPartSize)}
	if q.After > 0 {
		ask.After = time.Unix(0, q.After)
	}
	lines, more, err := c.cfg.Output.Read(ask)
	if err != nil {
		return control.OutputPart{}, &fault.Error{Code: fault.Internal, Op: "output", Err: err}
	}
	part := control.OutputPart{More: more, Dropped: c.cfg.Output.Dropped()}
	for _, l := range lines {
		part.Lines = append(part.Lines, control.OutputLine{Program: l.Program, Time: l.Time.UnixNano(), Text: l.Text})
	}
	return part, nil
}
