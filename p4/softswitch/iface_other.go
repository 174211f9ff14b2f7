//go:build !linux

package softswitch

import (
	"context"
	"errors"

	"github.com/bifrost-rack/bifrost/p4/datapath"
)

// AttachInterface needs Linux's packet sockets.
func (s *Switch) AttachInterface(datapath.Port, string) error {
	return errors.New("softswitch: interfaces can be attached on Linux only")
}

func (s *Switch) captureInterface(context.Context, *port) {}

func (s *Switch) openInterface(num datapath.Port, name string) (*port, error) {
	return nil, s.AttachInterface(num, name)
}
