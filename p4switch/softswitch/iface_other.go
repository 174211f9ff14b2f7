//go:build !linux

package softswitch

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/p4switch/datapath"
	"github.com/bifrost-rack/bifrost/p4switch/gnmi"
)

// Interface is an interface that is to be a port.
type Interface struct {
	Port datapath.Port
	Name string
}

// AttachInterface needs Linux's packet sockets.
func (s *Switch) AttachInterface(datapath.Port, string) error {
	return errors.New("softswitch: interfaces can be attached on Linux only")
}

// AttachInterfaces needs Linux's packet sockets.
func (s *Switch) AttachInterfaces([]Interface) error { return s.AttachInterface(0, "") }

// portWatch is of Linux alone.
type portWatch struct{}

func (*portWatch) close() {}

func (s *Switch) linkOf(string) (out linkState, err error) { return out, gnmi.ErrUnsupported }

func (s *Switch) enableLink(string, bool) error { return gnmi.ErrUnsupported }

func (s *Switch) queueDepths(depths) (out depths, err error) { return out, nil }

func (s *Switch) captureInterface(context.Context, *port) {}

func (s *Switch) openInterface(num datapath.Port, name string) (*port, error) {
	return nil, s.AttachInterface(num, name)
}
