package softswitch

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/bifrost-rack/bifrost/p4switch/p4rt/p4info"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

// LoadProgram reads a device config, which is p4c's bmv2 JSON, and checks that
// it and the P4Info are of the same program: a controller that thinks of another
// one would have its values cut or misread. What the P4Info does not mention
// (p4c hides its own tables) is not compared. What only the P4Info mentions p4c has
// optimised away, unless the program has something of the kind that the P4Info
// does not know: then they are a pair by mistake. It can be neither written nor
// read.
//
// The program must not be changed, nor the device config: a later call with the same device config returns the same program.
func LoadProgram(deviceConfig []byte, info *p4info.Info) (*v1model.Program, error) {
	prog, err := latest.load(deviceConfig)
	if err != nil {
		return nil, err
	}
	for _, check := range []func(*p4info.Info, *v1model.Program) error{
		checkTables, checkProfiles, checkArrays, checkValueSets, checkDigests, checkHeaders,
	} {
		if err := check(info, prog); err != nil {
			return nil, fmt.Errorf("P4Info and program do not belong together: %w", err)
		}
	}
	return prog, nil
}

// latest is the program that this process has loaded last. To load Bifröst's own takes a fifth of a second, and a Gatekeeper
// that comes, an executor beside another one and each switch of a test load it again. Executors share it.
var latest loaded

// loaded is a program, and what it was loaded from. Its method may be called from several goroutines.
type loaded struct {
	mu           sync.Mutex
	deviceConfig []byte
	prog         *v1model.Program // nil before the first one
}

// load is v1model.Load, which it calls only for another device config than the last time.
func (l *loaded) load(deviceConfig []byte) (*v1model.Program, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.prog != nil && bytes.Equal(deviceConfig, l.deviceConfig) {
		return l.prog, nil
	}
	prog, err := v1model.Load(deviceConfig)
	if err == nil {
		l.deviceConfig, l.prog = deviceConfig, prog
	}
	return prog, err
}

func checkTables(info *p4info.Info, prog *v1model.Program) error {
	unknown := ""
	for _, t := range prog.Tables {
		// p4c's own have no block in their names.
		if info.TableByName(t.Name) == nil && strings.Contains(t.Name, ".") && len(info.TableOrder) > 0 {
			unknown = t.Name
		}
	}
	for _, t := range info.TableOrder {
		def := prog.Table(t.Name)
		if def == nil && unknown == "" {
			continue
		}
		if def == nil {
			return fmt.Errorf("table %q is not in the program, and the P4Info does not know its table %q", t.Name, unknown)
		}
		if len(def.Key) != len(t.Fields) {
			return fmt.Errorf("table %q has %d key fields in the P4Info, %d in the program", t.Name, len(t.Fields), len(def.Key))
		}
		for i, f := range t.Fields {
			if err := setWidth(f.Strings, def.Key[i].Field.Width()); err != nil {
				return fmt.Errorf("table %q: key field %q: %w", t.Name, f.Name, err)
			}
			if f.Width == 0 { // of a type that P4Info does not describe, such as error
				f.Width = def.Key[i].Field.Width()
				t.Fields[i].Width = f.Width
			}
			if k := def.Key[i]; k.Field.Width() != f.Width {
				return fmt.Errorf("table %q: key field %q has %d bits in the P4Info, %d in the program", t.Name, f.Name, f.Width, k.Field.Width())
			} else if k.Kind != kindOf[f.Kind] {
				return fmt.Errorf("table %q: key field %q is of another kind in the program", t.Name, f.Name)
			}
		}
		if (t.Profile != nil) != (def.Profile != nil) || t.Profile != nil && t.Profile.Name != def.Profile.Name {
			return fmt.Errorf("table %q has another action profile", t.Name)
		}
		if err := checkActions(info, t, def); err != nil {
			return fmt.Errorf("table %q: %w", t.Name, err)
		}
	}
	return nil
}

// kindOf maps P4Runtime's match kinds to those of p4c's JSON.
var kindOf = map[p4info.Kind]v1model.MatchKind{
	p4info.Exact: v1model.MatchExact, p4info.LPM: v1model.MatchLPM, p4info.Ternary: v1model.MatchTernary,
	p4info.Range: v1model.MatchRange, p4info.Optional: v1model.MatchTernary,
}

func checkActions(info *p4info.Info, t *p4info.Table, def *v1model.Table) error {
	for id := range t.Actions {
		a := info.Actions[id]
		i, ok := def.Action(a.Name)
		if !ok {
			return fmt.Errorf("action %q is not in the program", a.Name)
		}
		params := def.Actions[i].Params
		if len(params) != len(a.Params) {
			return fmt.Errorf("action %q has %d parameters in the P4Info, %d in the program", a.Name, len(a.Params), len(params))
		}
		for k, p := range a.Params {
			if err := setWidth(p.Strings, params[k].Width); err != nil {
				return fmt.Errorf("action %q: parameter %q: %w", a.Name, p.Name, err)
			}
			if p.Width == 0 {
				p.Width = params[k].Width
				a.Params[k].Width = p.Width
			}
			if params[k].Width != p.Width {
				return fmt.Errorf("action %q: parameter %q has %d bits in the P4Info, %d in the program", a.Name, p.Name, p.Width, params[k].Width)
			}
		}
	}
	return nil
}

func checkProfiles(info *p4info.Info, prog *v1model.Program) error {
	have := map[string]*v1model.ActionProfile{}
	for _, p := range prog.Profiles {
		have[p.Name] = p
	}
	used := map[*p4info.Profile]bool{}
	for _, t := range info.TableOrder {
		used[t.Profile] = true
	}
	for _, a := range info.ProfileOrder {
		if !used[a] { // p4c leaves it out
			continue
		}
		if p := have[a.Name]; p == nil || (p.Selector != nil) != a.Selector {
			return fmt.Errorf("action profile %q is not in the program, or of another kind", a.Name)
		}
	}
	return nil
}

// checkArrays compares counters, meters and registers.
func checkArrays(info *p4info.Info, prog *v1model.Program) error {
	sizes := map[string]int{}
	for _, c := range prog.Counters {
		sizes["counter "+c.Name] = c.Size
	}
	for _, m := range prog.Meters {
		sizes["meter "+m.Name] = m.Size
	}
	widths := map[string]int{}
	for _, r := range prog.Registers {
		sizes["register "+r.Name], widths[r.Name] = r.Size, r.Width
	}
	same := func(what, name string, size int64) error {
		if have, ok := sizes[what+" "+name]; !ok || int64(have) != size {
			return fmt.Errorf("%s %q is not in the program, or not of size %d", what, name, size)
		}
		return nil
	}
	for _, c := range info.CounterOrder {
		if err := same("counter", c.Name, c.Size); err != nil {
			return err
		}
	}
	for _, m := range info.MeterOrder {
		if err := same("meter", m.Name, m.Size); err != nil {
			return err
		}
	}
	for _, r := range info.RegisterOrder {
		if err := same("register", r.Name, r.Size); err != nil {
			return err
		}
		if err := setWidth(r.Cell.Strings(), widths[r.Name]); err != nil {
			return fmt.Errorf("register %q: %w", r.Name, err)
		}
		if r.Cell.Strings() == nil && widths[r.Name] != r.Cell.Width() {
			return fmt.Errorf("register %q has cells of %d bits in the P4Info, %d in the program", r.Name, r.Cell.Width(), widths[r.Name])
		}
	}
	return nil
}

func checkValueSets(info *p4info.Info, prog *v1model.Program) error {
	widths := map[string]int{}
	for _, v := range prog.ValueSets {
		widths[v.Name] = v.Width
	}
	for _, v := range info.ValueSetOrder {
		width := 0
		for _, f := range v.Fields {
			if f.Strings != nil && f.Width == 0 {
				return fmt.Errorf("value set %q: field %q is of a type that is translated to strings, which value sets do not support", v.Name, f.Name)
			}
			width += f.Width
		}
		if widths[v.Name] != width {
			return fmt.Errorf("value set %q is not in the program, or not of %d bits", v.Name, width)
		}
	}
	return nil
}

func checkDigests(info *p4info.Info, prog *v1model.Program) error {
	fields := map[string]int{}
	for _, d := range prog.Digests {
		fields[d.Name] = len(d.Elements)
	}
	for _, d := range info.DigestOrder {
		if n, ok := fields[d.Name]; !ok || n != d.Sample.Leaves() {
			// p4c names the two differently if the fields have no struct type.
			return fmt.Errorf("digest %q is not in the program, or not of %d fields (its fields need a struct type)", d.Name, d.Sample.Leaves())
		}
	}
	return nil
}

// setWidth tells a type that is translated to strings how wide its numbers are; nil is no such type.
func setWidth(s *p4info.Strings, width int) error {
	if s == nil {
		return nil
	}
	return s.SetWidth(width)
}

// checkHeaders finds the widths of controller headers with fields that are translated to strings, of which the P4Info has no
// widths: the program's header has the same fields. A program may have none, as PINS' have that are not for bmv2.
func checkHeaders(info *p4info.Info, prog *v1model.Program) error {
	for name, h := range map[string]*p4info.Header{"packet_in": info.PacketIn, "packet_out": info.PacketOut} {
		names, open := h.Fields()
		if !open {
			continue
		}
		i := slices.IndexFunc(prog.Headers, func(have *v1model.Header) bool {
			return !have.Metadata && slices.EqualFunc(have.Type.Fields, names, func(f v1model.Field, name string) bool { return f.Name == name })
		})
		widths := h.Widths()
		for k := range widths {
			if i >= 0 {
				widths[k] = prog.Headers[i].Type.Fields[k].Width
			}
			if widths[k] == 0 && h.IsPort(k) {
				widths[k] = prog.Std.EgressSpec.Width()
			}
			if widths[k] == 0 {
				return fmt.Errorf("%s: the program has nothing of the type of field %q", name, names[k])
			}
		}
		if err := h.SetWidths(widths); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}
