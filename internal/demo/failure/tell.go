package failure

import (
	"fmt"
	"strings"

	"github.com/bifrost-rack/bifrost/gatekeeper"
)

// tell draws an event, if it belongs to the story.
func (c *chronicle) tell(e gatekeeper.Event) {
	at := c.since(e.Time)
	node, peer := c.known.blade[e.Node], c.known.blade[e.Peer]
	name, server := c.known.name[e.Node], c.known.name[e.Peer]
	switch e.Kind {
	case gatekeeper.CallHeld:
		if e.Service != "" {
			c.lanes.arrow(at, node, peer, fmt.Sprintf("a1  %s calls %s.%s: held by the switch, logged", name, e.Service, plain(e.Method)))
		}
	case gatekeeper.CallReleased:
		c.lanes.mark(at, peer, "◆", fmt.Sprintf("b1  the call goes on to %s", server))
	case gatekeeper.CallReplayed:
		if e.Attempt == 0 {
			return // its caller has asked again, that is all
		}
		c.lanes.mark(at, peer, "◆", fmt.Sprintf("b1  the call goes to %s again: attempt %d", server, e.Attempt+1))
	case gatekeeper.ReplyHeld:
		c.lanes.mark(at, peer, "◇", fmt.Sprintf("b2  %s has answered: logged with what has become of its state", server))
	case gatekeeper.ReplyReleased:
		if c.known.failed[e.Node] {
			return // nobody is there to get it
		}
		c.lanes.mark(at, node, "◇", fmt.Sprintf("a2  %s gets the answer", name))
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
	case gatekeeper.ExecutionRolledBack:
		what := "what its main did since its last checkpoint"
		if e.Service != "" {
			what = "what " + e.Service + "." + plain(e.Method) + " did"
		}
		c.lanes.mark(at, "", "", "rollback: memory is as it was before "+what)
	case gatekeeper.ProgramStarted:
		c.lanes.mark(at, e.Blade, "▲", fmt.Sprintf("%s starts on %s", program(e.Name), e.Blade))
	case gatekeeper.NodeRecovered:
		c.lanes.mark(at, node, "●", fmt.Sprintf("%s is back under its address", name))
	case gatekeeper.CallRefused, gatekeeper.CallEnded, gatekeeper.CallDiverged:
		c.lanes.mark(at, node, "!", fmt.Sprintf("%s: %s", e.Kind, e.Message))
	}
}

// plain is a method's name without what the wire adds for one by reference.
func plain(method string) string { return strings.TrimSuffix(method, ".ref") }

// program is the middle of an instance's name, APP/PROGRAM/NUMBER.
func program(instance string) string {
	if parts := strings.Split(instance, "/"); len(parts) == 3 {
		return parts[1]
	}
	return instance
}
