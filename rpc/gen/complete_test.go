package gen

import "testing"

func TestComplete(t *testing.T) {
	for text, want := range map[string]string{
		"const i32 A = 0x1F":                   "const i32 A = 31",
		"const i64 B = -0XfF // 0x10":          "const i64 B = -255 // 0x10",
		"enum E { X = 0x10, Y = 0x11 }":        "enum E { X = 16, Y = 17 }",
		`const string S = "0x10"`:              `const string S = "0x10"`,
		"const i32 N = 0x":                     "const i32 N = 0x",
		"const i32 N = 0xZZ":                   "const i32 N = 0xZZ",
		"void f(1: i32 n = 0xa (bifrost.ref))": `void f(1: i32 n = 10 (bifrost.ref = "1"))`,
	} {
		if got := complete(text, lex(text)); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", text, got, want)
		}
	}
	const idl = "namespace go x\nconst i64 A = 0xFFFFFFFF\nstruct S { 1: i32 n = 0x20 }\n"
	if _, err := parseText("x.thrift", complete(idl, lex(idl)), idl); err != nil {
		t.Error(err)
	}
}
