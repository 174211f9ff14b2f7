package docs_test

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// maxWords is how many words a sentence of a document or a comment may have.
const maxWords = 40

// banned are words that the field has another word for, or that say nothing. Each is
// given with what to write instead.
var banned = map[string]string{
	"chair": "leader (of the readers)", "strand": "sequence", "errand": "task", "parcel": "batch",
	"stray": "late", "emptying": "draining",
	"hearken": "listen", "utilize": "use", "utilise": "use", "leverage": "use", "obviously": "nothing",
	"basically": "nothing", "performant": "fast", "whilst": "while",
}

var (
	wordBreak = regexp.MustCompile(`[^\pL]+`)
	// sentenceEnd is a full stop that ends a sentence: a capital letter, or the end, follows.
	sentenceEnd = regexp.MustCompile(`[.!?:;]["')*` + "`" + `]*(\s+|$)`)
	inlineCode  = regexp.MustCompile("`[^`]*`")
	link        = regexp.MustCompile(`\]\([^)]*\)`)
)

// judge returns what is wrong with a paragraph of prose.
func judge(text string) (wrong []string) {
	text = link.ReplaceAllString(inlineCode.ReplaceAllString(text, "code"), "]")
	for _, sentence := range sentenceEnd.Split(text, -1) {
		if n := len(strings.Fields(sentence)); n > maxWords {
			wrong = append(wrong, fmt.Sprintf("a sentence of %d words (at most %d): %.60s…", n, maxWords, strings.Join(strings.Fields(sentence), " ")))
		}
	}
	for _, w := range wordBreak.Split(strings.ToLower(text), -1) {
		if instead, ok := banned[w]; ok {
			wrong = append(wrong, fmt.Sprintf("the word %q: write %s", w, instead))
		}
	}
	return wrong
}

// paragraphs calls f with each paragraph of prose in a document, and its line. Code,
// drawings, tables and headings are none.
func paragraphs(b []byte, f func(line int, text string)) {
	var text []string
	fenced, at := false, 0
	flush := func() {
		if len(text) > 0 {
			f(at, strings.Join(text, " "))
		}
		text = nil
	}
	for i, line := range strings.Split(string(b), "\n") {
		trimmed := strings.TrimSpace(line)
		if strings.HasPrefix(trimmed, "```") {
			fenced = !fenced
			flush()
			continue
		}
		switch {
		case fenced, trimmed == "", strings.HasPrefix(trimmed, "|"), strings.HasPrefix(trimmed, "#"), strings.HasPrefix(trimmed, "<"):
			flush()
			continue
		case strings.HasPrefix(trimmed, "- "), strings.HasPrefix(trimmed, "* "):
			flush()
		}
		if len(text) == 0 {
			at = i + 1
		}
		text = append(text, trimmed)
	}
	flush()
}

// tracked returns the repository's files of these patterns, without what programs wrote.
func tracked(t *testing.T, patterns ...string) (names []string) {
	t.Helper()
	cmd := exec.Command("git", append([]string{"ls-files", "--"}, patterns...)...)
	cmd.Dir = ".."
	out, err := cmd.Output()
	must(t, err)
	for _, name := range strings.Fields(string(out)) {
		if !strings.Contains(name, "gen-go/") && !strings.Contains(name, "testdata/") {
			names = append(names, name)
		}
	}
	return names
}

// TestProse: sentences are short, and words are those of the field.
func TestProse(t *testing.T) {
	for _, name := range tracked(t, "*.md") {
		b, err := os.ReadFile("../" + name)
		must(t, err)
		paragraphs(b, func(line int, text string) {
			for _, w := range judge(text) {
				t.Errorf("%s:%d: %s", name, line, w)
			}
		})
	}
	for _, name := range tracked(t, "*.go") {
		b, err := os.ReadFile("../" + name)
		must(t, err)
		if bytes.HasPrefix(b, []byte("// Code generated")) {
			continue
		}
		files := token.NewFileSet()
		f, err := parser.ParseFile(files, name, b, parser.ParseComments|parser.SkipObjectResolution)
		must(t, err)
		comments(f, func(c *ast.CommentGroup) {
			paragraphs([]byte(proseOf(c)), func(_ int, text string) {
				for _, w := range judge(text) {
					t.Errorf("%s: %s", files.Position(c.Pos()), w)
				}
			})
		})
	}
}

func comments(f *ast.File, each func(*ast.CommentGroup)) {
	for _, c := range f.Comments {
		each(c)
	}
}

// proseOf is a comment without what is indented: drawings and code.
func proseOf(c *ast.CommentGroup) string {
	var b strings.Builder
	for _, line := range strings.Split(c.Text(), "\n") {
		if strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ") {
			line = ""
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

// TestJudge: the check finds what it is for.
func TestJudge(t *testing.T) {
	long := strings.Repeat("word ", maxWords+1)
	for text, want := range map[string]int{
		"Short. And short.": 0, long: 1, strings.Repeat("word ", 30) + "end. " + strings.Repeat("word ", 30): 0,
		"The chair is taken.": 1, "`chair` is code.": 0, "We utilize an errand": 2,
	} {
		if got := judge(text); len(got) != want {
			t.Errorf("%.30q: %q, want %d", text, got, want)
		}
	}
}
