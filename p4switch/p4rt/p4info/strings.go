package p4info

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"text/scanner"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// MaxString is how many bytes a string of a controller may have.
const MaxString = 1 << 10

// maxUnused is how many strings that no entry has are remembered for a type.
const maxUnused = 1 << 16

// Strings is a type that is translated to strings (section "User-defined Types"): controllers have
// strings where the data plane has numbers. A decimal number stands for itself, and a string that
// @p4runtime_translation_mappings names for the number that it names. Any other string gets the largest
// number that is free, and keeps it while an entry has the string. Then the number is free again once
// all others have been given out. Its methods may be called concurrently.
type Strings struct {
	name string
	turn *atomic.Uint64 // of the program: counts Updates

	mu      sync.Mutex
	port    bool // the type of a packet's ingress_port or egress_port
	width   int  // bits of the data plane's numbers; 0 if nothing in the program has the type
	strings map[string]*translated
	numbers map[uint64]*translated
	next    uint64 // numbers that are free are looked for from here downwards
	unused  int    // strings without uses that the program does not fix
}

// translated is a string with its number.
type translated struct {
	text   string
	number uint64
	fixed  bool   // by the program
	uses   int    // entries, members and the like that have it
	turn   uint64 // the update that has named it last
}

// errFull means that all numbers of a type stand for strings.
var errFull = errors.New("all numbers are taken")

// SetWidth tells how many bits the data plane's numbers have; of more than 64, no string needs them. It fails if they have
// another width elsewhere in the program.
func (s *Strings) SetWidth(width int) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case width < 1 || width > MaxWidth:
		return fmt.Errorf("type %q is translated to strings and has %d bits in the program; 1 to %d are supported", s.name, width, MaxWidth)
	case s.width == width:
		return nil
	case s.width != 0:
		return fmt.Errorf("type %q has %d bits in the program, and %d elsewhere in it", s.name, width, s.width)
	}
	s.width, s.next = width, s.max(width)
	for _, t := range s.numbers {
		if t.number > s.next {
			return fmt.Errorf("type %q has %d bits in the program, and @p4runtime_translation_mappings has the number %d", s.name, width, t.number)
		}
	}
	return nil
}

// Width is what SetWidth was told, 0 before.
func (s *Strings) Width() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.width
}

func (s *Strings) max(width int) uint64 { return math.MaxUint64 >> (64 - min(width, 64)) }

// Bytes is the number of a string, big-endian and as wide as the type. It fails with INVALID_ARGUMENT if the
// string can have none, with RESOURCE_EXHAUSTED if no number is left.
func (s *Strings) Bytes(text []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, err := s.translate(string(text))
	if err != nil {
		return nil, err
	}
	out := make([]byte, byteLen(s.width))
	for i, n := len(out)-1, t.number; n > 0; i, n = i-1, n>>8 {
		out[i] = byte(n)
	}
	return out, nil
}

func (s *Strings) translate(text string) (*translated, error) {
	if t := s.strings[text]; t != nil {
		t.turn = s.turn.Load()
		return t, nil
	}
	switch {
	case s.width == 0:
		return nil, status.Errorf(codes.InvalidArgument, "type %q is not in the program", s.name)
	case len(text) > MaxString:
		return nil, status.Errorf(codes.InvalidArgument, "string of %d bytes for type %q; %d is the most", len(text), s.name, MaxString)
	case s.unused >= maxUnused:
		if s.forget(); s.unused >= maxUnused {
			return nil, status.Errorf(codes.ResourceExhausted, "more than %d strings of type %q that no entry has", maxUnused, s.name)
		}
	}
	n, err := strconv.ParseUint(text, 10, 64)
	switch {
	case err == nil && strconv.FormatUint(n, 10) == text && n <= s.max(s.width):
		if old := s.numbers[n]; old != nil && !s.remove(old) {
			return nil, status.Errorf(codes.ResourceExhausted, "number %d of type %q stands for %q: write a name in its place, or delete what has %q first", n, s.name, old.text, old.text)
		}
	case s.port:
		return nil, status.Errorf(codes.InvalidArgument, "%q is no port: a port of type %q is its number, as a string of decimal digits, at most %d", text, s.name, s.max(s.width))
	default:
		if n, err = s.free(); err != nil {
			return nil, status.Errorf(codes.ResourceExhausted, "no number is left for %q: type %q has %d bits, and entries have all of its strings", text, s.name, s.width)
		}
	}
	t := &translated{text: text, number: n, turn: s.turn.Load()}
	s.strings[text], s.numbers[n] = t, t
	s.unused++
	return t, nil
}

// free finds a number that stands for no string. 0 is never given out: programs mean "none" by it.
func (s *Strings) free() (uint64, error) {
	for range 2 {
		for ; s.next > 0; s.next-- {
			if s.numbers[s.next] == nil {
				return s.next, nil
			}
		}
		s.forget()
	}
	return 0, errFull
}

// forget removes all strings that nothing has, and begins to look for numbers from the top.
func (s *Strings) forget() {
	for _, t := range s.strings {
		s.remove(t)
	}
	s.next = s.max(s.width)
}

// remove removes a string, unless something has it, or the update that is being made has named it.
func (s *Strings) remove(t *translated) bool {
	if t.fixed || t.uses > 0 || t.turn == s.turn.Load() {
		return false
	}
	delete(s.strings, t.text)
	delete(s.numbers, t.number)
	s.unused--
	return true
}

// Text is the string of a number of the data plane, big-endian: the decimal number if no controller has named it.
func (s *Strings) Text(number []byte) []byte {
	n := new(big.Int).SetBytes(number)
	s.mu.Lock()
	defer s.mu.Unlock()
	if t := s.numbers[n.Uint64()]; t != nil && n.IsUint64() {
		return []byte(t.text)
	}
	return n.Append(nil, 10)
}

// use counts up or down what has a string.
func (s *Strings) use(text []byte, by int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.strings[string(text)]
	if t == nil || t.fixed {
		return
	}
	was := t.uses
	switch t.uses += by; {
	case was == 0 && t.uses > 0:
		s.unused--
	case was > 0 && t.uses == 0:
		s.unused++
	}
}

// Update begins an update: what it names keeps its number until the next one at least, and longer if Use
// counts it.
func (in *Info) Update() { in.turn.Add(1) }

// Use counts by more uses of the strings in an entry: of those in a match and in an action of any form. Strings without uses may lose their numbers.
func (in *Info) Use(by int, fields []Field, match []*p4v1.FieldMatch, action *p4v1.TableAction) {
	if len(in.strings) == 0 {
		return
	}
	for _, m := range match {
		i := fieldIndex(fields, m.GetFieldId())
		if i < 0 || fields[i].Strings == nil {
			continue
		}
		if m.GetOptional() != nil {
			fields[i].Strings.use(m.GetOptional().GetValue(), by)
		} else {
			fields[i].Strings.use(m.GetExact().GetValue(), by)
		}
	}
	in.UseAction(by, action.GetAction())
	for _, a := range action.GetActionProfileActionSet().GetActionProfileActions() {
		in.UseAction(by, a.GetAction())
	}
}

// UseAction is Use for an action.
func (in *Info) UseAction(by int, m *p4v1.Action) {
	a := in.Actions[m.GetActionId()]
	if a == nil || len(in.strings) == 0 {
		return
	}
	for _, pm := range m.GetParams() {
		if i := a.paramIndex(pm.GetParamId()); i >= 0 && a.Params[i].Strings != nil {
			a.Params[i].Strings.use(pm.GetValue(), by)
		}
	}
}

// Ports is the type by which controllers name ports; nil if they have numbers.
func (in *Info) Ports() *Strings {
	for _, s := range in.strings {
		if s.port {
			return s
		}
	}
	return nil
}

// stringType finds the type of a name if it is translated to strings; nil if it is not.
func (p *parser) stringType(name string) (*Strings, error) {
	spec := p.msg.GetTypeInfo().GetNewTypes()[name]
	if name == "" || spec.GetTranslatedType().GetSdnString() == nil {
		return nil, nil //nolint:nilnil // documented
	}
	if s := p.info.strings[name]; s != nil {
		return s, nil
	}
	s := &Strings{name: name, turn: &p.info.turn, strings: map[string]*translated{}, numbers: map[uint64]*translated{}}
	fixed, err := mappings(spec.GetAnnotations())
	if err != nil {
		return nil, fmt.Errorf("type %q: %w", name, err)
	}
	for _, t := range fixed {
		if s.strings[t.text] != nil || s.numbers[t.number] != nil {
			return nil, fmt.Errorf("type %q: %s has %q or %d twice", name, mappingsName, t.text, t.number)
		}
		s.strings[t.text], s.numbers[t.number] = t, t
	}
	p.info.strings[name] = s
	return s, nil
}

// mappingsName is the annotation of PINS' programs that gives strings fixed numbers:
// @p4runtime_translation_mappings({ { "", 0 }, { "one", 1 } }).
const mappingsName = "@p4runtime_translation_mappings"

// mappings reads the annotation.
func mappings(annotations []string) (out []*translated, err error) {
	for _, a := range annotations {
		text, ok := strings.CutPrefix(a, mappingsName)
		if !ok {
			continue
		}
		var sc scanner.Scanner
		sc.Init(strings.NewReader(text))
		sc.Mode = scanner.ScanInts | scanner.ScanStrings
		sc.Error = func(*scanner.Scanner, string) {} // said below
		wrong := fmt.Errorf("%s%s is not of the form ({ {\"string\", number}, ... })", mappingsName, text)
		expect := func(want ...rune) bool {
			for _, w := range want {
				if sc.Scan() != w {
					return false
				}
			}
			return true
		}
		if !expect('(', '{') {
			return nil, wrong
		}
		tok := sc.Scan()
		for tok == '{' {
			t := &translated{fixed: true}
			if !expect(scanner.String) {
				return nil, wrong
			}
			if t.text, err = strconv.Unquote(sc.TokenText()); err != nil || !expect(',', scanner.Int) {
				return nil, wrong
			}
			if t.number, err = strconv.ParseUint(sc.TokenText(), 0, 64); err != nil {
				return nil, fmt.Errorf("%w: %w", wrong, err)
			}
			out = append(out, t)
			if tok = sc.Scan(); tok == ',' { // a comma may end the pair
				tok = sc.Scan()
			}
			if tok != '}' {
				return nil, wrong
			}
			if tok = sc.Scan(); tok == ',' {
				tok = sc.Scan()
			}
		}
		if tok != '}' || !expect(')', scanner.EOF) {
			return nil, wrong
		}
	}
	return out, nil
}
