package process

import (
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/pflag"

	"github.com/bifrost-rack/bifrost/p4switch/shared/loglimit"
	"github.com/bifrost-rack/bifrost/p4switch/shared/rotate"
	"github.com/bifrost-rack/bifrost/p4switch/softswitch"
)

// LogOptions are the flags of all daemons about what they log: the lowest level, and text or json.
type LogOptions struct {
	Level, Format string
	Trace         bool // --log-level trace is a level
	file          string
	size          int64
}

// Register adds the flags. The level may have a short flag.
func (o *LogOptions) Register(f *pflag.FlagSet, short string) {
	f.StringVarP(&o.Level, "log-level", short, "info", "lowest `LEVEL` of messages that are logged: "+o.levels())
	f.StringVar(&o.Format, "log-format", "text", "how messages are written: text, or json (one object on each line)")
	f.StringVar(&o.file, "log-file", "", "log to `FILE` instead of to standard error; older messages are in FILE"+rotate.Older)
	f.Int64Var(&o.size, "log-file-size", 16<<20, "how many `BYTES` the log file may have before it becomes the older file; 0 means no bound")
}

// levels lists the levels for people.
func (o *LogOptions) levels() string {
	if o.Trace {
		return "trace (every packet: tables, entries, actions; by the Go executor), debug, info, warn, error or off"
	}
	return "debug, info, warn, error or off"
}

var logLevels = map[string]slog.Level{
	"trace": softswitch.LevelTrace, "debug": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "error": slog.LevelError, "off": slog.LevelError + 100,
}

// Open returns the log. With a file all of the process's standard error goes there, the
// last words of one that panics, too.
func (o *LogOptions) Open() (*slog.Logger, error) {
	level, ok := logLevels[o.Level]
	if !ok || o.Level == "trace" && !o.Trace {
		return nil, fmt.Errorf("--log-level %s: choose %s", o.Level, o.levels())
	}
	options := &slog.HandlerOptions{Level: level, ReplaceAttr: nameTrace}
	file := &rotate.File{Path: o.file, Max: o.size, Opened: becomeStderr}
	if o.file != "" {
		if err := file.Open(); err != nil {
			return nil, fmt.Errorf("--log-file: %w", err)
		}
	}
	var w io.Writer = os.Stderr
	if o.file != "" {
		w = file
	}
	switch o.Format {
	case "text":
		return slog.New(loglimit.New(slog.NewTextHandler(w, options))), nil
	case "json":
		return slog.New(loglimit.New(slog.NewJSONHandler(w, options))), nil
	}
	return nil, fmt.Errorf("--log-format %s: choose text or json", o.Format)
}

// nameTrace names the level that slog does not know.
func nameTrace(_ []string, a slog.Attr) slog.Attr {
	if l, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey && l == softswitch.LevelTrace {
		a.Value = slog.StringValue("TRACE")
	}
	return a
}
