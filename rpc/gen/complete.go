package gen

import "strings"

// complete gives each annotation without a value the value "1", which is what
// Thrift's own compiler makes of it and the parser does not know. Lines stay
// where they are.
func complete(text string, tokens []token) string {
	var b strings.Builder
	from := 0
	for i, t := range tokens {
		if t.text != "(" {
			continue
		}
		for _, bare := range bareAnnotations(tokens[i+1:]) {
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
