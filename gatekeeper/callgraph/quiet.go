package callgraph

import (
	"iter"
	"time"
)

// Quietest returns when that loose call was last sent of which nothing was heard
// for longest; false if there is no loose call.
func (g *Graph) Quietest() (last time.Time, ok bool) {
	i := g.heard.first
	if i == 0 {
		return time.Time{}, false
	}
	return time.Unix(0, g.calls.at(i).heard), true
}

// All yields all calls, oldest first. The graph must not change meanwhile.
func (g *Graph) All() iter.Seq[View] {
	return func(yield func(View) bool) {
		for i := g.age.first; i != 0; i = g.calls.at(i).links[byAge].next {
			if !yield(g.view(i)) {
				return
			}
		}
	}
}
