package gatekeeper

import (
	"net/netip"

	"github.com/bifrost-rack/bifrost/gatekeeper/log"
	"github.com/bifrost-rack/bifrost/internal/frame"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
)

// releaseLogged answers another copy of a finished call from the log.
func (c *controller) releaseLogged(k *call) {
	r, ok, err := c.cfg.Store.Get(log.KindReply, log.ID(k.id()))
	if err != nil {
		c.count.Failures++
		c.log.Error("the log does not give a reply back", "call", k.id(), "error", err)
	}
	if !ok || err != nil {
		return // the caller asks again
	}
	c.count.Recalled++
	c.send(0, frame.UDP6{
		Src: netip.AddrPortFrom(k.callee, rackaddr.PortRPC), Dst: netip.AddrPortFrom(k.caller, rackaddr.PortRPC), Payload: r.Packet,
	}.Append(nil))
	c.callEvent(ReplyReleased, k)
}
