package crash

import (
	"fmt"

	"github.com/bifrost-rack/bifrost/dsm/dsmpacket"
	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/rackaddr"
	"github.com/bifrost-rack/bifrost/internal/wire"
	"github.com/bifrost-rack/bifrost/p4switch/shared/frame"
	"github.com/bifrost-rack/bifrost/rpc/rpcpacket"
)

// describe says what a frame is, for people.
func describe(f wire.Frame) string {
	arrow := "→"
	if f.ToSwitch {
		arrow = "←"
	}
	at := fmt.Sprintf("%s %s %s", f.Host, arrow, f.Stage)
	u, err := frame.ParseUDP6(f.Data)
	if err != nil {
		return fmt.Sprintf("%s: %v", at, err)
	}
	at += fmt.Sprintf(", %s → %s", u.Src.Addr(), u.Dst.Addr())
	switch u.Dst.Port() {
	case rackaddr.PortRPC, rackaddr.PortDirect, rackaddr.PortBulk:
		m, err := rpcpacket.Parse(u.Payload)
		if err != nil {
			return fmt.Sprintf("%s: %v", at, err) // or it is a part
		}
		return fmt.Sprintf("%s: %s %s of %s, flags %#x, slot %d, number %s", at, m.Type, m.Call, m.Parent, m.Flags, m.Slot, m.Number)
	case rackaddr.PortDSM:
		h, _, err := dsmpacket.Parse(u.Payload)
		if err != nil {
			return fmt.Sprintf("%s: %v", at, err)
		}
		return fmt.Sprintf("%s: memory, %s of %s, %+v", at, dsmpacket.FromAddr(u.Dst.Addr()).Op(), dsmpacket.FromAddr(u.Dst.Addr()), h)
	case rackaddr.PortControl:
		m, err := control.Parse(u.Payload)
		if err != nil {
			return fmt.Sprintf("%s: %v", at, err)
		}
		return fmt.Sprintf("%s: control %s %s", at, m.Kind, m.Body)
	}
	return at
}
