package plan

import (
	"slices"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/rack/config"
)

// App is what the deployment is called that a rack's own programs are.
const App = "rack"

// Deployed is a program that serves, as the Gatekeeper is told to run it.
type Deployed struct {
	// Name is unique in the rack.
	Name string `json:"name"`
	// Blades may run it, the preferred first.
	Blades []string `json:"blades"`
	// Args begin with the program, by path or by a name to look for.
	Args []string `json:"args"`
	// Env is added to the environment.
	Env map[string]string `json:"env,omitempty"`
	// Services are what it exports; Stateful says that they keep state.
	Services []string `json:"services"`
	Stateful bool     `json:"stateful,omitempty"`
}

// Instance is the name under which the program runs: App, name, and its number,
// of which there is one.
func (d *Deployed) Instance() string { return App + "/" + d.Name + "/1" }

func deployed(c config.Config) (all []Deployed) {
	for _, p := range c.Programs {
		if len(p.Services) > 0 {
			all = append(all, Deployed{
				Name: p.Name, Blades: append([]string{p.Blade}, spares(c, p)...), Args: p.Command, Env: p.Env,
				Services: p.Services, Stateful: p.Stateful,
			})
		}
	}
	return all
}

// spares are the blades on which a program goes on.
func spares(c config.Config, p config.Program) (all []string) {
	if len(p.Spares) > 0 {
		return p.Spares
	}
	idle := func(blade string) bool {
		return !slices.ContainsFunc(c.Programs, func(p config.Program) bool { return p.Blade == blade })
	}
	for _, want := range []bool{true, false} {
		for _, b := range c.Blades {
			if b.Kind == control.Compute && b.Name != p.Blade && idle(b.Name) == want {
				all = append(all, b.Name)
			}
		}
	}
	return all
}
