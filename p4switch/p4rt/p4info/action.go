package p4info

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	configv1 "github.com/p4lang/p4runtime/go/p4/config/v1"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Use is where an action is to be used, for checking its scope.
type Use uint8

// The two places.
const (
	InEntry   Use = iota + 1 // of a table, or a member of an action profile
	AsDefault                // of a table
)

// CheckUse tells whether table t may use the action id there (section "Action
// Specification"): INVALID_ARGUMENT if it is none of the table's actions,
// PERMISSION_DENIED if its scope forbids this use.
func (t *Table) CheckUse(id uint32, use Use) error {
	scope, ok := t.Actions[id]
	switch {
	case !ok:
		return status.Errorf(codes.InvalidArgument, "action %#x is not one of table %q", id, t.Name)
	case scope == configv1.ActionRef_TABLE_ONLY && use == AsDefault, scope == configv1.ActionRef_DEFAULT_ONLY && use == InEntry:
		return status.Errorf(codes.PermissionDenied, "action %#x has the scope %v in table %q", id, scope, t.Name)
	}
	return nil
}

// Action checks an action specification: the id must be known, every parameter
// given exactly once, every value fit. It brings the message's byte strings
// into canonical form.
func (in *Info) Action(m *p4v1.Action) (datapath.Action, error) {
	a := in.Actions[m.GetActionId()]
	if a == nil {
		return datapath.Action{}, status.Errorf(codes.InvalidArgument, "no action has the id %#x", m.GetActionId())
	}
	out := datapath.Action{Name: a.Name, Params: make([][]byte, len(a.Params))}
	for _, pm := range m.GetParams() {
		i := a.paramIndex(pm.GetParamId())
		if i < 0 || out.Params[i] != nil {
			return datapath.Action{}, status.Errorf(codes.InvalidArgument, "action %q: parameter id %d is unknown or given twice", a.Name, pm.GetParamId())
		}
		if s := a.Params[i].Strings; s != nil {
			v, err := s.Bytes(pm.GetValue())
			if err != nil {
				return datapath.Action{}, within(err, "action %q, parameter %q", a.Name, a.Params[i].Name)
			}
			out.Params[i] = v
			continue
		}
		if err := CheckWidth(pm.GetValue(), a.Params[i].Width); err != nil {
			return datapath.Action{}, status.Errorf(codes.InvalidArgument, "action %q, parameter %q: %s", a.Name, a.Params[i].Name, status.Convert(err).Message())
		}
		if c := Canonical(pm.GetValue()); len(c) < len(pm.GetValue()) { // others may be reading what is canonical
			pm.Value = c
		}
		out.Params[i] = Widen(pm.Value, a.Params[i].Width)
	}
	for i, v := range out.Params {
		if v == nil {
			return datapath.Action{}, status.Errorf(codes.InvalidArgument, "action %q: parameter %q is missing", a.Name, a.Params[i].Name)
		}
	}
	return out, nil
}

func (a *Action) paramIndex(id uint32) int {
	for i := range a.Params {
		if a.Params[i].ID == id {
			return i
		}
	}
	return -1
}

// ActionMessage is the inverse of Action; nil if the action is not in the P4Info.
func (in *Info) ActionMessage(d datapath.Action) *p4v1.Action {
	a := in.actionNames[d.Name]
	if a == nil || len(a.Params) != len(d.Params) {
		return nil
	}
	m := &p4v1.Action{ActionId: a.ID}
	for i, pm := range a.Params {
		v := Canonical(append([]byte{0}, d.Params[i]...))
		if pm.Strings != nil {
			v = pm.Strings.Text(v)
		}
		m.Params = append(m.Params, &p4v1.Action_Param{ParamId: pm.ID, Value: v})
	}
	return m
}

// within says where an error is. All but the want of numbers for strings is INVALID_ARGUMENT.
func within(err error, format string, args ...any) error {
	code := codes.InvalidArgument
	if status.Code(err) == codes.ResourceExhausted {
		code = codes.ResourceExhausted
	}
	return status.Errorf(code, "%s: %s", fmt.Sprintf(format, args...), status.Convert(err).Message())
}
