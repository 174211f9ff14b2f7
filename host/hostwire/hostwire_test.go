package hostwire

import (
	"bytes"
	"errors"
	"io"
	"reflect"
	"strings"
	"testing"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// bodies are the kinds of bodies: each is parsed, and what was parsed is appended.
var bodies = map[string]func(b []byte) ([]byte, error){
	"call":   func(b []byte) ([]byte, error) { v, err := ParseCall(b); return v.Append(nil), err },
	"fail":   func(b []byte) ([]byte, error) { v, err := ParseFail(b); return v.Append(nil), err },
	"result": func(b []byte) ([]byte, error) { v, err := ParseResult(b); return v.Append(nil), err },
	"set":    func(b []byte) ([]byte, error) { v, err := ParseSet(b); return v.Append(nil), err },
	"keys":   func(b []byte) ([]byte, error) { v, err := ParseKeys(b); return AppendKeys(nil, v), err },
	"invoke": func(b []byte) ([]byte, error) { v, err := ParseInvoke(b); return v.Append(nil), err },
	"log":    func(b []byte) ([]byte, error) { v, err := ParseLog(b); return v.Append(nil), err },
	"key":    func(b []byte) ([]byte, error) { v, err := ParseKey(b); return []byte(v), err },
}

// examples are bodies with all that they can have.
func examples() [][]byte {
	headers := []Header{{"tenant", "blue"}, {"ß", ""}}
	return [][]byte{
		(&CallBody{Flags: FlagOneway, Timeout: 7, Service: "Bank", ID: "0a", Caller: "fd00::1", Headers: headers, Message: []byte("message")}).Append(nil),
		(&FailBody{Code: fault.NotFound, Data: []byte("no such account")}).Append(nil),
		(&ResultBody{Code: fault.Unavailable, Flags: FlagRemote | FlagNeverBegan, Data: []byte("gone")}).Append(nil),
		(&SetBody{Key: "account/1", Value: []byte{0, 1}}).Append(nil),
		AppendKeys(nil, []string{"", "a", "b"}),
		(&InvokeBody{Policy: NoPolicy, Timeout: 1 << 31, Service: "Mail", Headers: headers, Message: []byte("message")}).Append(nil),
		(&LogBody{Level: 3, Text: "failed"}).Append(nil),
		[]byte("key"),
	}
}

// TestBodies: what is appended is parsed again as it was; what is cut short, or is no UTF-8, is refused.
func TestBodies(t *testing.T) {
	want := CallBody{Flags: FlagOneway, Timeout: 7, Service: "Bank", ID: "0a", Caller: "fd00::1", Headers: []Header{{"tenant", "blue"}, {"ß", ""}}, Message: []byte("message")}
	if got, err := ParseCall(examples()[0]); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v", got, err)
	}
	invoke := examples()[5]
	for n := range len(invoke) - len("message") {
		if _, err := ParseInvoke(invoke[:n]); !errors.Is(err, ErrFrame) {
			t.Errorf("an invoke cut after %d bytes: %v", n, err)
		}
	}
	for what, err := range map[string]error{
		"no UTF-8":                    second(ParseSet([]byte{0, 0, 0, 1, 0xff})),
		"65 headers":                  second(ParseInvoke(append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 65}, make([]byte, 65*8)...))),
		"policy 4":                    second(ParseInvoke([]byte{4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})),
		"code 99":                     second(ParseFail([]byte{99})),
		"flags 0x8":                   second(ParseResult([]byte{0, 8})),
		"flags 0x2":                   second(ParseCall(append([]byte{2}, make([]byte, 20)...))),
		"bytes behind the last field": second(ParseRandom([]byte{0, 0, 0, 1, 0})),
	} {
		if !errors.Is(err, ErrFrame) || !strings.Contains(err.Error(), what) {
			t.Errorf("%v, want %q", err, what)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// FuzzBodies: no body makes a parser panic, and what parses is what is appended again.
func FuzzBodies(f *testing.F) {
	for _, b := range examples() {
		f.Add(b)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		for name, again := range bodies {
			if got, err := again(b); err == nil && !bytes.Equal(got, b) {
				t.Errorf("%s: %x has become %x", name, b, got)
			} else if err != nil && !errors.Is(err, ErrFrame) {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// FuzzRead: no stream makes the reader panic, or take memory for bytes that do not come; what it reads is what was sent.
func FuzzRead(f *testing.F) {
	var stream []byte
	for k := Hello; k.Known(); k++ {
		f := Frame{Kind: k, Call: uint32(k), Body: []byte(k.String())}
		stream = f.Append(stream)
	}
	f.Add(stream, 1000)
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0}, 1<<40)
	f.Add([]byte{0, 0, 0, 4, 1, 0, 0, 0, 0}, 5)
	f.Fuzz(func(t *testing.T, b []byte, limit int) {
		r := bytes.NewReader(b)
		var again []byte
		for {
			f, err := Read(r, limit)
			if err == nil {
				again = f.Append(again)
				continue
			}
			if !errors.Is(err, ErrFrame) && !errors.Is(err, io.ErrUnexpectedEOF) && err != io.EOF { //nolint:errorlint // it is the bare one
				t.Error(err)
			}
			break
		}
		if !bytes.HasPrefix(b, again) {
			t.Errorf("%x was read as %x", b, again)
		}
	})
}

// FuzzHello: no hello makes the parser panic, and one that it takes can be served: its names are there once.
func FuzzHello(f *testing.F) {
	f.Add([]byte(`{"version":1,"speaks":"python","name":"bank","services":[{"name":"Bank","methods":["add"],"idl":"service Bank {}","state":true,"workers":3,"queue":4,"policies":{"":"recover","add":"none"},"max_failures":{"add":3}}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"services":[{"name":"a","methods":["a","a"]}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			return
		}
		names, total := map[string]bool{}, 0
		for _, s := range h.Services {
			total += len(s.Methods)
			for _, m := range s.Methods {
				names[s.Name+"\x00"+m] = true
			}
		}
		if total != len(names) || total == 0 {
			t.Errorf("%d methods, %d names", total, len(names))
		}
	})
}
