package yamlfile

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var kind = Kind{One: "one list", Needs: "a word", Example: "words.yaml"}

// read reads a file with one key of each kind.
func read(text string) (words []string, env map[string]string, err error) {
	r, doc, err := Parse("f", []byte(text), kind)
	if err != nil {
		return nil, nil, err
	}
	r.Mapping(doc, "", Fields{
		"words": func(n *Node, path string) { words = r.Words(n, path) },
		"env":   func(n *Node, path string) { env = r.Texts(n, path) },
	})
	return words, env, r.Err()
}

func TestWords(t *testing.T) {
	words, env, err := read("words: [a, 1, yes, \"\"]\nenv: {A: , B: 0x10}\n")
	if err != nil || !reflect.DeepEqual(words, []string{"a", "1", "yes", ""}) || !reflect.DeepEqual(env, map[string]string{"A": "", "B": "0x10"}) {
		t.Errorf("got %q, %q, %v", words, env, err)
	}
}

func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                           "f: the file is empty: list a word, as in words.yaml",
		"words: [":                   "f: yaml: ",
		"words: [a]\n---\nwords: []": "f:2: a second document begins: describe one list per file",
		"- a":                        "f:1: it is a list: write keys and values: env, words",
		"words:\n- a\n- [b]":         "f:3: words[1]: it is a list: write a value",
		"words: [a,, b]":             "f: yaml: ",
		"words: [null]":              "f:1: words[0]: it is empty",
		"env: {A: b, A: c}":          `f:1: env: "A" is given twice: remove one`,
		"env: {A: [b]}":              "f:1: env: a pair is not plain text",
		"words: &x [a]\nenv: *x":     "f:2: env: it is an alias, which these files do not use",
	} {
		_, _, err := read(text)
		var e *Error
		if !errors.As(err, &e) || !strings.HasPrefix(err.Error(), want) || e.Remedy == "" {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// A file with many mistakes shows the first ones and says how many follow.
func TestManyMistakes(t *testing.T) {
	_, _, err := read(strings.Repeat("x: 1\n", 1000))
	if err == nil || strings.Count(err.Error(), "\n") != maxShown || !strings.Contains(err.Error(), "980 more mistakes") {
		t.Errorf("1000 mistakes: %v", err)
	}
}

func TestLoad_TooLong(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, make([]byte, MaxFile+5), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := Load(path)
	if err != nil || len(b) != MaxFile+1 {
		t.Fatalf("%d bytes, %v", len(b), err)
	}
	if _, _, err := Parse("f", b, kind); err == nil || !strings.Contains(err.Error(), "keep it under 1048576 bytes") {
		t.Error(err)
	}
}
