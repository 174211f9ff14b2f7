package admin

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/gatekeeper/resources"
	"github.com/bifrost-rack/bifrost/internal/duration"
	"github.com/bifrost-rack/bifrost/internal/suggest"
)

type deployInput struct {
	NameInput
	Body api.AppSpec
}

type runJobInput struct {
	NameInput
	Job  string `path:"job" maxLength:"255" doc:"The program's name"`
	Body *api.JobArgs
}

func (s *Server) runJob(ctx context.Context, in *runJobInput) (api.App, error) {
	var args []string
	if in.Body != nil {
		args = in.Body.Args
	}
	if err := s.backend.RunJob(ctx, in.Name, in.Job, args); err != nil {
		return api.App{}, err
	}
	return s.app(ctx, &in.NameInput)
}

// registerApps serves deployments.
func (s *Server) registerApps(h huma.API) {
	get(h, "/v1/apps", "list-apps", "Deployments", "All deployments", s.apps)
	get(h, "/v1/apps/{name}", "get-app", "Deployments", "One deployment", s.app, http.StatusNotFound)
	act(h, http.MethodPut, "/v1/apps/{name}", "deploy-app", "Make a deployment what the specification says", s.deploy)
	act(h, http.MethodPost, "/v1/apps/{name}/restart", "restart-app", "Stop the nodes of a deployment and start them again, one of each program after the other", s.restart)
	act(h, http.MethodPost, "/v1/apps/{name}/rollback", "rollback-app", "Roll out the programs that a deployment had before they changed last", s.rollback)
	act(h, http.MethodPost, "/v1/apps/{name}/jobs/{job}/run", "run-job", "Run a finished job again, with further arguments", s.runJob)
	s.registerLogs(h)
	act(h, http.MethodDelete, "/v1/apps/{name}", "undeploy-app", "Stop a deployment; it is gone when its last node is", s.undeploy)
}

func (s *Server) apps(ctx context.Context, in *ListInput) (api.List[api.App], error) {
	all, err := s.backend.Deployments(ctx)
	return paged(in, each(all, func(d *resources.Deployment) api.App { return appFor(ctx, d) }), func(a *api.App) string { return a.Name }), err
}

func (s *Server) app(ctx context.Context, in *NameInput) (api.App, error) {
	all, err := s.backend.Deployments(ctx)
	if err != nil {
		return api.App{}, err
	}
	for i := range all {
		if all[i].Spec.Name == in.Name {
			return appFor(ctx, &all[i]), nil
		}
	}
	return api.App{}, s.suggestedApp(ctx, newProblem(http.StatusNotFound, "there is no deployment "+in.Name), in.Name)
}

func (s *Server) deploy(ctx context.Context, in *deployInput) (api.App, error) {
	spec := resources.Spec{Name: in.Name, Programs: each(in.Body.Programs, programSpec)}
	if err := s.backend.Deploy(ctx, spec); err != nil {
		return api.App{}, err
	}
	return s.app(ctx, &in.NameInput)
}

// suggestedApp adds to an error about a deployment that does not exist which one may have been
// meant.
func (s *Server) suggestedApp(ctx context.Context, err error, name string) error {
	var p *problem
	if !errors.As(failed(err), &p) || p.Status != http.StatusNotFound {
		return err
	}
	all, unknown := s.backend.Deployments(ctx)
	if unknown != nil {
		return err
	}
	names := each(all, func(d *resources.Deployment) string { return d.Spec.Name })
	return newProblem(http.StatusNotFound, p.Detail+suggest.Text(name, names))
}

func (s *Server) restart(ctx context.Context, in *NameInput) (api.App, error) {
	if err := s.backend.Restart(ctx, in.Name); err != nil {
		return api.App{}, s.suggestedApp(ctx, err, in.Name)
	}
	return s.app(ctx, in)
}

func (s *Server) rollback(ctx context.Context, in *NameInput) (api.App, error) {
	if err := s.backend.Rollback(ctx, in.Name); err != nil {
		return api.App{}, s.suggestedApp(ctx, err, in.Name)
	}
	return s.app(ctx, in)
}

// undeploy returns what is left, which is nothing if no program ran.
func (s *Server) undeploy(ctx context.Context, in *NameInput) (api.App, error) {
	if err := s.backend.Undeploy(ctx, in.Name); err != nil {
		return api.App{}, s.suggestedApp(ctx, err, in.Name)
	}
	left, err := s.app(ctx, in)
	if err == nil {
		return left, nil
	}
	if p, ok := err.(*problem); ok && p.Status == http.StatusNotFound { //nolint:errorlint // app's own
		return api.App{Name: in.Name, State: string(resources.AppWell), Removed: true, Programs: []api.Program{}, Instances: []api.Instance{}}, nil
	}
	return left, err
}

// hidden stands for what an environment variable or a header has, where only who may deploy may know it.
const hidden = "(hidden)"

// appFor is a deployment as whoever asks may see it.
func appFor(ctx context.Context, d *resources.Deployment) api.App {
	out := appOf(d)
	if whoAsks(ctx).Role >= RoleDeploy {
		return out
	}
	for i := range out.Programs {
		p := &out.Programs[i]
		p.Env = maps.Clone(p.Env)
		for name := range p.Env {
			p.Env[name] = hidden
		}
	}
	return out
}

func appOf(d *resources.Deployment) api.App {
	out := api.App{
		Name: d.Spec.Name, State: string(d.State()), Removed: d.Removed, Programs: each(d.Spec.Programs, programOf), Spares: d.Spares,
		Instances: each(d.Instances, func(i *resources.Instance) api.Instance {
			status, since := instanceStatus(i)
			return api.Instance{
				Name: i.Name, Program: i.Program, Status: status, Since: since, Blade: i.Blade, Node: i.Node, Failures: i.Failures, Failure: i.Failure, Failed: i.Failed, Revision: i.Revision,
				Settled: i.Settled, Why: i.Why, Blocked: i.Blocked,
			}
		}),
	}
	if o := d.Rollout; o.Revision > 0 {
		out.Rollout = &api.Rollout{Revision: o.Revision, Former: o.Former, Done: o.Done, Ready: o.Ready, Nodes: o.Nodes, Since: o.Since, Back: o.Back, Stuck: o.Stuck, First: o.First, Until: o.Until}
	}
	return out
}

// instanceStatus is how people see an instance: one that runs, but is to be stopped, empties.
func instanceStatus(i *resources.Instance) (status string, since time.Time) {
	if i.Status == resources.Running && !i.Draining.IsZero() {
		return "draining", i.Draining
	}
	return string(i.Status), i.Since
}

func programOf(p *resources.Program) api.Program {
	out := api.Program{
		Name: p.Name, Args: list(p.Args), Env: p.Env, Binary: p.Binary, Policy: p.Policy, MaxFailures: p.MaxFailures, Nodes: p.Nodes, Spares: p.Spares, Blades: p.Blades, Job: p.Job,
	}
	if l := p.Liveness; l != (resources.Liveness{}) {
		out.Liveness = &api.Liveness{Answer: l.Answer.Seconds(), Progress: l.Progress.Seconds(), Ready: l.Ready.Seconds()}
	}
	for _, s := range p.Services {
		service := api.ProgramService{Name: s.Name, Stateful: s.Stateful}
		for _, m := range s.Methods {
			service.Methods = append(service.Methods, api.MethodPolicy{Name: m.Name, Policy: m.Policy, MaxFailures: m.MaxFailures})
		}
		out.Services = append(out.Services, service)
	}
	return out
}

func programSpec(p *api.Program) resources.Program {
	out := resources.Program{
		Name: p.Name, Args: p.Args, Env: p.Env, Binary: p.Binary, Word: resources.Word{Policy: p.Policy, MaxFailures: p.MaxFailures}, Nodes: p.Nodes, Spares: p.Spares, Blades: p.Blades, Job: p.Job,
	}
	if l := p.Liveness; l != nil {
		out.Liveness = resources.Liveness{Answer: duration.Seconds(l.Answer), Progress: duration.Seconds(l.Progress), Ready: duration.Seconds(l.Ready)}
	}
	for _, s := range p.Services {
		service := resources.ServiceSpec{Name: s.Name, Stateful: s.Stateful}
		for _, m := range s.Methods {
			service.Methods = append(service.Methods, resources.MethodSpec{Name: m.Name, Word: resources.Word{Policy: m.Policy, MaxFailures: m.MaxFailures}})
		}
		out.Services = append(out.Services, service)
	}
	return out
}
