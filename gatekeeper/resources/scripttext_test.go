package resources

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/fault"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// print shows what an operation leads to.
func (k *rack) print(actions []Action, err error) {
	if err != nil {
		fmt.Fprintf(k.out, "refused (%s): %s\n", fault.CodeOf(err), shorten(err.Error()))
	}
	for _, a := range actions {
		fmt.Fprintln(k.out, actionText(a))
	}
}

func actionText(a Action) string {
	switch a := a.(type) {
	case BladeDown:
		return fmt.Sprintf("blade down: %s%s", a.Blade.Name, because(a.Blade.Cause))
	case EndNode:
		return fmt.Sprintf("end node: %s.%d %s, crashed %t%s", nodeText(a.Node.Address), a.Node.Incarnation, a.Node.Name, a.Node.Crashed, because(a.Node.Cause))
	case StartNode:
		s := fmt.Sprintf("start: %s on %s: %s", a.Instance, a.Blade, strings.Join(a.Args, " "))
		if a.Address.IsValid() {
			s += fmt.Sprintf(" as %s after %d", nodeText(a.Address), a.After)
		}
		if a.Heir {
			s += ", an heir"
		}
		return s
	case GiveUp:
		return "give up: " + nodeText(a.Node)
	case EmptyNode:
		return fmt.Sprintf("empty: %s.%d %s on %s, moves %t", nodeText(a.Node.Address), a.Node.Incarnation, a.Node.Name, a.Node.Blade, a.Moves)
	case StopNode:
		return fmt.Sprintf("stop: %s on %s within %v", a.Instance, a.Blade, a.Grace)
	case Short:
		return fmt.Sprintf("short: %s/%s lacks blades for %d nodes, %d spares", a.App, a.Program, a.Nodes, a.Spares)
	case ProgramFailed:
		return fmt.Sprintf("failed: %s on %s, %d in a row%s", a.Instance, a.Blade, a.Failures, because(a.Cause))
	case RolledOut:
		return fmt.Sprintf("rolled out: %s, revision %d", a.App, a.Revision)
	case RolledBack:
		return fmt.Sprintf("rolled back: %s, revision %d, as %d was%s", a.App, a.Revision, a.Former, because(a.Cause))
	case Drained:
		return "drained: " + a.Blade
	}
	return fmt.Sprintf("%T", a)
}

func because(cause string) string {
	if cause == "" {
		return ""
	}
	return " (" + shorten(cause) + ")"
}

func nodeOf(s string) netip.Addr {
	n, _ := strconv.Atoi(strings.TrimPrefix(s, "n"))
	return rackaddr.Node(uint64(n))
}

var address = regexp.MustCompile(`fd00:b1f0:0:([12])::[0-9a-f:]+`)

func nodeText(a netip.Addr) string { return shorten(a.String()) }

// shorten writes b1 and n1 for the addresses of blades and nodes.
func shorten(s string) string {
	return address.ReplaceAllStringFunc(s, func(a string) string {
		b := netip.MustParseAddr(a).As16()
		return fmt.Sprintf("%c%d", "?bn"[b[7]], binary.BigEndian.Uint64(b[8:]))
	})
}

// options are a command's words, those with = apart.
type options struct {
	words, args []string
	keys        map[string]string
}

func parseOptions(words []string) options {
	o := options{words: words, keys: map[string]string{}}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			o.keys[k] = v
		} else {
			o.args = append(o.args, w)
		}
	}
	return o
}

func (o options) arg(i int) string {
	if i < len(o.args) {
		return o.args[i]
	}
	return ""
}

func (o options) flag(name string) bool { return slices.Contains(o.args, name) }

func (o options) text(key, otherwise string) string {
	if v, ok := o.keys[key]; ok {
		return v
	}
	return otherwise
}

func (o options) num(key string, otherwise uint64) uint64 {
	if v, err := strconv.ParseUint(o.keys[key], 10, 64); err == nil {
		return v
	}
	return otherwise
}

func (o options) list(key string) []string {
	if o.keys[key] == "" {
		return nil
	}
	return strings.Split(o.keys[key], ",")
}

func split(words []string, at string) (parts [][]string) {
	for {
		i := slices.Index(words, at)
		if i < 0 {
			return append(parts, words)
		}
		parts, words = append(parts, words[:i]), words[i+1:]
	}
}
