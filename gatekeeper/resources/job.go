package resources

import (
	"slices"
	"time"

	"github.com/bifrost-rack/bifrost/internal/fault"
)

// A job that is finished can be run again: with other arguments (RunJob), or because a deployment gives it another program. It has
// another node then, and its durable mains begin anew.

// MaxArgs bounds the arguments that RunJob adds.
const MaxArgs = 256

// RunJob runs a finished job of a deployment again, with further arguments behind those of its program. It fails with
// Unavailable if the job is not finished.
func (r *Registry) RunJob(app, program string, args []string, now time.Time) ([]Action, error) {
	op := "run job " + app + "/" + program
	a, err := r.deployed(op, app)
	if err != nil {
		return nil, err
	}
	k := slices.IndexFunc(a.Programs, func(p *running) bool { return p.spec.Name == program })
	switch {
	case k < 0:
		return nil, fault.New(fault.NotFound, op, "%s has no program %q", app, program)
	case !a.Programs[k].spec.Job:
		return nil, fault.New(fault.BadRequest, op, "program %s is no job: bifrost restart %s starts it again", program, app)
	case len(args) > MaxArgs:
		return nil, fault.New(fault.BadRequest, op, "%d arguments: at most %d", len(args), MaxArgs)
	case !a.Programs[k].finished():
		return nil, fault.New(fault.Unavailable, op, "it is not finished: bifrost apps says what it does")
	case len(a.Programs[k].Instances) == 0:
		return nil, fault.New(fault.Unavailable, op, "it has 0 nodes: deploy it with 1")
	}
	a.Programs[k].again(args, now)
	r.version++
	r.converge(now)
	return r.flush(), nil
}

// finished reports whether all instances of a job are done.
func (p *running) finished() bool {
	return !slices.ContainsFunc(p.Instances, func(i *Instance) bool { return i.Status != Finished })
}

// again has all instances of a finished job run once more.
func (p *running) again(args []string, now time.Time) {
	for _, i := range p.Instances {
		i.Args, i.Revision, i.Done = slices.Clone(args), p.app.Revision, false
		i.Owes, i.Tries, i.Failures, i.Failure, i.Failed, i.NotBefore = false, 0, 0, "", time.Time{}, time.Time{}
		i.set(Waiting, now)
	}
}
