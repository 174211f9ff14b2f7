// Package wire decodes p4.v1.WriteRequest as package proto does, in half the time:
// held packets wait for it. Messages that belong together are allocated together,
// and whatever is not as in the usual table entry (exact and prefix matches, one
// action) is left to package proto.
package wire

import (
	"bytes"
	"unicode/utf8"

	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Unmarshal is proto.Unmarshal for a WriteRequest. The result shares no memory
// with b.
func Unmarshal(b []byte, r *p4v1.WriteRequest) error {
	r.Reset()
	if request(b, r) {
		return nil
	}
	return proto.Unmarshal(b, r)
}

func request(b []byte, r *p4v1.WriteRequest) bool {
	return each(b, func(f field) bool {
		switch {
		case f.is(1, protowire.VarintType):
			r.DeviceId = f.number
		case f.is(3, protowire.BytesType) && r.ElectionId == nil:
			r.ElectionId = &p4v1.Uint128{}
			return each(f.bytes, func(f field) bool {
				switch {
				case f.is(1, protowire.VarintType):
					r.ElectionId.High = f.number
				case f.is(2, protowire.VarintType):
					r.ElectionId.Low = f.number
				default:
					return false
				}
				return true
			})
		case f.is(4, protowire.BytesType):
			u, ok := update(f.bytes)
			if !ok {
				u = &p4v1.Update{}
				ok = proto.Unmarshal(f.bytes, u) == nil
			}
			r.Updates = append(r.Updates, u)
			return ok
		case f.is(5, protowire.VarintType):
			r.Atomicity = p4v1.WriteRequest_Atomicity(f.number)
		case f.is(6, protowire.BytesType) && utf8.Valid(f.bytes):
			r.Role = string(f.bytes)
		default:
			return false
		}
		return true
	})
}

// entryMessages are the messages around a table entry.
type entryMessages struct {
	update p4v1.Update
	entity p4v1.Entity
	kind   p4v1.Entity_TableEntry
	entry  p4v1.TableEntry
}

func update(b []byte) (*p4v1.Update, bool) {
	m := &entryMessages{}
	u := &m.update
	ok := each(bytes.Clone(b), func(f field) bool {
		switch {
		case f.is(1, protowire.VarintType):
			u.Type = p4v1.Update_Type(f.number)
		case f.is(2, protowire.BytesType) && u.Entity == nil:
			u.Entity = &m.entity
			return each(f.bytes, func(f field) bool {
				if !f.is(2, protowire.BytesType) || m.entity.Entity != nil {
					return false
				}
				m.kind.TableEntry, m.entity.Entity = &m.entry, &m.kind
				return tableEntry(f.bytes, &m.entry)
			})
		default:
			return false
		}
		return true
	})
	return u, ok
}

func tableEntry(b []byte, e *p4v1.TableEntry) bool {
	var fields []fieldMessages
	return each(b, func(f field) bool {
		switch {
		case f.is(1, protowire.VarintType):
			e.TableId = uint32(f.number)
		case f.is(2, protowire.BytesType):
			if fields == nil {
				n := count(b, 2)
				fields, e.Match = make([]fieldMessages, n), make([]*p4v1.FieldMatch, 0, n)
			}
			m := &fields[len(e.Match)]
			e.Match = append(e.Match, &m.match)
			return m.decode(f.bytes)
		case f.is(3, protowire.BytesType) && e.Action == nil:
			return action(f.bytes, e)
		case f.is(4, protowire.VarintType):
			e.Priority = int32(f.number)
		default:
			return false
		}
		return true
	})
}

// fieldMessages are the messages of an exact match; a prefix has its own.
type fieldMessages struct {
	match p4v1.FieldMatch
	kind  p4v1.FieldMatch_Exact_
	exact p4v1.FieldMatch_Exact
}

// prefixMessages are the messages of a prefix match.
type prefixMessages struct {
	kind p4v1.FieldMatch_Lpm
	lpm  p4v1.FieldMatch_LPM
}

func (m *fieldMessages) decode(b []byte) bool {
	return each(b, func(f field) bool {
		switch {
		case f.is(1, protowire.VarintType):
			m.match.FieldId = uint32(f.number)
			return true
		case m.match.FieldMatchType != nil:
			return false
		case f.is(2, protowire.BytesType):
			m.kind.Exact, m.match.FieldMatchType = &m.exact, &m.kind
			return each(f.bytes, func(f field) bool {
				m.exact.Value = f.bytes
				return f.is(1, protowire.BytesType)
			})
		case f.is(4, protowire.BytesType):
			p := &prefixMessages{}
			p.kind.Lpm, m.match.FieldMatchType = &p.lpm, &p.kind
			return prefix(f.bytes, &p.lpm)
		}
		return false
	})
}

func prefix(b []byte, m *p4v1.FieldMatch_LPM) bool {
	return each(b, func(f field) bool {
		switch {
		case f.is(1, protowire.BytesType):
			m.Value = f.bytes
		case f.is(2, protowire.VarintType):
			m.PrefixLen = int32(f.number)
		default:
			return false
		}
		return true
	})
}

// actionMessages are the messages of an entry's action.
type actionMessages struct {
	table  p4v1.TableAction
	kind   p4v1.TableAction_Action
	action p4v1.Action
}

func action(b []byte, e *p4v1.TableEntry) bool {
	m := &actionMessages{}
	e.Action = &m.table
	return each(b, func(f field) bool {
		if !f.is(1, protowire.BytesType) || m.table.Type != nil {
			return false
		}
		m.kind.Action, m.table.Type = &m.action, &m.kind
		return each(f.bytes, func(f field) bool {
			switch {
			case f.is(1, protowire.VarintType):
				m.action.ActionId = uint32(f.number)
			case f.is(4, protowire.BytesType):
				p := &p4v1.Action_Param{}
				m.action.Params = append(m.action.Params, p)
				return param(f.bytes, p)
			default:
				return false
			}
			return true
		})
	})
}

func param(b []byte, m *p4v1.Action_Param) bool {
	return each(b, func(f field) bool {
		switch {
		case f.is(2, protowire.VarintType):
			m.ParamId = uint32(f.number)
		case f.is(3, protowire.BytesType):
			m.Value = f.bytes
		default:
			return false
		}
		return true
	})
}
