package stf

import (
	"fmt"
	"math/big"
	"strconv"
	"strings"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/v1model"
)

func (r *Runner) add(rest string) error {
	name, rest, _ := strings.Cut(rest, " ")
	t, err := r.table(name)
	if err != nil {
		return err
	}
	rest, handle, _ := strings.Cut(rest, "=")
	open := strings.Index(rest, "(")
	if open < 0 {
		return fmt.Errorf("no action in %q", rest)
	}
	keys := strings.Fields(rest[:open])
	if len(keys) == 0 {
		return fmt.Errorf("no action in %q", rest)
	}
	e := datapath.Entry{Table: t.Name}
	if e.Action, err = action(t, keys[len(keys)-1], rest[open:]); err != nil {
		return err
	}
	keys = keys[:len(keys)-1]
	if len(keys) > 0 {
		if n, err := strconv.Atoi(keys[0]); err == nil {
			e.Priority = int32(n)
			keys = keys[1:]
		}
	}
	if e.Match, err = match(t, keys); err != nil {
		return err
	}
	if handle = strings.TrimPrefix(strings.TrimSpace(handle), "$"); handle != "" {
		r.handles[handle] = e
	}
	return r.sw.Apply(datapath.Insert, e)
}

func (r *Runner) setDefault(rest string) error {
	name, rest, _ := strings.Cut(rest, " ")
	t, err := r.table(name)
	if err != nil {
		return err
	}
	open := strings.Index(rest, "(")
	if open < 0 {
		return fmt.Errorf("no action in %q", rest)
	}
	a, err := action(t, strings.TrimSpace(rest[:open]), rest[open:])
	if err != nil {
		return err
	}
	return r.sw.SetDefault(t.Name, a)
}

// table finds a table by its name or its name's end.
func (r *Runner) table(name string) (*v1model.Table, error) {
	if t := r.prog.Table(name); t != nil {
		return t, nil
	}
	for _, t := range r.prog.Tables {
		if name != "" && strings.HasSuffix(t.Name, name) {
			return t, nil
		}
	}
	return nil, fmt.Errorf("no table %q", name)
}

// action reads NAME(PARAM:VALUE, …).
func action(t *v1model.Table, name, args string) (*datapath.Action, error) {
	var def *v1model.Action
	for _, a := range t.Actions {
		if a.Name == name || def == nil && strings.HasSuffix(a.Name, name) {
			def = a
		}
	}
	if def == nil {
		return nil, fmt.Errorf("no action %q in table %q", name, t.Name)
	}
	a := &datapath.Action{Name: def.Name, Params: make([][]byte, len(def.Params))}
	args = strings.Trim(args, "() ")
	for _, arg := range strings.Split(args, ",") {
		if strings.TrimSpace(arg) == "" {
			continue
		}
		param, value, _ := strings.Cut(arg, ":")
		for i, p := range def.Params {
			if p.Name != strings.TrimSpace(param) {
				continue
			}
			v, err := number(strings.TrimSpace(value))
			if err != nil {
				return nil, err
			}
			a.Params[i] = fill(v, p.Width)
		}
	}
	for i, b := range a.Params {
		if b == nil {
			return nil, fmt.Errorf("action %q without %q", def.Name, def.Params[i].Name)
		}
	}
	return a, nil
}

// match reads KEY:VALUE words; fields left out match anything, exact ones zero.
func match(t *v1model.Table, words []string) ([]datapath.Match, error) {
	ms := make([]datapath.Match, len(t.Key))
	for i, k := range t.Key {
		ms[i].Wildcard = k.Kind != v1model.MatchExact
		ms[i].Value = make([]byte, k.Field.Bytes())
	}
	for _, w := range words {
		name, value, _ := strings.Cut(w, ":")
		i := keyIndex(t, name)
		if i < 0 {
			return nil, fmt.Errorf("no key %q in table %q", name, t.Name)
		}
		var err error
		if ms[i], err = field(&t.Key[i], value); err != nil {
			return nil, fmt.Errorf("key %q: %w", name, err)
		}
	}
	return ms, nil
}

// keyIndex finds a key by name or its end; NAME$0 stands for NAME[0], and
// validity has several names.
func keyIndex(t *v1model.Table, name string) int {
	if before, after, ok := strings.Cut(name, "$"); ok {
		if digits := len(after) - len(strings.TrimLeft(after, "0123456789")); digits > 0 {
			name = before + "[" + after[:digits] + "]" + after[digits:]
		}
	}
	names := []string{name, name + "$", name + ".$valid$", strings.TrimSuffix(name, "valid") + "$valid$"}
	for _, want := range names {
		for i, k := range t.Key {
			if k.Name == want {
				return i
			}
		}
	}
	for _, want := range names {
		for i, k := range t.Key {
			if strings.HasSuffix(k.Name, "."+want) {
				return i
			}
		}
	}
	return -1
}

// field reads a key field's value.
func field(k *v1model.Key, value string) (datapath.Match, error) {
	width := k.Field.Width()
	var m datapath.Match
	text, length, prefix := strings.Cut(value, "/")
	low, high, isRange := strings.Cut(text, "..")
	v, err := number(strings.ReplaceAll(low, "*", "0"))
	if err != nil {
		return m, err
	}
	m.Value = fill(v, width)
	switch k.Kind {
	case v1model.MatchTernary:
		mask, err := number(maskText(text))
		if err != nil {
			return m, err
		}
		m.Mask = fill(mask, width)
	case v1model.MatchLPM:
		m.PrefixLen = len(strings.ReplaceAll(strings.TrimPrefix(text, "0x"), "*", "")) * 4
		if prefix {
			m.PrefixLen, err = strconv.Atoi(length)
		}
		m.PrefixLen = min(m.PrefixLen, width)
	case v1model.MatchRange:
		m.High = m.Value
		if isRange {
			if v, err = number(high); err == nil {
				m.High = fill(v, width)
			}
		}
	default: // exact: the value is all
	}
	return m, err
}

// maskText has all bits set that a value's digits say something about.
func maskText(v string) string {
	digit := map[string]string{"0x": "F", "0b": "1", "0o": "7"}[v[:min(2, len(v))]]
	if digit == "" {
		return "0x" + strings.Repeat("F", 64)
	}
	var b strings.Builder
	b.WriteString(v[:2])
	for _, c := range v[2:] {
		if c == '*' {
			b.WriteByte('0')
		} else {
			b.WriteString(digit)
		}
	}
	return b.String()
}

func number(s string) (*big.Int, error) {
	v, ok := new(big.Int).SetString(s, 0)
	if !ok {
		return nil, fmt.Errorf("%q is no number", s)
	}
	return v, nil
}

// fill is a number's low bits, in as many bytes as they need.
func fill(v *big.Int, width int) []byte {
	one := big.NewInt(1)
	mask := new(big.Int).Lsh(one, uint(width))
	mask.Sub(mask, one)
	return mask.And(mask, v).FillBytes(make([]byte, (width+7)/8))
}
