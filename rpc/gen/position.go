package gen

// Where things stand, by their names: the parser does not tell.

// lineOf returns the line of a definition: of a word behind a keyword.
func (u *unit) lineOf(keyword, name string) int {
	if i := u.find(0, keyword, name); i >= 0 {
		return u.tokens[i].line
	}
	return 0
}

// find returns the index of name behind keyword, from a token on; -1 if it is not
// there.
func (u *unit) find(from int, keyword, name string) int {
	for i := from + 1; i < len(u.tokens); i++ {
		if u.tokens[i].text == name && u.tokens[i-1].text == keyword {
			return i
		}
	}
	return -1
}

// methodAt returns the index of a method's name.
func (u *unit) methodAt(service, method string) int {
	s := u.find(0, "service", service)
	if s < 0 {
		return -1
	}
	for i := s + 1; i+1 < len(u.tokens) && u.tokens[i].text != "}"; i++ {
		if u.tokens[i].text == method && u.tokens[i+1].text == "(" && u.tokens[i-1].text != "{" {
			return i
		}
	}
	return -1
}

// methodLine is the line of a method's name, or of its service's.
func (u *unit) methodLine(service, method string) int {
	if i := u.methodAt(service, method); i >= 0 {
		return u.tokens[i].line
	}
	return u.lineOf("service", service)
}

// fieldLine is the line of an argument or exception of a method.
func (u *unit) fieldLine(service, method, field string) int {
	start := u.methodAt(service, method)
	if start < 0 {
		return u.methodLine(service, method)
	}
	return u.nameLine(start+1, field)
}

// memberLine is the line of a struct's field.
func (u *unit) memberLine(category, name, field string) int {
	start := u.find(0, category, name)
	if start < 0 {
		return 0
	}
	return u.nameLine(start+1, field)
}

// nameLine is the line where a field is named, from a token on: the name follows
// its type.
func (u *unit) nameLine(from int, field string) int {
	for i := from + 1; i < len(u.tokens); i++ {
		before := u.tokens[i-1]
		if u.tokens[i].text == field && (before.word() || before.text == ">" || before.text == ")") {
			return u.tokens[i].line
		}
	}
	return u.tokens[from].line
}
