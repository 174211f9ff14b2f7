package config

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/pairing"
	"github.com/bifrost-rack/bifrost/internal/yamlfile"
)

// Error is one mistake in a rack's description: where it is, what is wrong and
// what to do about it. Several are joined; errors.As finds the first.
type Error = yamlfile.Error

// Names become parts of namespace names: a rack's has no dash, so that the
// rack of a namespace is never in doubt.
var (
	rackName  = regexp.MustCompile(`^[a-z][a-z0-9]{0,15}$`)
	bladeName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,31}$`)
	envName   = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

// reserved names belong to the rack's own processes.
var reserved = map[string]bool{"switch": true, "gatekeeper": true}

// ValidName reports whether name can name a rack. What cannot is also no path
// element to build file names from.
func ValidName(name string) bool { return rackName.MatchString(name) }

// Validate reports everything that is wrong with c; the errors are of type
// *Error, joined.
func (c *Config) Validate() error { return errors.Join(toErrors(c.problems())...) }

func toErrors(ps []*Error) []error {
	errs := make([]error, len(ps))
	for i, p := range ps {
		errs[i] = p
	}
	return errs
}

// checker collects problems.
type checker struct{ found []*Error }

func (k *checker) check(ok bool, path, msg, remedy string) {
	if !ok {
		k.found = append(k.found, &Error{Path: path, Msg: msg, Remedy: remedy})
	}
}

func (c *Config) problems() []*Error {
	k := &checker{}
	k.check(ValidName(c.Name), "name", fmt.Sprintf("%q cannot name a rack", c.Name),
		"use 1 to 16 lower-case letters and digits, a letter first")
	k.check(c.Switch == Bifrost || c.Switch == BMv2, "switch", fmt.Sprintf("unknown switch %q", c.Switch),
		"use bifrost or bmv2")
	k.check(c.MTU >= MinMTU && c.MTU <= MaxMTU, "mtu", fmt.Sprintf("%d bytes is out of range", c.MTU),
		fmt.Sprintf("use %d to %d", MinMTU, MaxMTU))
	k.check(c.Heartbeat >= MinHeartbeat && c.Heartbeat <= MaxHeartbeat, "heartbeat", fmt.Sprintf("%v is out of range", c.Heartbeat),
		fmt.Sprintf("use %v to %v", MinHeartbeat, MaxHeartbeat))
	k.check(c.DSMPrefix != 0, "dsm_prefix", "0 would make the loopback address a global pointer", "use 1 to 255")
	if a := c.Admin.Address; a != "" {
		at, err := netip.ParseAddrPort(a)
		k.check(err == nil && at.Addr().IsLoopback() && at.Port() != 0, "admin address", fmt.Sprintf("%q is no loopback address with a port", a),
			"use e.g. 127.0.0.1:8045; from other machines, ssh -L reaches it")
	}
	k.check(c.Admin.Address != "" || c.Admin.TokenFile == "", "admin token file", "the admin API's Unix socket needs no token", "add the admin address")
	names := map[string]string{}
	kinds := k.blades(c.Blades, names)
	k.machines(c.Machines, kinds)
	k.programs(c.Programs, names, kinds)
	return k.found
}

// blades checks the blades and returns each one's kind by name; names learns
// where every name is used.
func (k *checker) blades(blades []Blade, names map[string]string) map[string]string {
	kinds := map[string]string{}
	memories := 0
	k.check(len(blades) > 0, "blades", "the rack has none", "list at least one blade")
	k.check(len(blades) <= MaxBlades, "blades", fmt.Sprintf("%d blades are too many", len(blades)),
		fmt.Sprintf("a switch has ports for %d", MaxBlades))
	for i, b := range blades {
		path := fmt.Sprintf("blades[%d]", i)
		k.name(b.Name, path+".name", names)
		kinds[b.Name] = b.Kind
		switch b.Kind {
		case control.Compute:
			k.check(b.Nodes >= 1 && b.Nodes <= MaxNodes, path+".nodes", fmt.Sprintf("%d is out of range", b.Nodes),
				fmt.Sprintf("use 1 to %d", MaxNodes))
			k.check(b.Capacity == 0, path+".capacity", "a compute blade has none", "remove it, or set kind: memory")
		case control.Memory:
			memories++
			k.check(b.Capacity >= MinCapacity && b.Capacity <= MaxCapacity, path+".capacity",
				fmt.Sprintf("%d bytes is out of range", b.Capacity), "use 1MiB to 1TiB")
			k.check(b.Nodes == 0, path+".nodes", "a memory blade runs none", "remove it, or set kind: compute")
		default:
			k.check(false, path+".kind", fmt.Sprintf("unknown kind %q", b.Kind), "use compute or memory")
		}
	}
	k.check(memories <= MaxMemoryBlades, "blades", fmt.Sprintf("%d memory blades are too many", memories),
		fmt.Sprintf("a global pointer tells %d apart", MaxMemoryBlades))
	return kinds
}

// machines checks which blades serve a memory machine together.
func (k *checker) machines(machines [][]string, kinds map[string]string) {
	served := map[string]string{} // by blade: where it is named first
	for i, blades := range machines {
		path := fmt.Sprintf("machines[%d]", i)
		k.check(len(blades) >= 1 && len(blades) <= pairing.MaxBlades, path, fmt.Sprintf("it has %d blades", len(blades)),
			"name one memory blade, or two of which each holds a copy, e.g. [m1, m2]")
		for j, b := range blades {
			at := fmt.Sprintf("%s[%d]", path, j)
			kind, known := kinds[b]
			k.check(known, at, fmt.Sprintf("there is no blade %q", b), "name a memory blade listed under blades")
			k.check(!known || kind == control.Memory, at, fmt.Sprintf("%q is not a memory blade", b), "name a blade of kind memory")
			first, twice := served[b]
			k.check(!twice, at, fmt.Sprintf("blade %q is named already by %s", b, first), "a blade serves one machine: name it once")
			if !twice {
				served[b] = at
			}
		}
	}
}

func (k *checker) programs(programs []Program, names, kinds map[string]string) {
	k.check(len(programs) <= MaxPrograms, "programs", fmt.Sprintf("%d programs are too many", len(programs)),
		fmt.Sprintf("at most %d start with the rack", MaxPrograms))
	serving := 0
	for i, p := range programs {
		path := fmt.Sprintf("programs[%d]", i)
		k.name(p.Name, path+".name", names)
		kind, known := kinds[p.Blade]
		k.check(known, path+".blade", fmt.Sprintf("there is no blade %q", p.Blade), "name a compute blade listed under blades")
		k.check(!known || kind == control.Compute, path+".blade", fmt.Sprintf("%q is not a compute blade", p.Blade),
			"programs run on compute blades")
		k.check(len(p.Command) > 0 && p.Command[0] != "", path+".command", "it is empty",
			"write the program and its arguments, e.g. [arrays, server]")
		for _, arg := range p.Command {
			k.check(!strings.ContainsRune(arg, 0), path+".command", "an argument has a zero byte", "remove it")
		}
		for key, value := range p.Env {
			k.check(envName.MatchString(key) && !strings.ContainsRune(value, 0), path+".env",
				fmt.Sprintf("%q cannot be an environment variable", key), "use letters, digits and _")
		}
		if len(p.Services) > 0 {
			serving++
		}
		k.serves(p, path, kinds)
	}
	k.check(serving <= MaxServing, "programs", fmt.Sprintf("%d of them serve", serving), fmt.Sprintf("at most %d do", MaxServing))
}

// serves checks what is about programs that serve.
func (k *checker) serves(p Program, path string, kinds map[string]string) {
	if len(p.Services) == 0 {
		k.check(!p.Stateful, path+".stateful", "the program has no services", "list them under services")
		k.check(len(p.Spares) == 0, path+".spares", "only programs that serve go on elsewhere", "list what it exports under services")
		return
	}
	k.check(p.Ready == "", path+".ready", "a program that serves is ready when it does", "remove it")
	seen := map[string]bool{}
	for _, s := range p.Services {
		k.check(s != "" && !seen[s], path+".services", fmt.Sprintf("%q is empty or listed twice", s), "list each service once")
		seen[s] = true
	}
	for _, b := range p.Spares {
		k.check(kinds[b] == control.Compute && b != p.Blade, path+".spares", fmt.Sprintf("%q is no other compute blade", b),
			"name compute blades listed under blades")
	}
}

// name checks one blade's or program's name; both name processes of the rack.
func (k *checker) name(name, path string, names map[string]string) {
	k.check(bladeName.MatchString(name), path, fmt.Sprintf("%q is not a usable name", name),
		"use 1 to 32 lower-case letters, digits and dashes, a letter first")
	k.check(!reserved[name], path, fmt.Sprintf("%q is the rack's own", name), "choose another name")
	first, taken := names[name]
	k.check(!taken, path, fmt.Sprintf("%q is taken by %s", name, first), "give every blade and program its own name")
	if !taken {
		names[name] = path
	}
}
