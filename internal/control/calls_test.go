package control

import (
	"strings"
	"testing"
	"unicode/utf8"
)

// What is told of calls has a bound, whatever callers and handlers say, and is UTF-8. What is cut says so.
func TestCallDetails(t *testing.T) {
	long := strings.Repeat("ä", 1<<10)
	for _, d := range []CallDetails{
		{Exception: long, Text: long, Headers: []Header{{long, long}}},
		{Exception: "\xff", Text: "x" + long, Headers: many(1<<10, func(int) Header { return Header{"k", "ä"} })},
		{Headers: many(3, func(int) Header { return Header{"name", strings.Repeat("v", MaxHeadersText/2)} })},
	} {
		b := d.Bounded()
		all := len(b.Exception) + len(b.Text)
		for _, h := range b.Headers {
			if all += len(h.Name) + len(h.Value); h.Name == "" || !utf8.ValidString(h.Name+h.Value) {
				t.Errorf("header %q", h)
			}
		}
		if all > MaxExceptionName+MaxExceptionText+MaxHeadersText || len(b.Headers) > MaxHeaders || !utf8.ValidString(b.Exception+b.Text) || len(d.Text) > MaxExceptionText && !strings.HasSuffix(b.Text, "…") {
			t.Errorf("%d bytes, %d headers: %+v", all, len(b.Headers), b)
		}
		c := NodeCalls{Running: many(MaxDirectCalls, func(int) DirectCall { return DirectCall{Details: b} }), Ended: many(MaxDirectCalls, func(int) DirectCall { return DirectCall{Details: b} })}
		if c.Fit(); c.Ended[0].Details.Text != b.Text || (all*2*MaxDirectCalls > MaxDetails) != (c.Running[MaxDirectCalls-1].Details.Headers == nil) {
			t.Errorf("of %d bytes for each call the last one has %+v", all, c.Running[MaxDirectCalls-1].Details)
		}
	}
	short := CallDetails{Text: "no", Headers: []Header{{"tenant", "blue"}}}
	if b := short.Bounded(); b.Text != "no" || len(b.Headers) != 1 || b.Headers[0] != short.Headers[0] {
		t.Errorf("%+v became %+v", short, b)
	}
}
