package gen

import (
	"math/big"
	"strings"
)

// complete writes for the parser what only Thrift's own compiler knows: an annotation
// without a value has the value "1", and a hexadecimal number becomes a decimal one.
// Lines stay where they are.
func complete(text string, tokens []token) string {
	var b strings.Builder
	from := 0
	for i, t := range tokens {
		if n, ok := hexadecimal(t.text); ok && t.at >= from {
			b.WriteString(text[from:t.at])
			b.WriteString(n)
			from = t.end()
		}
		if t.text != "(" {
			continue
		}
		for _, bare := range bareAnnotations(tokens[i+1:]) {
			if bare.at < from {
				continue // a list within a list, which is no Thrift: it was of the outer one
			}
			b.WriteString(text[from:bare.end()])
			b.WriteString(` = "1"`)
			from = bare.end()
		}
	}
	b.WriteString(text[from:])
	return b.String()
}

// bareAnnotations returns the annotations without a value of the list that the
// tokens, which come behind a parenthesis, begin with. A list of fields is none:
// there a word follows another, or a number comes first.
func bareAnnotations(tokens []token) []token {
	var bare []token
	for i := 0; i+1 < len(tokens) && tokens[i].word(); {
		name, next := tokens[i], tokens[i+1].text
		switch {
		case next == "=" && i+2 < len(tokens):
			i += 3
		case next == "," || next == ";" || next == ")":
			bare = append(bare, name)
			i++
		default:
			return nil
		}
		if i < len(tokens) && (tokens[i].text == "," || tokens[i].text == ";") {
			i++
		}
		if i < len(tokens) && tokens[i].text == ")" {
			return bare
		}
	}
	return nil
}

// hexadecimal is the decimal form of a number such as 0x1F; false for anything else.
func hexadecimal(s string) (string, bool) {
	digits, ok := strings.CutPrefix(strings.ToLower(s), "0x")
	if !ok {
		return "", false
	}
	n, ok := new(big.Int).SetString(digits, 16)
	if !ok || digits[0] == '-' || digits[0] == '+' {
		return "", false
	}
	return n.String(), true
}
