package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestDesign_Sections: where code and documents name a section of the design,
// docs/design.md has it.
func TestDesign_Sections(t *testing.T) {
	read := func(name string) string {
		b, err := os.ReadFile("../" + name)
		must(t, err)
		return string(b)
	}
	there := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^## (\d+)\. `).FindAllStringSubmatch(read("docs/design.md"), -1) {
		there[m[1]] = true
	}
	comment := regexp.MustCompile(`\n\s*(//|#)?\s*`) // a sentence goes on in the next line
	ofDesign := regexp.MustCompile(`(?i)\bdesign[^.;:]{0,25}?\bsections? (\d+)(?:(?:,| and) (\d+))?`)
	own := regexp.MustCompile(`\b[Ss]ections? (\d+)(?: and (\d+))?`) // of design.md about itself
	found := 0
	for _, name := range tracked(t, "*.go", "*.md", "*.p4", "*.py", "*.sh") {
		pattern := ofDesign
		if name == "docs/design.md" {
			pattern = own
		}
		text := comment.ReplaceAllString(read(name), " ")
		for _, at := range pattern.FindAllStringSubmatchIndex(text, -1) {
			if strings.HasSuffix(text[:at[0]], "thesis ") {
				continue
			}
			for i := 2; i < len(at) && at[i] >= 0; i += 2 {
				found++
				if n := text[at[i]:at[i+1]]; !there[n] {
					t.Errorf("%s: %q: docs/design.md has no section %s", name, text[at[0]:at[1]], n)
				}
			}
		}
	}
	if found < 8 {
		t.Errorf("only %d references found", found)
	}
}
