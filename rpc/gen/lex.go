package gen

import (
	"regexp"
	"strings"
)

// token is a piece of IDL text that means something. The one behind the last is empty.
type token struct {
	text string // of a literal, with its quotes
	kind tokenKind
	line int    // from 1
	col  int    // from 1, in bytes
	doc  string // the comments in front, but for one behind something else on its line
}

type tokenKind uint8

const (
	tokenEnd    tokenKind = iota
	tokenWord             // an identifier or a keyword; "a.b" is one
	tokenNumber           // Thrift takes a sign alone for one
	tokenLiteral
	tokenSymbol
)

var (
	wordForm   = regexp.MustCompile(`^[a-zA-Z_][a-zA-Z_0-9]*(?:\.[a-zA-Z_0-9]+)*`)
	numberForm = regexp.MustCompile(`^[+-]?(?:0x[0-9A-Fa-f]+|[0-9]*(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)`)
	wholeForm  = regexp.MustCompile(`^[+-]?(?:0x[0-9A-Fa-f]+|[0-9]+)$`)
)

// lex cuts IDL text into tokens. It refuses what would keep the file from being read at
// all, and what is no token is a symbol that the parser does not expect.
func lex(path, text string) ([]token, error) {
	if err := encoding(path, text); err != nil {
		return nil, err
	}
	var tokens []token
	var doc []string
	line, start := 1, 0 // start is where the line begins
	for i := 0; i < len(text); {
		n, kind := skipped(text[i:]), tokenEnd
		if n == 0 {
			n, kind = tokenLength(text[i:])
		}
		piece := text[i : i+n]
		switch c := text[i]; {
		case kind == tokenLiteral && (n < 2 || piece[n-1] != c || strings.Contains(piece, "\n")):
			return nil, &Error{File: path, Line: line, Msg: "the literal that begins here does not end", Remedy: "end it with " + string(c)}
		case kind != tokenEnd:
			tokens = append(tokens, token{text: piece, kind: kind, line: line, col: i - start + 1, doc: strings.Join(doc, "\n")})
			doc = nil
		case strings.HasPrefix(piece, "/*") && (n < 4 || !strings.HasSuffix(piece, "*/")):
			return nil, &Error{File: path, Line: line, Msg: "the comment that begins here does not end", Remedy: "end it with */"}
		case (c == '/' || c == '#') && !behind(tokens, line):
			doc = append(doc, piece)
		}
		line += strings.Count(piece, "\n")
		if last := strings.LastIndexByte(piece, '\n'); last >= 0 {
			start = i + last + 1
		}
		i += n
	}
	return append(tokens, token{line: line, col: len(text) - start + 1}), nil
}

// behind reports whether a comment in this line is about what stands in front of it.
func behind(tokens []token, line int) bool {
	if len(tokens) == 0 {
		return false
	}
	last := tokens[len(tokens)-1]
	return last.line == line && last.text != "{" && last.text != "("
}

// skipped is the length of the space or comment that s begins with.
func skipped(s string) int {
	switch {
	case strings.ContainsRune(" \t\v\f\r\n", rune(s[0])):
		return 1
	case s[0] == '#' || strings.HasPrefix(s, "//"):
		return until(s, "\n")
	case strings.HasPrefix(s, "/*"):
		if i := strings.Index(s[2:], "*/"); i >= 0 {
			return i + 4
		}
		return len(s)
	}
	return 0
}

// until is the length of s before end, or of all of it.
func until(s, end string) int {
	if i := strings.Index(s, end); i >= 0 {
		return i
	}
	return len(s)
}

// tokenLength is the length and the kind of the token that s begins with.
func tokenLength(s string) (int, tokenKind) {
	if s[0] == '"' || s[0] == '\'' {
		return literalLength(s), tokenLiteral
	}
	if n := len(wordForm.FindString(s)); n > 0 {
		return n, tokenWord
	}
	if n := len(numberForm.FindString(s)); n > 0 {
		return n, tokenNumber
	}
	return 1, tokenSymbol
}

// literalLength is the length of a quoted literal; a backslash hides a quote.
func literalLength(s string) int {
	for i := 1; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case s[0]:
			return i + 1
		}
	}
	return len(s)
}

var escapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\'`, `'`, `\n`, "\n", `\r`, "\r", `\t`, "\t")

// value is what a literal stands for.
func (t token) value() string { return escapes.Replace(t.text[1 : len(t.text)-1]) }

// encoding refuses a file whose text a parser would report far from its cause.
func encoding(path, text string) error {
	switch {
	case strings.HasPrefix(text, "\uFEFF"):
		return &Error{File: path, Line: 1, Msg: "the file begins with a byte-order mark", Remedy: "save it as UTF-8 without one"}
	case strings.HasPrefix(text, "\xFF\xFE"), strings.HasPrefix(text, "\xFE\xFF"):
		return &Error{File: path, Line: 1, Msg: "the file is UTF-16", Remedy: "save it as UTF-8"}
	}
	return nil
}
