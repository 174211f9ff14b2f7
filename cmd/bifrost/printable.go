package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// printable is a terminal that gets what others have said, such as the names of methods and the reasons of errors: it shows
// control characters, and what changes the direction of text, as escapes of JSON, and bytes that are no UTF-8 as \x and two
// digits. Newlines and tabs pass. All output of bifrost goes through one, whether to a terminal or not.
type printable struct {
	w    io.Writer
	rest []byte // the beginning of a character
}

// Write implements io.Writer.
func (p *printable) Write(b []byte) (int, error) {
	all := slices.Concat(p.rest, b)
	out := make([]byte, 0, len(all))
	for len(all) > 0 && utf8.FullRune(all) {
		r, size := utf8.DecodeRune(all)
		switch {
		case r == utf8.RuneError && size == 1:
			out = fmt.Appendf(out, `\x%02x`, all[0])
		case r != '\n' && r != '\t' && (unicode.IsControl(r) || unicode.Is(unicode.Bidi_Control, r)):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, all[:size]...)
		}
		all = all[size:]
	}
	p.rest = append([]byte(nil), all...)
	if _, err := p.w.Write(out); err != nil {
		return 0, err
	}
	return len(b), nil
}

// oneLine is a text with its newlines as escapes: what is to be one line is one line.
func oneLine(text string) string { return strings.ReplaceAll(text, "\n", `\n`) }

func or(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}
