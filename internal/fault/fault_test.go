package fault

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestCodes(t *testing.T) {
	seen := map[string]bool{}
	for c := range codeCount {
		name := c.String()
		if name == "" || seen[name] || strings.HasPrefix(name, "code ") || !c.Known() {
			t.Errorf("code %d is called %q", uint8(c), name)
		}
		seen[name] = true
	}
	if unknown := Code(200); unknown.Known() || unknown.String() != "code 200" {
		t.Errorf("an unknown code is %v, known %v", unknown, unknown.Known())
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("cable pulled")
	err := fmt.Errorf("outer: %w", &Error{Code: Unavailable, Op: "read", Msg: "m1", Err: cause, Remote: true})
	if got, want := err.Error(), "outer: read: unavailable: m1: cable pulled (remote)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for what, ok := range map[string]bool{
		"its code":                    errors.Is(err, &Error{Code: Unavailable}),
		"no other code":               !errors.Is(err, &Error{Code: Deadline}),
		"a pattern is a code only":    !errors.Is(err, &Error{Code: Unavailable, Msg: "m1"}),
		"its cause":                   errors.Is(err, cause),
		"CodeOf":                      CodeOf(err) == Unavailable,
		"CodeOf nil":                  CodeOf(nil) == OK,
		"CodeOf a foreign error":      CodeOf(cause) == Internal,
		"CodeOf the context's":        CodeOf(context.Canceled) == Canceled && CodeOf(context.DeadlineExceeded) == Deadline,
		"a deadline is the context's": errors.Is(FromContext("x", context.DeadlineExceeded), context.DeadlineExceeded),
		"a cancel is the context's":   errors.Is(New(Canceled, "x", ""), context.Canceled),
	} {
		if !ok {
			t.Errorf("wrong: %s", what)
		}
	}
}
