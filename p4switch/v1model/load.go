package v1model

import "encoding/json"

// loader turns names into references. Each of its methods fills a part of prog
// from the same part of raw; Load calls them in the order of dependence.
type loader struct {
	raw  rawProgram
	prog *Program

	types       map[string]*HeaderType
	headers     map[string]*Header
	stacks      map[string]*Stack
	unionTypes  map[string]*UnionType
	unions      map[string]*Union
	unionStacks map[string]*UnionStack
	aliases     map[string]FieldRef

	counters     map[string]*Counter
	meters       map[string]*Meter
	registers    map[string]*Register
	calculations map[string]*Calculation
	digests      map[int]*Digest
	lists        map[int]*FieldList
	sets         map[string]*ValueSet
	actions      map[int]*Action
	profiles     map[string]*ActionProfile

	// unused tells that headers are named whose fields are not used.
	unused bool

	// params and touched belong to the action being loaded.
	params  []ActionParam
	touched []*Register
}

// Load reads the JSON that p4c-bm2-ss wrote. Its errors are all *Error.
func Load(data []byte) (*Program, error) {
	l := &loader{prog: &Program{}}
	if err := json.Unmarshal(data, &l.raw); err != nil {
		return nil, malformed("%v", err)
	}
	if err := l.version(); err != nil {
		return nil, err
	}
	l.prog.Source = l.raw.Source
	steps := []func() error{
		l.loadHeaderTypes, l.loadHeaders, l.loadStacks, l.loadUnions, l.loadUnionStacks,
		l.loadAliases, l.loadCodes, l.refuseExterns,
		l.loadCounters, l.loadMeters, l.loadRegisters, l.loadCalculations,
		l.loadDigests, l.loadFieldLists, l.loadValueSets,
		l.loadParser, l.loadActions, l.loadDeparser, l.loadPipelines,
		l.loadChecksums, l.loadStandardMetadata,
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return l.prog, nil
}

// version refuses formats that could mean something else by the same words. Programs
// from before 2016 have no version, and bmv2 takes them.
func (l *loader) version() error {
	v := l.raw.Meta.Version
	switch {
	case len(v) == 0:
		return nil
	case len(v) != 2:
		return malformed("format version %v", v)
	case v[0] != formatMajor || v[1] > formatMinor:
		return unsupported("format version %d.%d, newer than %d.%d", v[0], v[1], formatMajor, formatMinor)
	}
	return nil
}

func (l *loader) refuseExterns() error {
	for _, x := range l.raw.Externs {
		return unsupported("extern %q of type %q", x.Name, x.Type)
	}
	return nil
}

// loadCodes loads errors and enums. Errors of the core library that the program
// does not mention are added with codes of their own, as bmv2 does.
func (l *loader) loadCodes() error {
	free := 0
	for _, c := range l.raw.Errors {
		if c.Code < 0 {
			return malformed("error %q has the code %d", c.Name, c.Code)
		}
		l.prog.Errors = append(l.prog.Errors, NamedCode(c))
		free = max(free, c.Code+1)
	}
	for _, name := range coreErrors {
		if _, ok := l.prog.ErrorCode(name); !ok {
			l.prog.Errors = append(l.prog.Errors, NamedCode{name, free})
			free++
		}
	}
	for _, e := range l.raw.Enums {
		enum := Enum{Name: e.Name}
		for _, c := range e.Entries {
			enum.Entries = append(enum.Entries, NamedCode(c))
		}
		l.prog.Enums = append(l.prog.Enums, enum)
	}
	return nil
}

// Names of the core library's errors.
const (
	ErrorNone            = "NoError"
	ErrorPacketTooShort  = "PacketTooShort"
	ErrorNoMatch         = "NoMatch"
	ErrorStackBounds     = "StackOutOfBounds"
	ErrorHeaderTooShort  = "HeaderTooShort"
	ErrorParserTimeout   = "ParserTimeout"
	ErrorInvalidArgument = "ParserInvalidArgument"
)

var coreErrors = []string{
	ErrorNone, ErrorPacketTooShort, ErrorNoMatch, ErrorStackBounds,
	ErrorHeaderTooShort, ErrorParserTimeout, ErrorInvalidArgument,
}

// find looks a name up and refuses one that is not there.
func find[K comparable, V any](m map[K]V, what string, name K) (V, error) {
	v, ok := m[name]
	if !ok {
		return v, malformed("no %s %v", what, name)
	}
	return v, nil
}

// add enters a name and refuses one that is there.
func add[K comparable, V any](m *map[K]V, what string, name K, v V) error {
	if *m == nil {
		*m = map[K]V{}
	}
	if _, ok := (*m)[name]; ok {
		return malformed("two %ss %v", what, name)
	}
	(*m)[name] = v
	return nil
}
