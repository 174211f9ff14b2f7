package p4rt

import (
	"github.com/bifrost-rack/bifrost/p4/datapath"
	"github.com/bifrost-rack/bifrost/p4/p4rt/p4info"
	p4v1 "github.com/p4lang/p4runtime/go/p4/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// writeDefault applies an update to a table's default entry (section "Default
// Entry").
func (p *pipeline) writeDefault(op p4v1.Update_Type, t *tableStore, m *p4v1.TableEntry) error {
	switch {
	case op != p4v1.Update_MODIFY:
		return status.Errorf(codes.InvalidArgument, "the default entry can only be modified, not %v", op)
	case len(m.GetMatch()) > 0 || m.GetPriority() != 0:
		return status.Error(codes.InvalidArgument, "the default entry has neither match nor priority")
	case m.GetIdleTimeoutNs() != 0 || m.GetTimeSinceLastHit() != nil:
		return status.Error(codes.InvalidArgument, "the default entry has no idle timeout")
	}
	if err := checkResources(t.info, m); err != nil {
		return err
	}
	if t.standard.fixed {
		return p.modifyConstDefault(t, m)
	}
	if m.GetAction() == nil {
		return p.resetDefault(t)
	}
	action := m.GetAction().GetAction()
	if action == nil {
		return status.Error(codes.InvalidArgument, "the default entry needs a direct action")
	}
	if err := t.info.CheckUse(action.GetActionId(), p4info.AsDefault); err != nil {
		return err
	}
	a, err := p.info.Action(action)
	if err != nil {
		return err
	}
	// A data plane without meters for default entries refuses here, with nothing
	// changed yet.
	if err := p.setResources(t.info, t.current.dp, m, t.current.msg.GetMeterConfig()); err != nil {
		return err
	}
	if err := p.dp.SetDefault(t.info.Name, &a); err != nil {
		return datapathError(err)
	}
	t.current = &entry{msg: stored(m), dp: datapath.Entry{Table: t.info.Name}}
	return nil
}

// modifyConstDefault allows what is left when the action is const: the direct
// resources.
func (p *pipeline) modifyConstDefault(t *tableStore, m *p4v1.TableEntry) error {
	if m.GetAction() != nil || m.GetMeterConfig() == nil && m.GetCounterData() == nil {
		return status.Errorf(codes.PermissionDenied, "the default action of table %q is const", t.info.Name)
	}
	if err := p.setResources(t.info, t.current.dp, m, t.current.msg.GetMeterConfig()); err != nil {
		return err
	}
	next := *t.current
	next.msg = withMeter(next.msg, m.GetMeterConfig())
	t.current = &next
	return nil
}

// resetDefault restores the program's default entry and its direct resources.
func (p *pipeline) resetDefault(t *tableStore) error {
	if err := p.dp.SetDefault(t.info.Name, nil); err != nil {
		return datapathError(err)
	}
	had := t.current.msg.GetMeterConfig()
	t.current = t.standard
	e := t.current.dp
	if t.info.Counter != nil {
		if err := p.dp.SetEntryCounts(e, datapath.Counts{}); err != nil {
			return datapathError(err)
		}
	}
	return p.setResources(t.info, e, &p4v1.TableEntry{}, had)
}
