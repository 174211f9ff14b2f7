package resources

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Programs tell which versions of a service's state they read, and which version is kept (rpc.VersionedState). So a program that is known
// not to read what is kept does not get to it: a rollback to one is refused before anything stops, and what turns out to be one
// when it starts is not tried again.

// Form is what a program tells of a service's state.
type Form struct {
	Kept  *string  // the version that is kept, "" if it names none; nil while nothing is kept
	Reads []string // the versions that the program reads
}

// Unreadable says why a program cannot read what is kept of a service's state, "" if it can.
func (f Form) Unreadable(service string) string {
	if f.Kept == nil || slices.Contains(f.Reads, *f.Kept) {
		return ""
	}
	return fmt.Sprintf("the state of %s is kept in %s, and its program reads %s", service, versionText(*f.Kept), versionsText(f.Reads))
}

func versionText(version string) string {
	if version == "" {
		return "a form without a version"
	}
	return fmt.Sprintf("version %q", version)
}

func versionsText(all []string) string {
	var texts []string
	for _, v := range all {
		texts = append(texts, versionText(v))
	}
	if len(texts) == 0 {
		return "none"
	}
	return strings.Join(texts, " or ")
}

// Announced takes what a node tells of a service's state. If the node's program cannot read it, its rollout is over, and why is
// the reason; the program is not to export the service.
func (r *Registry) Announced(node netip.Addr, service string, f Form, now time.Time) (actions []Action, why string) {
	why = f.Unreadable(service)
	p, i := r.instanceAt(node)
	if i == nil {
		return nil, why
	}
	a := p.app
	if a.Kept == nil {
		a.Kept = map[string]string{}
	}
	if delete(a.Kept, service); f.Kept != nil {
		a.Kept[service] = *f.Kept
	}
	if reads := a.readsOf(i.Revision); reads != nil {
		(*reads)[service] = slices.Clone(f.Reads)
	}
	if why != "" && !p.outdated(i) && !a.Proven {
		a.Unfit = why
	}
	r.version++
	r.converge(now)
	return r.flush(), why
}

// readsOf are the versions that the programs of a revision read; nil if it is not known any more.
func (a *deployment) readsOf(revision int) *map[string][]string {
	reads := &a.Reads
	if revision != a.Revision {
		f := a.former(revision)
		if f == nil {
			return nil
		}
		reads = &f.Reads
	}
	if *reads == nil {
		*reads = map[string][]string{}
	}
	return reads
}

// knownReads are the versions that programs of the specification read, as the same programs have told in a former revision.
func (a *deployment) knownReads() map[string][]string {
	out := map[string][]string{}
	for i := range a.Spec.Programs {
		p := &a.Spec.Programs[i]
		for k := range a.Former {
			f := &a.Former[k]
			if q := find(&f.Spec, p.Name); q == nil || !q.sameWork(p) {
				continue
			}
			for _, v := range p.Services {
				if reads, told := f.Reads[v.Name]; told {
					out[v.Name] = reads
				}
			}
		}
	}
	return out
}

// unreadable says why the programs of a former revision cannot read what is kept, "" if nothing is known against it.
func (a *deployment) unreadable(f *Revision) string {
	return a.unreadableBy(&f.Spec, f)
}

// unreadableBy says it of programs that are known from a former revision.
func (a *deployment) unreadableBy(s *Spec, f *Revision) string {
	for i := range s.Programs {
		for _, v := range s.Programs[i].Services {
			kept, known := a.Kept[v.Name]
			reads, told := f.Reads[v.Name]
			if !v.Stateful || !known || !told {
				continue
			}
			if why := (Form{&kept, reads}).Unreadable(v.Name); why != "" {
				return why
			}
		}
	}
	return ""
}

// knownUnreadable says why a program of a new specification cannot read what is kept: the same file has run before, and has told
// what it reads. "" stands for nothing known.
func (a *deployment) knownUnreadable(s *Spec) string {
	for i := range s.Programs {
		p := &s.Programs[i]
		for k := range a.Former {
			f := &a.Former[k]
			if q := find(&f.Spec, p.Name); q == nil || p.Binary == "" || q.Binary != p.Binary || !q.sameCommand(p) {
				continue
			}
			if why := a.unreadableBy(&Spec{Programs: []Program{*p}}, f); why != "" {
				return why
			}
		}
	}
	return ""
}
