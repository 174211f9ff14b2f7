package gen

import "strings"

// token is a piece of IDL text that means something. The parser keeps no
// positions; these do.
type token struct {
	text string // of a literal, with its quotes
	at   int    // offset of its first byte
	line int    // from 1
}

func (t token) end() int { return t.at + len(t.text) }

// word reports whether the token is an identifier or keyword.
func (t token) word() bool { return t.text != "" && isLetter(t.text[0]) }

// lex cuts IDL text into tokens, without comments and space. It takes any text:
// what is not IDL is for the parser to refuse.
func lex(text string) []token {
	var tokens []token
	line := 1
	for i := 0; i < len(text); {
		n := skipped(text[i:])
		if n == 0 {
			n = tokenLength(text[i:])
			tokens = append(tokens, token{text: text[i : i+n], at: i, line: line})
		}
		line += strings.Count(text[i:i+n], "\n")
		i += n
	}
	return tokens
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

// tokenLength is the length of the token that s begins with.
func tokenLength(s string) int {
	switch {
	case isLetter(s[0]):
		n := 1
		for n < len(s) && (isLetter(s[n]) || isDigit(s[n]) || s[n] == '.') {
			n++
		}
		return n
	case s[0] == '"' || s[0] == '\'':
		return literalLength(s)
	case isDigit(s[0]):
		n := 1
		for n < len(s) && (isLetter(s[n]) || isDigit(s[n]) || s[n] == '.') {
			n++
		}
		return n
	}
	return 1
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

func isLetter(c byte) bool { return c == '_' || c|0x20 >= 'a' && c|0x20 <= 'z' }

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

// unreadable names what keeps a file from being read at all, which a parser would
// report far from its cause; nil if nothing does.
func unreadable(path, text string) error {
	switch {
	case strings.HasPrefix(text, "\uFEFF"):
		return &Error{File: path, Line: 1, Msg: "the file begins with a byte-order mark", Remedy: "save it as UTF-8 without one"}
	case strings.HasPrefix(text, "\xFF\xFE"), strings.HasPrefix(text, "\xFE\xFF"):
		return &Error{File: path, Line: 1, Msg: "the file is UTF-16", Remedy: "save it as UTF-8"}
	}
	line := 1
	for i := 0; i < len(text); {
		n := skipped(text[i:])
		if n > 0 && strings.HasPrefix(text[i:], "/*") && (n < 4 || !strings.HasSuffix(text[i:i+n], "*/")) {
			return &Error{File: path, Line: line, Msg: "the comment that begins here does not end", Remedy: "end it with */"}
		}
		if n == 0 {
			n = tokenLength(text[i:])
			if c := text[i]; (c == '"' || c == '\'') && (n < 2 || text[i+n-1] != c) {
				return &Error{File: path, Line: line, Msg: "the literal that begins here does not end", Remedy: "end it with " + string(c)}
			}
		}
		line += strings.Count(text[i:i+n], "\n")
		i += n
	}
	return nil
}
