package thriftjson

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/thrift/lib/go/thrift"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/bifrost-rack/bifrost/rpc/gen"
)

// Answer is what a call has come to: a result, or an exception that the IDL declares.
type Answer struct {
	// JSON is the result, null for void, or the exception's fields as an object.
	JSON []byte
	// Exception is the type of the exception, "" for a result; Field is what the method calls it.
	Exception, Field string
	// ByReference: the result is in the struct that ReadAnswer was given for it, and there is no JSON.
	ByReference bool
}

// ErrTooLarge says that an answer has more JSON than it may have.
var ErrTooLarge = errors.New("the answer is too large")

// ReadAnswer reads the method's struct of results from a protocol. The JSON may have so many bytes at most; else the error is
// [ErrTooLarge]. Other errors say that the answer does not fit the IDL. A result that comes by reference is read into a struct; nil if the call
// was made by value.
func ReadAnswer(ctx context.Context, p thrift.TProtocol, m *gen.Method, most int, reference thrift.TStruct) (a Answer, err error) {
	w := &writer{in: p, most: most}
	if _, err := p.ReadStructBegin(ctx); err != nil {
		return a, err
	}
	for {
		_, kind, id, err := p.ReadFieldBegin(ctx)
		if err != nil {
			return a, err
		}
		if kind == thrift.STOP {
			break
		}
		if reference != nil && m.ResultByReference && id == 0 && kind == thrift.STRUCT {
			if err := reference.Read(ctx, p); err != nil {
				return a, fmt.Errorf("the answer does not fit the IDL of %s: %w", m.Name, err)
			}
			a = Answer{ByReference: true}
			continue
		}
		t, exception, field := outcomeOf(m, id)
		if t == nil || wireOf[t.Kind] != byte(kind) {
			if err := p.Skip(ctx, kind); err != nil {
				return a, err
			}
			continue
		}
		w.out = w.out[:0]
		if err := w.value(ctx, t, 0); err != nil {
			return a, fmt.Errorf("the answer does not fit the IDL of %s: %w", m.Name, err)
		}
		a = Answer{JSON: w.out, Exception: exception, Field: field}
		if err := p.ReadFieldEnd(ctx); err != nil {
			return a, err
		}
	}
	if err := p.ReadStructEnd(ctx); err != nil {
		return a, err
	}
	if a.JSON == nil && !a.ByReference {
		if m.Result != nil {
			return a, fmt.Errorf("the answer does not fit the IDL of %s: it has no result", m.Name)
		}
		a.JSON = []byte("null")
	}
	return a, nil
}

// outcomeOf is the type of a field of the struct of results.
func outcomeOf(m *gen.Method, id int16) (t *gen.Type, exception, field string) {
	if id == 0 {
		return m.Result, "", ""
	}
	for _, f := range m.Throws {
		if f.ID == id {
			return f.Type, f.Type.Name, f.Name
		}
	}
	return nil, "", ""
}

// writer reads Thrift and writes JSON.
type writer struct {
	in   thrift.TProtocol
	out  []byte
	most int
}

func (w *writer) add(s string) { w.out = append(w.out, s...) }

// value writes a value of a type. Deep is how many objects and arrays it stands in.
func (w *writer) value(ctx context.Context, t *gen.Type, deep int) error {
	switch {
	case len(w.out) > w.most:
		return ErrTooLarge
	case deep > MaxDepth:
		return fmt.Errorf("more than %d values within each other", MaxDepth)
	}
	switch t.Kind {
	case gen.Struct, gen.Union, gen.Exception:
		return w.object(ctx, t, deep+1)
	case gen.List:
		kind, n, err := w.in.ReadListBegin(ctx)
		if err != nil {
			return err
		}
		return w.array(ctx, t, kind, n, deep+1, w.in.ReadListEnd)
	case gen.Set:
		kind, n, err := w.in.ReadSetBegin(ctx)
		if err != nil {
			return err
		}
		return w.array(ctx, t, kind, n, deep+1, w.in.ReadSetEnd)
	case gen.Map:
		return w.pairs(ctx, t, deep+1)
	default:
		text, quoted, err := w.scalar(ctx, t)
		if err == nil && quoted {
			if w.out, err = jsontext.AppendQuote(w.out, text); err == nil && len(w.out) > w.most {
				err = ErrTooLarge
			}
			return err
		}
		w.add(text)
		return err
	}
}

// mostExact is the largest whole number that JavaScript can tell from its neighbours.
const mostExact = 1<<53 - 1

// scalar reads a value that is one token, and whether it is a string in JSON.
func (w *writer) scalar(ctx context.Context, t *gen.Type) (text string, quoted bool, err error) {
	switch t.Kind {
	case gen.Bool:
		b, err := w.in.ReadBool(ctx)
		return strconv.FormatBool(b), false, err
	case gen.I8:
		n, err := w.in.ReadByte(ctx)
		return strconv.Itoa(int(n)), false, err
	case gen.I16:
		n, err := w.in.ReadI16(ctx)
		return strconv.Itoa(int(n)), false, err
	case gen.I32:
		n, err := w.in.ReadI32(ctx)
		return strconv.Itoa(int(n)), false, err
	case gen.I64:
		n, err := w.in.ReadI64(ctx)
		return strconv.FormatInt(n, 10), n > mostExact || n < -mostExact, err
	case gen.Double:
		f, err := w.in.ReadDouble(ctx)
		text, quoted = double(f)
		return text, quoted, err
	case gen.Binary:
		b, err := w.in.ReadBinary(ctx)
		return base64.StdEncoding.EncodeToString(b), true, err
	case gen.UUID:
		u, err := w.in.ReadUUID(ctx)
		return u.String(), true, err
	case gen.Enum:
		n, err := w.in.ReadI32(ctx)
		for _, v := range t.Values {
			if v.Number == n {
				return v.Name, true, err
			}
		}
		return strconv.Itoa(int(n)), false, err
	default:
		s, err := w.in.ReadString(ctx)
		if err == nil && !utf8.ValidString(s) {
			err = errors.New("a string is not UTF-8: its IDL should have the type binary")
		}
		return s, true, err
	}
}

func double(f float64) (text string, quoted bool) {
	switch {
	case math.IsNaN(f):
		return "NaN", true
	case math.IsInf(f, 1):
		return "Infinity", true
	case math.IsInf(f, -1):
		return "-Infinity", true
	}
	return string(jsontext.AppendFloat(nil, f, 64)), false
}

// object writes a struct, a union or an exception. Fields that the IDL does not know, or knows with another type, are left out, as
// Thrift's own code does.
func (w *writer) object(ctx context.Context, t *gen.Type, deep int) error {
	if _, err := w.in.ReadStructBegin(ctx); err != nil {
		return err
	}
	w.add("{")
	known := map[int16]bool{}
	for {
		_, kind, id, err := w.in.ReadFieldBegin(ctx)
		if err != nil {
			return err
		}
		if kind == thrift.STOP {
			break
		}
		f := numbered(t, id)
		if f == nil || wireOf[f.Type.Kind] != byte(kind) {
			if err := w.in.Skip(ctx, kind); err != nil {
				return err
			}
			continue
		}
		if known[id] {
			return fmt.Errorf("field %s of %s comes twice", f.Name, t.Name)
		}
		if len(known) > 0 {
			w.add(",")
		}
		known[id] = true
		w.add(strconv.Quote(f.Name) + ":") // names of IDL are ASCII
		if err := w.value(ctx, f.Type, deep); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
		if err := w.in.ReadFieldEnd(ctx); err != nil {
			return err
		}
	}
	w.add("}")
	return w.in.ReadStructEnd(ctx)
}

func numbered(t *gen.Type, id int16) *gen.Field {
	for i := range t.Fields {
		if t.Fields[i].ID == id {
			return &t.Fields[i]
		}
	}
	return nil
}

// array writes a list or a set.
func (w *writer) array(ctx context.Context, t *gen.Type, kind thrift.TType, n, deep int, end func(context.Context) error) error {
	if n > 0 && byte(kind) != wireOf[t.Elem.Kind] {
		return fmt.Errorf("a %s of Thrift type %d", t.Kind, kind)
	}
	w.add("[")
	for i := range n {
		if i > 0 {
			w.add(",")
		}
		if err := w.value(ctx, t.Elem, deep); err != nil {
			return err
		}
	}
	w.add("]")
	return end(ctx)
}

// pairs writes a map.
func (w *writer) pairs(ctx context.Context, t *gen.Type, deep int) error {
	key, value, n, err := w.in.ReadMapBegin(ctx)
	if err != nil {
		return err
	}
	if n > 0 && (byte(key) != wireOf[t.Key.Kind] || byte(value) != wireOf[t.Elem.Kind]) {
		return fmt.Errorf("a map of Thrift types %d and %d", key, value)
	}
	named := Named(t.Key)
	begin, between, end := "[", ",", "]"
	if named {
		begin, between, end = "{", ":", "}"
	}
	known := map[string]bool{}
	w.add(begin)
	for i := range n {
		if i > 0 {
			w.add(",")
		}
		if named {
			text, _, err := w.scalar(ctx, t.Key)
			if err != nil {
				return err
			}
			if known[text] {
				return fmt.Errorf("a map with the key %q twice", shown(text))
			}
			known[text] = true
			if w.out, err = jsontext.AppendQuote(w.out, text); err != nil {
				return err
			}
		} else {
			w.add("[")
			if err := w.value(ctx, t.Key, deep+1); err != nil {
				return err
			}
		}
		w.add(between)
		if err := w.value(ctx, t.Elem, deep); err != nil {
			return err
		}
		if !named {
			w.add("]")
		}
	}
	w.add(end)
	return w.in.ReadMapEnd(ctx)
}
