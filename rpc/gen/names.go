package gen

import "strings"

// Go names, as the Thrift compiler (0.12 and newer) makes them: the stubs refer to
// what it has written.

// initialisms are the words that it writes in capitals.
var initialisms = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`API ASCII CPU CSS DNS EOF GUID HTML HTTP HTTPS ID IP JSON LHS QPS RAM RHS
		RPC SLA SMTP SSH TCP TLS TTL UDP UI UID UUID URI URL UTF8 VM XML XSRF XSS`) {
		m[w] = true
	}
	return m
}()

// publicName is the exported form of an IDL name. Names that could be taken for
// a constructor or a method's own structs get an underscore.
func publicName(name string) string {
	base := camelCase(strings.ToUpper(name[:1]) + name[1:])
	s := base
	if strings.HasPrefix(base, "New") {
		s += "_"
	}
	if strings.HasSuffix(base, "Args") || strings.HasSuffix(base, "Result") {
		s += "_"
	}
	return s
}

// helperName is the name of a method's struct of arguments or result, which what
// says.
func helperName(service, method, what string) string {
	name := method + "_" + what
	s := camelCase(strings.ToUpper(name[:1]) + name[1:])
	if strings.HasPrefix(s, "New") {
		s += "_"
	}
	return publicName(service) + s
}

// camelCase joins words that underscores part, if the second begins with a small
// letter.
func camelCase(s string) string {
	b := []byte(s)
	capitalize(b, 0)
	for i := 1; i < len(b)-1; i++ {
		if b[i] != '_' {
			continue
		}
		if c := b[i+1]; c >= 'a' && c <= 'z' {
			b[i] = c - 'a' + 'A'
			b = append(b[:i+1], b[i+2:]...)
		}
		capitalize(b, i)
	}
	return string(b)
}

// capitalize writes the word at i in capitals, up to an underscore, if it is an
// initialism.
func capitalize(b []byte, i int) {
	word := string(b[i:])
	if n := strings.IndexByte(word, '_'); n >= 0 {
		word = word[:n]
	}
	if upper := strings.ToUpper(word); initialisms[upper] {
		copy(b[i:], upper)
	}
}

// keywords are the words that it does not use as a parameter's name, in any case
// of letters.
var keywords = func() map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(`break case chan const continue default defer else error fallthrough for func go
		goto if import interface map package range return select struct switch type var`) {
		m[w] = true
	}
	return m
}()

// variableName is an argument's name as a parameter.
func variableName(name string) string {
	if lower := strings.ToLower(name); keywords[lower] {
		return lower + "_a1"
	}
	return name
}
