package softswitch

import (
	"context"
	"encoding/hex"
	"log/slog"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/interp"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt"
	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/trace"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// Executor is a Datapath that frames run through. Process may be called
// concurrently.
type Executor interface {
	datapath.Datapath
	// Process runs one frame that came in at a port to its end, on the caller's
	// goroutine. It calls emit for every frame that leaves by a port other than
	// the CPU port. Frame and emitted frames are lent for the call.
	Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte))
}

// Env is what an executor needs of its switch.
type Env struct {
	// Info is the program's P4Info, to be checked against the device config.
	Info *p4info.Info
	// CPUPort is the port whose frames go to the controller; 0 is none.
	CPUPort datapath.Port
	// Sink receives what the data plane has for the controller.
	Sink datapath.Sink
	// Emit is the emit function for frames that come from the controller.
	Emit func(datapath.Port, []byte)
	// Local tells that the switch has ports in the same process, whose frames a
	// kernel executor never sees.
	Local bool
	// Inherit is where an executor of the same program is pinned that is gone or to
	// be replaced; what packets have changed there is taken over. Empty: nothing.
	Inherit string
	// Former is the executor that was committed last, with whose registers the new one goes on if both programs have the same ones; nil for none.
	Former Executor
	// Registers, if not nil, gives a Go executor the registers of a program that outlive it. They may be nil: then they are the executor's own.
	Registers func(*v1model.Program) (*interp.Registers, error)
	// Links is where attachments to interfaces are pinned; empty: they are not.
	Links string
	// Log receives what the program logs, and a trace of every packet if
	// LevelTrace is enabled. Never nil.
	Log *slog.Logger
}

// tableCounter is an Executor that counts lookups by table.
type tableCounter interface {
	TableStats() map[string]datapath.TableCounts
}

// LevelTrace is the log level at which every packet's way is told.
const LevelTrace = slog.LevelDebug - 4

// Loader builds an executor from a device config, which is p4c's bmv2 JSON.
type Loader func(deviceConfig []byte, env Env) (Executor, error)

// LoadGo builds the portable executor, package interp. It is a Loader.
func LoadGo(deviceConfig []byte, env Env) (Executor, error) {
	prog, err := LoadProgram(deviceConfig, env.Info)
	if err != nil {
		return nil, err
	}
	cfg := interp.Config{CPUPort: env.CPUPort, Sink: env.Sink, Output: env.Emit, Logger: env.Log}
	if env.Log.Enabled(context.Background(), LevelTrace) {
		cfg.Tracer = tracer{env.Log}
	}
	if env.Registers != nil {
		if cfg.Registers, err = env.Registers(prog); err != nil {
			return nil, err
		}
	}
	x, err := interp.New(prog, cfg)
	if err != nil {
		return nil, err
	}
	return &goExecutor{Executor: x, declared: declared{prog}}, nil
}

// goExecutor fits interp.Executor to this package's interface.
type goExecutor struct {
	*interp.Executor
	declared
}

// Process implements Executor.
func (g *goExecutor) Process(in datapath.Port, frame []byte, emit func(datapath.Port, []byte)) {
	g.Executor.Process(in, frame, emit)
}

// HasRegistersOf makes the P4Runtime server leave registers alone that the executor has already.
func (g *goExecutor) HasRegistersOf(dp datapath.Datapath) bool {
	o, ok := dp.(*goExecutor)
	return ok && g.Registers() == o.Registers()
}

// declared tells the P4Runtime server what a program declares.
type declared struct{ prog *v1model.Program }

// model is the program that runs.
func (d declared) model() *v1model.Program { return d.prog }

// Presets implements p4rt.Presetter.
func (d declared) Presets() []p4rt.Preset {
	var out []p4rt.Preset
	for _, t := range d.prog.Tables {
		for i := range t.Entries {
			out = append(out, p4rt.Preset{Const: t.Const, Entry: entryOf(t, i)})
		}
	}
	return out
}

func entryOf(t *v1model.Table, i int) datapath.Entry {
	d := &t.Entries[i]
	e := datapath.Entry{Table: t.Name, Priority: t.EntryPriority(i)}
	for _, m := range d.Match {
		e.Match = append(e.Match, datapath.Match{Value: m.Value, Mask: m.Mask, High: m.High, PrefixLen: m.PrefixLen})
	}
	a := call(&d.Call)
	e.Action = &a
	return e
}

// Default implements p4rt.Presetter.
func (d declared) Default(table string) (datapath.Action, bool) {
	t := d.prog.Table(table)
	if t == nil || t.Default == nil {
		return datapath.Action{}, false
	}
	return call(t.Default), true
}

func call(c *v1model.ActionCall) datapath.Action {
	a := datapath.Action{Name: c.Action.Name}
	for i, arg := range c.Args {
		a.Params = append(a.Params, arg.FillBytes(make([]byte, (c.Action.Params[i].Width+7)/8)))
	}
	return a
}

// tracer writes every packet's way to the log.
type tracer struct{ log *slog.Logger }

var traced = map[interp.EventKind]string{
	interp.TraceIn: "packet in", interp.TraceParser: "parser state", interp.TraceParserError: "parser error",
	interp.TracePipeline: "pipeline", interp.TraceCondition: "condition", interp.TraceTable: "table",
	interp.TraceAction: "action", interp.TraceDrop: "drop", interp.TraceCopy: "copy", interp.TraceOut: "packet out",
	interp.TraceRead: "register read", interp.TraceWrite: "register write",
}

// Trace implements interp.Tracer.
func (t tracer) Trace(e interp.Event) {
	attrs := []slog.Attr{slog.Uint64("packet", e.Packet)}
	if e.Name != "" {
		attrs = append(attrs, slog.String("name", e.Name))
	}
	switch e.Kind {
	case interp.TraceIn, interp.TraceOut:
		attrs = append(attrs, slog.Any("port", e.Port), slog.Int("bytes", len(e.Frame)))
	case interp.TraceCopy:
		attrs = append(attrs, slog.Any("port", e.Port))
	case interp.TraceRead, interp.TraceWrite:
		attrs = append(attrs, slog.Uint64("index", e.Index), slog.String("value", hex.EncodeToString(e.Value)))
	case interp.TraceCondition, interp.TraceTable:
		attrs = append(attrs, slog.Bool("hit", e.Hit))
	default: // nothing to add
	}
	if e.Action != "" {
		attrs = append(attrs, slog.String("action", e.Action))
	}
	if e.Entry != nil {
		attrs = append(attrs, slog.String("match", trace.Describe(e.Entry.Match)), slog.Any("priority", e.Entry.Priority))
	}
	t.log.LogAttrs(context.Background(), LevelTrace, traced[e.Kind], attrs...)
}
