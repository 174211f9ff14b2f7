package pool

// Span is the bytes From..To of a region; empty if To is not above From.
type Span struct{ From, To uint64 }

// Empty reports whether there is nothing in it.
func (s Span) Empty() bool { return s.To <= s.From }

// Overlaps reports whether two spans share a byte.
func (s Span) Overlaps(o Span) bool {
	return !s.Empty() && !o.Empty() && s.From < o.To && o.From < s.To
}

// Hull is the smallest span that holds both.
func (s Span) Hull(o Span) Span {
	switch {
	case s.Empty():
		return o
	case o.Empty():
		return s
	}
	return Span{min(s.From, o.From), max(s.To, o.To)}
}

// Without takes o out of s. It is false if that would leave two pieces.
func (s Span) Without(o Span) (Span, bool) {
	switch {
	case !s.Overlaps(o):
		return s, true
	case o.From <= s.From:
		return Span{o.To, s.To}, true
	case o.To >= s.To:
		return Span{s.From, o.From}, true
	}
	return s, false
}
