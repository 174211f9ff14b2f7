package failure

import (
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper"
)

// tell draws an event, if it belongs to the story.
func (c *chronicle) tell(e gatekeeper.Event) {
	at := c.since(e.Time)
	node, name := c.known.blade[e.Node], c.known.name[e.Node]
	switch e.Kind {
	case gatekeeper.BladeFailed:
		c.lanes.mark(at, e.Blade, "✗", fmt.Sprintf("the Gatekeeper gives %s up: %s", e.Blade, e.Message))
	case gatekeeper.MachineUnmirrored, gatekeeper.MachineFilling, gatekeeper.MachineMirrored:
		c.lanes.mark(at, "", "", e.Message)
	case gatekeeper.NodeFailed:
		if name == "teller" && !c.known.fallen[e.Blade] {
			c.lanes.mark(at, e.Blade, "■", "teller has done its work")
			c.open, c.done = false, e.Time
			return
		}
		c.lanes.mark(at, e.Blade, "✗", fmt.Sprintf("its node %s is cut off", name))
	case gatekeeper.NodeFenced:
		c.lanes.mark(at, "", "", fmt.Sprintf("fence: switch and memory blades refuse what may still come of %s", name))
	case gatekeeper.ProgramStarted:
		c.lanes.mark(at, e.Blade, "▲", fmt.Sprintf("%s starts on %s", program(e.Name), e.Blade))
	case gatekeeper.NodeRecovered:
		c.lanes.mark(at, node, "●", fmt.Sprintf("%s is back under its address", name))
	case gatekeeper.CallRefused:
		c.lanes.mark(at, node, "!", fmt.Sprintf("%s: %s", e.Kind, e.Message))
	}
}

// program is the middle of an instance's name, APP/PROGRAM/NUMBER.
func program(instance string) string {
	if parts := strings.Split(instance, "/"); len(parts) == 3 {
		return parts[1]
	}
	return instance
}
