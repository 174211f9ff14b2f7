package wire

import "github.com/bifrost-rack/bifrost/p4switch/datapath"

// Stage says at which moment OnFrame sees a frame.
type Stage uint8

// The stages of a frame on one link.
const (
	// Arriving: it is about to be handed over. What OnFrame does takes effect
	// first: a link cut now loses the frame.
	Arriving Stage = iota + 1
	// Arrived: it has been handed over, and on a scheduled wire everything that
	// it caused at this instant has been done.
	Arrived
	// Lost: the link has lost it.
	Lost
)

// String returns the stage's name.
func (s Stage) String() string { return [...]string{"", "arriving", "arrived", "lost"}[s&3] }

// Frame is one frame on one link: a packet from host to host crosses two. Both
// its stages have the same Seq, counted from 1; on a scheduled wire, the seed
// decides which frame has which.
type Frame struct {
	Seq      uint64
	Stage    Stage
	Host     string
	Port     datapath.Port
	ToSwitch bool
	Data     []byte
}

// tell shows a frame to OnFrame and reports whether there is one.
func (n *Net) tell(d *direction, s Stage, seq uint64, b []byte) bool {
	if n.cfg.OnFrame == nil {
		return false
	}
	h := d.link.host
	n.cfg.OnFrame(Frame{Seq: seq, Stage: s, Host: h.name, Port: h.port, ToSwitch: d.toSwitch, Data: b})
	return true
}
