package thriftjson

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/ingress/internal/shop/gen-go/shop"
	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// methodsOf describes the methods of an IDL's first service.
func methodsOf(t testing.TB, text string) map[string]*gen.Method {
	t.Helper()
	services, err := gen.Describe(text)
	if err != nil || len(services) == 0 {
		t.Fatalf("%d services, %v", len(services), err)
	}
	m := map[string]*gen.Method{}
	for _, method := range services[0].Methods {
		m[method.Name] = method
	}
	return m
}

func shopMethods(t testing.TB) map[string]*gen.Method {
	t.Helper()
	text, err := os.ReadFile("../internal/shop/shop.thrift")
	if err != nil {
		t.Fatal(err)
	}
	return methodsOf(t, string(text))
}

// memory is a protocol over bytes.
func memory(b []byte) thrift.TProtocol {
	return thrift.NewTBinaryProtocolConf(&thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(b)}, &thrift.TConfiguration{})
}

// again makes JSON of the arguments that a method has got: its struct of arguments is the result of another method.
func again(m *gen.Method, args []byte) (string, error) {
	echo := &gen.Method{Name: "echo", Result: &gen.Type{Kind: gen.Struct, Name: "args", Fields: m.Arguments}}
	result := append([]byte{thrift.STRUCT, 0, 0}, args...)
	a, err := ReadAnswer(context.Background(), memory(append(result, thrift.STOP)), echo, 1<<20, nil)
	return string(a.JSON), err
}

const fullOrder = `{"order":{"number":"9007199254740993","items":[{"name":"tea","number":3,"price":2.5,"photo":"AAEC/w=="},{"name":"cup"}],` +
	`"notes":{"a":1,"":-9007199254740991},"sizes":["LARGE","SMALL"],"payment":{"cents":5},"grid":[[{"x":1,"y":-2},[1,-32768,32767]]],` +
	`"gift":true,"priority":-128,"prices":{"SMALL":"NaN","LARGE":-1e+100},"parent":{"number":1,"items":[],"notes":{},"sizes":[],` +
	`"payment":{"card":"ü\u0000"},"grid":[],"gift":false,"priority":127,"prices":{}}}}`

// TestArguments: Thrift's generated code reads what JSON says, and JSON comes out again.
func TestArguments(t *testing.T) {
	m := shopMethods(t)["echo"]
	b, err := Arguments(m, []byte(fullOrder))
	if err != nil {
		t.Fatal(err)
	}
	var args shop.ShopEchoArgs
	if err := args.Read(t.Context(), memory(b)); err != nil {
		t.Fatal(err)
	}
	o := args.Order
	if o.Number != 9007199254740993 || len(o.Items) != 2 || o.Items[0].Number != 3 || *o.Items[0].Price != 2.5 || string(o.Items[0].Photo) != "\x00\x01\x02\xff" ||
		o.Items[1].Number != 1 || o.Notes[""] != -9007199254740991 || len(o.Sizes) != 2 || o.Sizes[0] != shop.Size_LARGE || o.Payment.GetCents() != 5 ||
		!o.Gift || o.Priority != -128 || o.Prices[shop.Size_LARGE] != -1e100 || o.Parent.Payment.GetCard() != "ü\x00" {
		t.Errorf("the generated code has read %+v", o)
	}
	for p, list := range o.Grid {
		if p.X != 1 || p.Y != -2 || len(list) != 3 || list[1] != -32768 {
			t.Errorf("the grid has %v: %v", p, list)
		}
	}
	got, err := again(m, b)
	if want := fullOrder; err != nil || got != want {
		t.Errorf("%v: JSON again:\n%s\nwant\n%s", err, got, want)
	}
}

const everything = `struct One { 1: T x } typedef string T
enum E { A = 2, B }
struct Two { 1: string a, 2: optional i32 b, 3: i32 c = 4, 4: required i32 d = 5 }
union U { 1: i32 n, 2: string s }
service S {
  void bool(1: bool x) void i8(1: i8 x) void byte(1: byte x) void i16(1: i16 x) void i32(1: i32 x) void i64(1: i64 x) void double(1: double x)
  void string(1: string x) void binary(1: binary x) void uuid(1: uuid x) void enum(1: E x) void two(1: Two x) void union(1: U x)
  void list(1: list<i32> x) void set(1: set<i64> x) void ints(1: map<i32, bool> x) void bools(1: map<bool, i32> x) void doubles(1: map<double, i32> x)
  void binaries(1: map<binary, i32> x) void pairs(1: map<list<i32>, i32> x) void one(1: One x) void none() void optional(1: optional i32 x)
  void deep(1: Deep x)
}
struct Deep { 1: optional Deep x }`

// TestForms: what is written in more than one way, and comes out in one.
func TestForms(t *testing.T) {
	methods := methodsOf(t, everything)
	for _, c := range []struct{ method, in, out string }{
		{"bool", `true`, `true`},
		{"i8", `-128`, `-128`},
		{"byte", `127`, `127`},
		{"i16", ` -32768 `, `-32768`},
		{"i32", `2147483647`, `2147483647`},
		{"i32", `-0`, `0`},
		{"i64", `"5"`, `5`},
		{"i64", `9007199254740991`, `9007199254740991`},
		{"i64", `9007199254740992`, `"9007199254740992"`},
		{"i64", `"-9223372036854775808"`, `"-9223372036854775808"`},
		{"double", `1`, `1`},
		{"double", `1E2`, `100`},
		{"double", `-0.0`, `-0`},
		{"double", `"-Infinity"`, `"-Infinity"`},
		{"string", `"\ud83d\ude00\/"`, `"😀/"`},
		{"binary", `""`, `""`},
		{"uuid", `"00112233-4455-6677-8899-AABBCCDDEEFF"`, `"00112233-4455-6677-8899-aabbccddeeff"`},
		{"enum", `"A"`, `"A"`},
		{"enum", `3`, `"B"`},
		{"two", `{"a":"","d":5,"b":null}`, `{"a":"","d":5}`},
		{"two", `{"d":1,"c":null,"a":"x","b":2}`, `{"d":1,"a":"x","b":2}`},
		{"union", `{"n":null,"s":""}`, `{"s":""}`},
		{"set", `[3,1,"2"]`, `[3,1,2]`},
		{"ints", `{"-1":true}`, `{"-1":true}`},
		{"bools", `{"true":1,"false":2}`, `{"true":1,"false":2}`},
		{"doubles", `{"1.5":1,"NaN":2}`, `{"1.5":1,"NaN":2}`},
		{"binaries", `{"AA==":1}`, `{"AA==":1}`},
		{"pairs", `[[[1],2],[[],3]]`, `[[[1],2],[[],3]]`},
		{"one", `{"x":"typedef"}`, `{"x":"typedef"}`},
	} {
		b, err := Arguments(methods[c.method], []byte(`{"x":`+c.in+`}`))
		if err != nil {
			t.Errorf("%s %s: %v", c.method, c.in, err)
			continue
		}
		if got, err := again(methods[c.method], b); err != nil || got != `{"x":`+c.out+`}` {
			t.Errorf("%s %s: %s, %v", c.method, c.in, got, err)
		}
	}
	for _, c := range [][2]string{{"none", ""}, {"none", "{}"}, {"optional", " \n"}, {"optional", `{"x":null}`}} {
		if b, err := Arguments(methods[c[0]], []byte(c[1])); err != nil || len(b) != 1 {
			t.Errorf("%s %q: %x, %v", c[0], c[1], b, err)
		}
	}
}

// TestMismatches: what does not fit is refused, with the place, what should be there, and what is.
func TestMismatches(t *testing.T) {
	methods := methodsOf(t, everything)
	deep := strings.Repeat(`{"x":`, MaxDepth+1) + "{}" + strings.Repeat("}", MaxDepth+1)
	for _, c := range []struct{ method, body, want string }{
		{"i8", ``, `/x: expected a whole number of -128 to 127, found nothing`},
		{"i8", `[]`, `the body: expected an object: struct i8, found an array`},
		{"i8", `{"x":128}`, `/x: expected a whole number of -128 to 127, found 128`},
		{"i8", `{"x":1.0}`, `/x: expected a whole number of -128 to 127, found 1.0`},
		{"i8", `{"x":"1"}`, `/x: expected a whole number of -128 to 127, found "1"`},
		{"i8", `{"x":null}`, `/x: expected a whole number of -128 to 127, found null`},
		{"i16", `{"x":32768}`, `/x: expected a whole number of -32768 to 32767, found 32768`},
		{"i32", `{"x":1e2}`, `/x: expected a whole number of -2147483648 to 2147483647, found 1e2`},
		{"i64", `{"x":9223372036854775808}`, `found 9223372036854775808`},
		{"i64", `{"x":"+1"}`, `found "+1"`},
		{"double", `{"x":1e999}`, `found 1e999`},
		{"double", `{"x":"nan"}`, `found "nan"`},
		{"bool", `{"x":1}`, `/x: expected true or false, found 1`},
		{"string", `{"x":7}`, `/x: expected a string, found 7`},
		{"string", `{"x":"` + strings.Repeat("y", 100) + `","x":""}`, `/x: expected each name once, found the name again`},
		{"string", "{\"x\":\"\xff\"}", `at byte`},
		{"string", `{"x":"\ud800"}`, `at byte`},
		{"string", `{"x":"cut`, `/x: expected more, found the end of the body, at byte 9`},
		{"string", `{"x":"y"`, `expected more, found the end of the body`},
		{"string", `{"x":"y"} {}`, `the body: expected one JSON value, found more behind it`},
		{"string", `{"y":1}`, `/y: expected a member x, found a member of another name`},
		{"none", `{"y":1}`, `/y: expected no members, found a member of another name`},
		{"binary", `{"x":"A"}`, `/x: expected a string in base64, found "A"`},
		{"binary", `{"x":"AA\n=="}`, `/x: expected a string in base64`},
		{"binary", `{"x":"AB=="}`, `/x: expected a string in base64`},
		{"uuid", `{"x":"{00112233-4455-6677-8899-aabbccddeeff}"}`, `/x: expected a string like`},
		{"enum", `{"x":"C"}`, `/x: expected a value of enum E: A (2), B (3), found "C"`},
		{"enum", `{"x":"2"}`, `found "2"`},
		{"enum", `{"x":7}`, `found 7`},
		{"two", `{"x":{"a":"","d":null}}`, `/x/d: expected a whole number`},
		{"two", `{"x":{"a":""}}`, `/x/d: expected a whole number of -2147483648 to 2147483647, found nothing`},
		{"union", `{"x":{}}`, `/x: expected an object with one member: union U, found 0 members`},
		{"union", `{"x":{"n":1,"s":""}}`, `/x: expected an object with one member: union U, found 2 members`},
		{"list", `{"x":[1,"2"]}`, `/x/1: expected a whole number of -2147483648 to 2147483647, found "2"`},
		{"set", `{"x":[1,2,"1"]}`, `/x/2: expected an array without an element twice, found an element again`},
		{"ints", `{"x":{"01":true}}`, `/x/01: expected as the member's name a whole number`},
		{"ints", `{"x":{"1":true,"1":true}}`, `/x/1: expected each name once`},
		{"enum", `{"x":{}}`, `found an object`},
		{"pairs", `{"x":[[[1],2],[[1],3]]}`, `a key again`},
		{"pairs", `{"x":[[[1]]]}`, `an array that is no pair`},
		{"pairs", `{"x":[[[1],2,3]]}`, `found 3`},
		{"pairs", `{"x":{}}`, `/x: expected an array of pairs [key, value], found an object`},
		{"deep", deep, `at most 64 objects and arrays within each other`},
	} {
		b, err := Arguments(methods[c.method], []byte(c.body))
		var m *Mismatch
		if !errors.As(err, &m) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %.80s: %v, %x, want %s", c.method, c.body, err, b, c.want)
		}
	}
}

// TestReadAnswer: results, exceptions, and answers that are none.
func TestReadAnswer(t *testing.T) {
	methods := shopMethods(t)
	write := func(s thrift.TStruct) []byte {
		buf := thrift.NewTMemoryBuffer()
		if err := s.Write(t.Context(), thrift.NewTBinaryProtocolConf(buf, &thrift.TConfiguration{})); err != nil {
			t.Fatal(err)
		}
		return buf.Bytes()
	}
	five := int64(5)
	for _, c := range []struct {
		method string
		b      []byte
		most   int
		want   Answer
		err    string
	}{
		{"buy", write(&shop.ShopBuyResult{Success: &five}), 100, Answer{JSON: []byte(`5`)}, ""},
		{"buy", write(&shop.ShopBuyResult{SoldOut: &shop.SoldOut{Item: "tea", Left: 2}}), 100, Answer{JSON: []byte(`{"item":"tea","left":2}`), Exception: "SoldOut", Field: "soldOut"}, ""},
		{"fail", write(&shop.ShopFailResult{}), 100, Answer{JSON: []byte(`null`)}, ""},
		{"buy", write(&shop.ShopBuyResult{}), 100, Answer{}, "it has no result"},
		{"fail", write(&shop.ShopFailResult{SoldOut: &shop.SoldOut{Item: strings.Repeat("x", 200)}}), 100, Answer{}, "too large"},
		{"fail", write(&shop.ShopFailResult{SoldOut: &shop.SoldOut{Item: "\xff"}}), 100, Answer{}, "item: a string is not UTF-8"},
		{"echo", []byte{thrift.STRUCT, 0, 0, thrift.LIST, 0, 2, thrift.I32, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0}, 100, Answer{}, "items: a list of Thrift type 8"},
		{"buy", []byte{thrift.I64, 0, 0, 1}, 100, Answer{}, "EOF"},
		{"buy", []byte{thrift.STRING, 0, 9, 0, 0, 0, 1, 'x', thrift.I64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0}, 100, Answer{JSON: []byte(`7`)}, ""},
	} {
		a, err := ReadAnswer(t.Context(), memory(c.b), methods[c.method], c.most, nil)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.method, err, c.err)
			}
			continue
		}
		if err != nil || string(a.JSON) != string(c.want.JSON) || a.Exception != c.want.Exception || a.Field != c.want.Field {
			t.Errorf("%s: %s %+v, %v", c.method, a.JSON, a, err)
		}
	}
}

// TestCallable: methods with pointers, or with types that nobody knows, are refused; others of the same IDL are not.
func TestCallable(t *testing.T) {
	methods := methodsOf(t, `include "bifrost.thrift" include "elsewhere.thrift"
struct Box { 1: list<map<string, bifrost.GlobalPointer>> inside }
service S { void in(1: Box b) Box out() void strange(1: elsewhere.Thing t) void plain(1: i32 n) void ref(1: bifrost.Reference r) }`)
	for name, want := range map[string]string{
		"in": "b has a global pointer", "out": "the result has a global pointer", "strange": "type Thing is not defined in elsewhere.thrift", "plain": "", "ref": "global pointer",
	} {
		err := Callable(methods[name])
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
}

// FuzzArguments: whatever JSON comes, it is refused as a Mismatch, or makes a message that says the same in JSON again.
func FuzzArguments(f *testing.F) {
	methods := methodsOf(f, everything)
	order := shopMethods(f)["echo"]
	methods["order"] = order
	f.Add("order", []byte(fullOrder))
	f.Add("pairs", []byte(`{"x":[[[1],2]]}`))
	f.Add("ints", []byte(`{"x":{"1":true}}`))
	f.Add("i64", []byte(`{"x":"9223372036854775807"}`))
	f.Add("deep", []byte(strings.Repeat(`{"x":`, 1000)))
	f.Add("double", []byte(`{"x":"Infinity"}`))
	f.Fuzz(func(t *testing.T, name string, body []byte) {
		m := methods[name]
		if m == nil {
			t.Skip()
		}
		b, err := Arguments(m, body)
		if err != nil {
			var bad *Mismatch
			if !errors.As(err, &bad) || len(bad.Found) > 200 {
				t.Fatalf("%v", err)
			}
			return
		}
		json, err := again(m, b)
		if err != nil {
			t.Fatalf("%q makes %x, which is no message: %v", body, b, err)
		}
		if b2, err := Arguments(m, []byte(json)); err != nil || !bytes.Equal(b, b2) {
			t.Fatalf("%q makes %x; as JSON that is %s, which makes %x, %v", body, b, json, b2, err)
		}
	})
}

// FuzzReadAnswer: whatever a callee answers, the ingress makes JSON of it or refuses it, within the bounds.
func FuzzReadAnswer(f *testing.F) {
	m := shopMethods(f)["echo"]
	args, err := Arguments(m, []byte(fullOrder))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(append([]byte{thrift.STRUCT, 0, 0}, append(args[3:], 0)...))
	f.Add([]byte{thrift.STRUCT, 0, 0, thrift.LIST, 0, 2, thrift.STRUCT, 0x7f, 0xff, 0xff, 0xff, 0})
	f.Add(bytes.Repeat([]byte{thrift.STRUCT, 0, 10}, 1000))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ReadAnswer(t.Context(), memory(b), m, 1<<16, nil)
		if err == nil && (len(a.JSON) > 1<<17 || !json.Valid(a.JSON) || (a.Exception == "") != (a.Field == "")) {
			t.Fatalf("%d bytes of JSON: %+v %s", len(a.JSON), a, a.JSON)
		}
	})
}
