package script

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
)

func echo(out io.Writer, words []string) error {
	if words[0] == "bad" {
		return errors.New("bad command")
	}
	fmt.Fprintln(out, strings.Join(words, " "))
	return nil
}

func TestBlocks(t *testing.T) {
	got, err := blocks("# why\na b\nc\n----\nold\n\n# alone\n\nd\n", echo)
	want := "# why\na b\nc\n----\na b\nc\n\n# alone\n\nd\n----\nd\n"
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if again, _ := blocks(got, echo); again != got {
		t.Errorf("the second run gives %q", again)
	}
	if _, err := blocks("bad\n", echo); err == nil || !strings.Contains(err.Error(), "line 1") {
		t.Errorf("bad command: %v", err)
	}
}

func TestInline(t *testing.T) {
	got, err := inline("# why\n\na b\n  old\n  older\nc\n", echo)
	want := "# why\n\na b\n  a b\nc\n  c\n"
	if err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
	if again, _ := inline(got, echo); again != got {
		t.Errorf("the second run gives %q", again)
	}
	if _, err := inline("a\nbad\n", echo); err == nil || !strings.Contains(err.Error(), "line 2") {
		t.Errorf("bad command: %v", err)
	}
}

func TestFirstDifference(t *testing.T) {
	if d := firstDifference("a\nb\n", "a\nc\n"); !strings.Contains(d, "line 2\nwant: b\n") || !strings.Contains(d, "got:  c") {
		t.Errorf("got %q", d)
	}
}
