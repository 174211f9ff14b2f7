package v1model

import "encoding/json"

// field resolves ["header", "field"] and notes that the program uses it.
func (l *loader) field(header, name string) (FieldRef, error) {
	if r, ok := l.aliases[header+"."+name]; ok {
		return r, nil
	}
	h, err := find(l.headers, "header", header)
	if err != nil {
		return FieldRef{}, err
	}
	i, ok := h.Type.Field(name)
	if !ok {
		return FieldRef{}, malformed("no field %q in header %q", name, header)
	}
	if i != ValidField {
		h.used[i] = true
	}
	return FieldRef{h, i}, nil
}

func (l *loader) fieldPair(pair []string) (FieldRef, error) {
	if len(pair) != 2 {
		return FieldRef{}, malformed("field reference with %d elements", len(pair))
	}
	return l.field(pair[0], pair[1])
}

// numberField is a field reference that must be of fixed width.
func (l *loader) numberField(pair []string) (FieldRef, error) {
	r, err := l.fieldPair(pair)
	if err == nil && r.Def().Varbit {
		return r, malformed("variable-length field %v where a number belongs", r)
	}
	return r, err
}

// wholeHeader resolves a header by name and notes that all of it is used, unless
// the loader's unused says that it is not.
func (l *loader) wholeHeader(name string) (*Header, error) {
	h, err := find(l.headers, "header", name)
	if err != nil {
		return nil, err
	}
	for i := range h.used {
		h.used[i] = h.used[i] || !l.unused
	}
	return h, nil
}

func (l *loader) loadAliases() error {
	for _, raw := range l.raw.FieldAliases {
		if len(raw.Target) != 2 {
			return malformed("alias %q has a target of %d elements", raw.Name, len(raw.Target))
		}
		h, err := find(l.headers, "header", raw.Target[0])
		if err != nil {
			return at(err, "alias %q", raw.Name)
		}
		i, ok := h.Type.Field(raw.Target[1])
		if !ok || i == ValidField {
			return at(malformed("no field %q", raw.Target[1]), "alias %q", raw.Name)
		}
		// p4c repeats aliases if the program mentions standard_metadata_t.
		ref := FieldRef{h, i}
		if old, ok := l.aliases[raw.Name]; ok && old != ref {
			return malformed("alias %q of both %v and %v", raw.Name, old, ref)
		}
		if l.aliases == nil {
			l.aliases = map[string]FieldRef{}
		}
		l.aliases[raw.Name] = ref
	}
	return nil
}

// loadStandardMetadata finds the architecture's fields without marking them as
// used by the program.
func (l *loader) loadStandardMetadata() error {
	s := &l.prog.Std
	for _, want := range []struct {
		name, header string
		ref          *FieldRef
		required     bool
	}{
		{"ingress_port", "standard_metadata", &s.IngressPort, true},
		{"egress_spec", "standard_metadata", &s.EgressSpec, true},
		{"egress_port", "standard_metadata", &s.EgressPort, true},
		{"instance_type", "standard_metadata", &s.InstanceType, true},
		{"packet_length", "standard_metadata", &s.PacketLength, true},
		{"parser_error", "standard_metadata", &s.ParserError, false},
		{"checksum_error", "standard_metadata", &s.ChecksumError, false},
		{"mcast_grp", "intrinsic_metadata", &s.MulticastGroup, false},
		{"egress_rid", "intrinsic_metadata", &s.EgressRID, false},
		{"ingress_global_timestamp", "intrinsic_metadata", &s.IngressTimestamp, false},
		{"egress_global_timestamp", "intrinsic_metadata", &s.EgressTimestamp, false},
		{"enq_timestamp", "queueing_metadata", &s.EnqueueTimestamp, false},
		{"enq_qdepth", "queueing_metadata", &s.EnqueueDepth, false},
		{"deq_timedelta", "queueing_metadata", &s.DequeueTimeDelta, false},
		{"deq_qdepth", "queueing_metadata", &s.DequeueDepth, false},
		{"qid", "queueing_metadata", &s.QID, false},
	} {
		r, ok := l.standardField(want.header, want.name)
		if !ok && want.required {
			return unsupported("program without the field %s.%s: not v1model", want.header, want.name)
		}
		if ok && (r.Def().Varbit || r.Width() > 64 || !r.Header.Metadata) {
			return malformed("%s is not metadata of at most 64 bits", r)
		}
		*want.ref = r
	}
	return nil
}

func (l *loader) standardField(header, name string) (FieldRef, bool) {
	if r, ok := l.aliases[header+"."+name]; ok {
		return r, true
	}
	h, ok := l.headers[header]
	if !ok {
		return FieldRef{}, false
	}
	i, ok := h.Type.Field(name)
	if !ok {
		return FieldRef{}, false
	}
	return FieldRef{h, i}, true
}

// unmarshal reads a raw value into v, or says what is wrong with it.
func unmarshal(raw json.RawMessage, v any) error {
	if isNull(raw) {
		return malformed("value missing")
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return malformed("%v", err)
	}
	return nil
}
