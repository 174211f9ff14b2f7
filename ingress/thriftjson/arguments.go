package thriftjson

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// Arguments turns a JSON object with a call's arguments by their names into the method's struct of arguments, in Thrift's binary
// protocol. A body without anything in it counts as an object without members. The method must be [Callable]. Errors are *Mismatch.
func Arguments(m *gen.Method, body []byte) ([]byte, error) {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("{}")
	}
	r := &reader{in: jsontext.NewDecoder(bytes.NewReader(body))}
	if err := r.object(&gen.Type{Kind: gen.Struct, Name: m.Name, Fields: m.Arguments}, 1); err != nil {
		return nil, err
	}
	if _, err := r.in.ReadToken(); err != io.EOF { //nolint:errorlint // it is not wrapped
		if err != nil {
			return nil, badSyntax(err)
		}
		return nil, &Mismatch{Expected: "one JSON value", Found: fmt.Sprintf("more behind it, at byte %d", r.in.InputOffset())}
	}
	return r.out, nil
}

// reader reads JSON and writes Thrift.
type reader struct {
	in  *jsontext.Decoder
	out []byte
}

// mismatch is that of the value which was read last.
func (r *reader) mismatch(t *gen.Type, found string) error {
	return &Mismatch{Pointer: string(r.in.StackPointer()), Expected: describe(t), Found: shown(found)}
}

// token reads the next token of a value.
func (r *reader) token() (jsontext.Token, error) {
	t, err := r.in.ReadToken()
	if err == io.EOF { //nolint:errorlint // it is not wrapped
		return t, &Mismatch{Expected: "JSON", Found: "nothing"}
	}
	if err != nil {
		return t, badSyntax(err)
	}
	return t, nil
}

// found is a token as an error tells it.
func found(t jsontext.Token) string {
	switch t.Kind() {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return strconv.Quote(shown(t.String()))
	default:
		return t.String()
	}
}

// value reads a value of a type. Deep is how many objects and arrays it stands in.
func (r *reader) value(t *gen.Type, deep int) error {
	if deep > MaxDepth {
		return &Mismatch{
			Pointer: string(r.in.StackPointer()), Expected: fmt.Sprintf("at most %d objects and arrays within each other", MaxDepth), Found: "more",
		}
	}
	switch t.Kind {
	case gen.Struct, gen.Union, gen.Exception:
		return r.object(t, deep+1)
	case gen.List, gen.Set:
		return r.array(t, deep+1)
	case gen.Map:
		if Named(t.Key) {
			return r.named(t, deep+1)
		}
		return r.pairs(t, deep+1)
	default:
		tok, err := r.token()
		if err != nil {
			return err
		}
		return r.scalar(t, tok)
	}
}

// scalar takes a value that is one token.
func (r *reader) scalar(t *gen.Type, tok jsontext.Token) error {
	kind := tok.Kind()
	switch t.Kind {
	case gen.Bool:
		if kind != 't' && kind != 'f' {
			return r.mismatch(t, found(tok))
		}
		r.bool(tok.Bool())
		return nil
	case gen.I8, gen.I16, gen.I32, gen.I64:
		if kind != '0' && (kind != '"' || t.Kind != gen.I64) {
			return r.mismatch(t, found(tok))
		}
	case gen.Double:
		if kind != '0' && kind != '"' || kind == '"' && !notFinite[tok.String()] {
			return r.mismatch(t, found(tok))
		}
	case gen.Enum:
		if kind != '0' && kind != '"' {
			return r.mismatch(t, found(tok))
		}
		if _, err := strconv.Atoi(tok.String()); kind == '"' && err == nil {
			return r.mismatch(t, found(tok)) // a name is no number in quotes
		}
	default:
		if kind != '"' {
			return r.mismatch(t, found(tok))
		}
	}
	if err := r.text(t, tok.String()); err != nil {
		return r.mismatch(t, found(tok))
	}
	return nil
}

// notFinite are the names of doubles that are no JSON numbers.
var notFinite = map[string]bool{"NaN": true, "Infinity": true, "-Infinity": true}

// bitsOf are those of the types of whole numbers.
var bitsOf = map[gen.Kind]int{gen.I8: 8, gen.I16: 16, gen.I32: 32, gen.I64: 64}

// text takes a value from its text: that of a token, or the name of a member. Any error is a mismatch.
func (r *reader) text(t *gen.Type, s string) error {
	switch t.Kind {
	case gen.Bool:
		if s != "true" && s != "false" {
			return errNoSuch
		}
		r.bool(s == "true")
	case gen.I8, gen.I16, gen.I32, gen.I64:
		n, err := strconv.ParseInt(s, 10, bitsOf[t.Kind])
		if err != nil || strconv.FormatInt(n, 10) != s && s != "-0" {
			return errNoSuch
		}
		r.whole(t.Kind, n)
	case gen.Double:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !notFinite[s] && !jsontext.Value(s).IsValid() {
			return errNoSuch
		}
		r.out = binary.BigEndian.AppendUint64(r.out, math.Float64bits(f))
	case gen.Binary:
		b, err := base64.StdEncoding.Strict().DecodeString(s)
		if err != nil || strings.ContainsAny(s, "\r\n") {
			return errNoSuch
		}
		r.bytes(b)
	case gen.UUID:
		u, err := thrift.ParseTuuid(s)
		if err != nil || !strings.EqualFold(u.String(), s) {
			return errNoSuch
		}
		r.out = append(r.out, u[:]...)
	case gen.Enum:
		n, ok := enumNumber(t, s)
		if !ok {
			return errNoSuch
		}
		r.whole(gen.I32, int64(n))
	default:
		r.bytes([]byte(s))
	}
	return nil
}

var errNoSuch = strconv.ErrSyntax

func enumNumber(t *gen.Type, s string) (int32, bool) {
	for _, v := range t.Values {
		if v.Name == s || strconv.Itoa(int(v.Number)) == s {
			return v.Number, true
		}
	}
	return 0, false
}

func (r *reader) bool(b bool) {
	if b {
		r.out = append(r.out, 1)
	} else {
		r.out = append(r.out, 0)
	}
}

func (r *reader) whole(k gen.Kind, n int64) {
	for shift := bitsOf[k] - 8; shift >= 0; shift -= 8 {
		r.out = append(r.out, byte(n>>shift))
	}
}

func (r *reader) bytes(b []byte) {
	r.out = binary.BigEndian.AppendUint32(r.out, uint32(len(b))) //nolint:gosec // no longer than the body
	r.out = append(r.out, b...)
}

// open reads the beginning of an object or array.
func (r *reader) open(t *gen.Type, kind jsontext.Kind) error {
	tok, err := r.token()
	if err == nil && tok.Kind() != kind {
		err = r.mismatch(t, found(tok))
	}
	return err
}

// more reports whether there is another element or member.
func (r *reader) more(closing jsontext.Kind) (bool, error) {
	if r.in.PeekKind() != closing {
		return true, nil
	}
	_, err := r.token()
	return false, err
}

// object reads a struct, a union or an exception.
func (r *reader) object(t *gen.Type, deep int) error {
	if err := r.open(t, '{'); err != nil {
		return err
	}
	at := r.in.StackPointer()
	has := map[int16]bool{}
	for {
		more, err := r.more('}')
		if err != nil {
			return err
		}
		if !more {
			break
		}
		tok, err := r.token()
		if err != nil {
			return err
		}
		f := fieldOf(t, tok.String())
		if f == nil {
			return &Mismatch{Pointer: string(r.in.StackPointer()), Expected: fieldNames(t), Found: "a member of another name"}
		}
		if r.in.PeekKind() == 'n' && (f.Optional || t.Kind == gen.Union) {
			if _, err := r.token(); err != nil {
				return err
			}
			continue
		}
		has[f.ID] = true
		r.out = append(r.out, wireOf[f.Type.Kind], byte(f.ID>>8), byte(f.ID))
		if err := r.value(f.Type, deep); err != nil {
			return err
		}
	}
	r.out = append(r.out, thrift.STOP)
	if t.Kind == gen.Union {
		if len(has) != 1 {
			return &Mismatch{Pointer: string(at), Expected: describe(t), Found: fmt.Sprintf("%d members", len(has))}
		}
		return nil
	}
	for i := range t.Fields {
		if f := &t.Fields[i]; !f.Optional && !has[f.ID] {
			return &Mismatch{Pointer: string(at.AppendToken(f.Name)), Expected: describe(f.Type), Found: "nothing"}
		}
	}
	return nil
}

func fieldOf(t *gen.Type, name string) *gen.Field {
	for i := range t.Fields {
		if t.Fields[i].Name == name {
			return &t.Fields[i]
		}
	}
	return nil
}

// fieldNames are the names of which a member of an object may have one.
func fieldNames(t *gen.Type) string {
	if len(t.Fields) == 0 {
		return "no members"
	}
	s := "a member "
	for i, f := range t.Fields {
		switch {
		case i == mostNames:
			return s + ", …"
		case i > 0:
			s += ", "
		}
		s += f.Name
	}
	return s
}

// header keeps the place of how many elements there are.
func (r *reader) header(kinds ...gen.Kind) (at int) {
	for _, k := range kinds {
		r.out = append(r.out, wireOf[k])
	}
	r.out = append(r.out, 0, 0, 0, 0)
	return len(r.out) - 4
}

func (r *reader) count(at, n int) {
	binary.BigEndian.PutUint32(r.out[at:], uint32(n)) //nolint:gosec // fewer than the body has bytes
}

// once reports whether what was written from start on is new, and remembers it.
func (r *reader) once(known map[string]bool, start int) bool {
	b := string(r.out[start:])
	if known[b] {
		return false
	}
	known[b] = true
	return true
}

// array reads a list or a set.
func (r *reader) array(t *gen.Type, deep int) error {
	if err := r.open(t, '['); err != nil {
		return err
	}
	at, known := r.header(t.Elem.Kind), map[string]bool{}
	for n := 0; ; n++ {
		more, err := r.more(']')
		if err != nil {
			return err
		}
		if !more {
			r.count(at, n)
			return nil
		}
		start := len(r.out)
		if err := r.value(t.Elem, deep); err != nil {
			return err
		}
		if t.Kind == gen.Set && !r.once(known, start) {
			return r.mismatch(t, "an element again")
		}
	}
}

// named reads a map that is an object.
func (r *reader) named(t *gen.Type, deep int) error {
	if err := r.open(t, '{'); err != nil {
		return err
	}
	at, known := r.header(t.Key.Kind, t.Elem.Kind), map[string]bool{}
	for n := 0; ; n++ {
		more, err := r.more('}')
		if err != nil {
			return err
		}
		if !more {
			r.count(at, n)
			return nil
		}
		tok, err := r.token()
		if err != nil {
			return err
		}
		name, start := tok.String(), len(r.out)
		if err := r.text(t.Key, name); err != nil {
			return &Mismatch{Pointer: string(r.in.StackPointer()), Expected: "as the member's name " + describe(t.Key), Found: strconv.Quote(shown(name))}
		}
		if !r.once(known, start) {
			return &Mismatch{Pointer: string(r.in.StackPointer()), Expected: "each key once", Found: "the key again: " + strconv.Quote(shown(name))}
		}
		if err := r.value(t.Elem, deep); err != nil {
			return err
		}
	}
}

// pairs reads a map that is an array.
func (r *reader) pairs(t *gen.Type, deep int) error {
	if err := r.open(t, '['); err != nil {
		return err
	}
	at, known := r.header(t.Key.Kind, t.Elem.Kind), map[string]bool{}
	for n := 0; ; n++ {
		more, err := r.more(']')
		if err != nil {
			return err
		}
		if !more {
			r.count(at, n)
			return nil
		}
		if err := r.open(t, '['); err != nil {
			return err
		}
		start := len(r.out)
		if err := r.part(t, t.Key, deep); err != nil {
			return err
		}
		if !r.once(known, start) {
			return r.mismatch(t, "a key again")
		}
		if err := r.part(t, t.Elem, deep); err != nil {
			return err
		}
		if err := r.open(t, ']'); err != nil {
			return err
		}
	}
}

// part reads the key or the value of a pair.
func (r *reader) part(t, part *gen.Type, deep int) error {
	if r.in.PeekKind() == ']' {
		return r.mismatch(t, "an array that is no pair")
	}
	return r.value(part, deep+1)
}

// wireOf are Thrift's numbers for types.
var wireOf = [...]byte{
	gen.Bool: thrift.BOOL, gen.I8: thrift.BYTE, gen.I16: thrift.I16, gen.I32: thrift.I32, gen.I64: thrift.I64, gen.Double: thrift.DOUBLE,
	gen.String: thrift.STRING, gen.Binary: thrift.STRING, gen.UUID: thrift.UUID, gen.Enum: thrift.I32,
	gen.Struct: thrift.STRUCT, gen.Union: thrift.STRUCT, gen.Exception: thrift.STRUCT, gen.List: thrift.LIST, gen.Set: thrift.SET, gen.Map: thrift.MAP,
}
