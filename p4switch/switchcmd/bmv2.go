// Package switchcmd has the commands of the software switch, and of those who speak to one: what `bifrost switch` and bifrost-switch are.
package switchcmd

import (
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/v1model"
	"github.com/spf13/pflag"
)

// bmv2Program is the name under which this binary is the switch alone, so that
// scripts made for bmv2 find it: ln -s bifrost simple_switch_grpc.
const bmv2Program = "simple_switch_grpc"

// bmv2Address is where bmv2 serves P4Runtime by default.
const bmv2Address = "0.0.0.0:9559"

// CalledAs gives the arguments of the command tree, by how the binary was called. Under
// bmv2's name the switch serves TCP without TLS and is device 0, as bmv2 is: scripts made
// for bmv2 name such an address and another device, or none.
func CalledAs(name string, args []string) []string {
	if strings.HasSuffix(name, "/"+bmv2Program) || name == bmv2Program {
		return append([]string{"switch", "--grpc-server-insecure", "--grpc-server-addr", bmv2Address, "--device-id", "0"}, args...)
	}
	return args
}

// An ignored flag is one of simple_switch_grpc's that has no meaning here. Scripts
// may give it; the log then says why nothing comes of it.
type ignored struct {
	name  string
	value bool // it takes one
	why   string
}

const (
	noThrift  = "there is no Thrift server: use P4Runtime"
	noNanomsg = "there is no nanomsg: use --log-level trace, or P4Runtime for notifications"
	noLimit   = "there is no such limit"
	rotation  = "a log file is written through and never rotated: use logrotate"
)

var ignoredFlags = []ignored{
	{"thrift-port", true, noThrift},
	{"nanolog", true, noNanomsg},
	{"notifications-addr", true, noNanomsg},
	{"packet-in", true, "packets come from interfaces"},
	{"use-files", true, "packets come from interfaces: replay a file with tcpreplay, capture with --pcap"},
	{"dp-grpc-server-addr", true, "packets come from interfaces"},
	{"debugger", false, "there is no debugger: use --log-level trace"},
	{"debugger-addr", true, "there is no debugger: use --log-level trace"},
	{"restore-state", true, "there are no state files: --keep NAME keeps all state"},
	{"dump-packet-data", true, "packets are not dumped to the log: use --pcap"},
	{"log-flush", false, rotation},
	{"log-file-max-size", true, rotation},
	{"log-file-max-files", true, rotation},
	{"max-port-count", true, noLimit},
	{"max-mc-groups", true, noLimit},
	{"max-l1-entries", true, noLimit},
	{"max-l2-entries", true, noLimit},
	{"priority-queues", true, "there is one queue: that of the interface"},
	{"disable-swap", false, "programs are replaced through P4Runtime, always"},
	{"enable-swap", false, "programs are replaced through P4Runtime, always"},
}

// dropPort is the one drop port that there is; bmv2 lets one choose.
const dropPort = "511"

// registerBMv2 adds the flags of simple_switch_grpc that are not ours as well.
// They are left out of the help, which names them in a sentence.
func (o *switchOptions) registerBMv2(f *pflag.FlagSet) {
	for _, i := range ignoredFlags {
		if i.value {
			f.String(i.name, "", "ignored: "+i.why)
		} else {
			f.Bool(i.name, false, "ignored: "+i.why)
		}
		_ = f.MarkHidden(i.name) // it exists
	}
	f.String("drop-port", dropPort, "ignored: port 511 is the one that drops")
	f.BoolVarP(&o.version, "version", "v", false, "print the version and end")
	f.BoolVar(&o.jsonVersion, "json-version", false, "print the newest version of bmv2's JSON format that is understood, and end")
	for _, name := range []string{"drop-port", "version", "json-version"} {
		_ = f.MarkHidden(name)
	}
}

// warnIgnored says which flags were given for nothing.
func warnIgnored(f *pflag.FlagSet, log *slog.Logger) {
	for _, i := range ignoredFlags {
		if f.Changed(i.name) {
			log.Warn("flag ignored", "flag", "--"+i.name, "because", i.why)
		}
	}
	if p := f.Lookup("drop-port"); p.Changed && p.Value.String() != dropPort {
		log.Warn("flag ignored", "flag", "--drop-port", "because", "port 511 is the one that drops")
	}
}

// ignoredNames lists them for the help, in lines of a terminal's width.
func ignoredNames() string {
	names := []string{"--drop-port (but for 511)"}
	for _, i := range ignoredFlags {
		names = append(names, "--"+i.name)
	}
	slices.Sort(names)
	var b strings.Builder
	column := 0
	for i, n := range names {
		if i > 0 {
			b.WriteByte(',')
			if column += len(n) + 2; column > 78 {
				b.WriteByte('\n')
				column = len(n)
			} else {
				b.WriteByte(' ')
			}
		} else {
			column = len(n)
		}
		b.WriteString(n)
	}
	return b.String()
}

// arguments sorts what is not a flag: the program and, as bmv2 takes it, the
// directory behind --pcap without an equals sign.
func (o *switchOptions) arguments(args []string) error {
	if o.pcap != "" {
		for i, a := range args {
			if st, err := os.Stat(a); err == nil && st.IsDir() {
				o.pcap = a
				args = slices.Delete(slices.Clone(args), i, i+1)
				break
			}
		}
	}
	if len(args) > 1 {
		return fmt.Errorf("one program at most, not %s", strings.Join(args, " and "))
	}
	if len(args) == 1 {
		o.program = args[0]
	}
	return nil
}

// versions prints what --version and --json-version ask for.
func (o *switchOptions) versions(say func(...any)) bool {
	switch {
	case o.version:
		say(o.build)
	case o.jsonVersion:
		say(v1model.Format)
	default:
		return false
	}
	return true
}
