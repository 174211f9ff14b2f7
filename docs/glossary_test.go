package docs_test

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// glossary is the section of docs/design.md about words.
type glossary struct {
	words []string
	verbs []verb
}

// verb is a word of which the glossary says what it is said of.
type verb struct {
	forms   []string
	of      []string
	pattern *regexp.Regexp // the verb, and a thing of the glossary's right behind it
}

// readGlossary reads both tables of the section.
func readGlossary(t *testing.T) (g glossary) {
	t.Helper()
	page, err := os.ReadFile("design.md")
	must(t, err)
	_, section, _ := strings.Cut(string(page), "\n## Words\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var things []string
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) < 2 || strings.Contains(line, "---") {
			continue
		}
		first := list(cells[0])
		switch {
		case first[0] == "word", first[0] == "verb":
		case len(cells) == 2:
			g.words = append(g.words, first...)
		default:
			g.verbs = append(g.verbs, verb{forms: first, of: list(cells[2])})
			things = append(things, list(cells[2])...)
		}
	}
	for i, v := range g.verbs {
		g.verbs[i].pattern = verbPattern(v.forms, things)
	}
	return g
}

// list splits a cell.
func list(cell string) (all []string) {
	for part := range strings.SplitSeq(cell, ",") {
		all = append(all, strings.TrimSpace(part))
	}
	return all
}

// verbPattern finds a verb whose object follows at once: "drops the packet", but not "drops the packet's header".
func verbPattern(forms, things []string) *regexp.Regexp {
	slices.Sort(things)
	things = slices.Compact(things)
	return regexp.MustCompile(`(?i)\b(?:` + strings.Join(forms, "|") + `) (?:(?:a|an|the|this|each|every|its|their|all|no|any|some|such|of|these|those|other) ){1,2}(` +
		strings.Join(things, "|") + `)s?(?:$|[^\w'’-])`)
}

// misused returns what the glossary's verbs are said of in a text though they have another meaning.
func (g glossary) misused(text string) (wrong []string) {
	for _, v := range g.verbs {
		for _, m := range v.pattern.FindAllStringSubmatch(text, -1) {
			if !slices.Contains(v.of, strings.ToLower(m[1])) {
				wrong = append(wrong, strings.Trim(m[0], " .,;:"))
			}
		}
	}
	return wrong
}

// eachProse calls f with each paragraph of all documents, and of all comments.
func eachProse(t *testing.T, f func(where, text string)) {
	t.Helper()
	for _, name := range tracked(t, "*.md") {
		b, err := os.ReadFile("../" + name)
		must(t, err)
		paragraphs(b, func(_ int, text string) { f(name, text) })
	}
	for _, s := range readCode(t).files {
		comments(s.file, func(c *ast.CommentGroup) {
			paragraphs([]byte(proseOf(c)), func(_ int, text string) { f(fileSet.Position(c.Pos()).String(), text) })
		})
	}
}

// TestGlossary: the glossary in docs/design.md has words that are used, each once, and its verbs are said of nothing else than
// the glossary says.
func TestGlossary(t *testing.T) {
	g := readGlossary(t)
	if len(g.words) < 30 || len(g.verbs) < 5 {
		t.Fatalf("the glossary has %d words and %d verbs: has the form of the tables changed?", len(g.words), len(g.verbs))
	}
	used, verbs := map[string]bool{}, map[string]bool{}
	eachProse(t, func(where, text string) {
		for _, wrong := range g.misused(text) {
			t.Errorf("%s: %q: the glossary in docs/design.md gives the verb another meaning", where, wrong)
		}
		lower := strings.ToLower(text)
		for _, w := range g.words {
			used[w] = used[w] || strings.Contains(lower, strings.ToLower(w))
		}
		for _, v := range g.verbs {
			verbs[v.forms[0]] = verbs[v.forms[0]] || v.pattern.MatchString(text)
		}
	})
	for i, w := range g.words {
		if !used[w] {
			t.Errorf("nobody uses the glossary's word %q", w)
		}
		if slices.Contains(g.words[:i], w) {
			t.Errorf("the glossary has %q twice", w)
		}
	}
	for _, v := range g.verbs {
		if !verbs[v.forms[0]] {
			t.Errorf("nothing is said with the glossary's verb %q", v.forms[0])
		}
	}
}

// TestGlossary_Finds: the check finds what it is for.
func TestGlossary_Finds(t *testing.T) {
	g := readGlossary(t)
	for text, want := range map[string]int{
		"It settles the request, and drops a packet.": 0, "It settles the region. It frees each node.": 2,
		"It frees a message's buffer, which is free of all packet-ins.": 0, "Freed all nodes": 1,
	} {
		if got := g.misused(text); len(got) != want {
			t.Errorf("%q: %q, want %d", text, got, want)
		}
	}
}
