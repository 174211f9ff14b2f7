package softswitch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/bifrost-rack/bifrost/p4switch/softswitch/pcap"
)

// capture records what a port receives and sends, in one file each, named as
// bmv2 names them: INTERFACE_in.pcap and INTERFACE_out.pcap.
type capture struct{ in, out *pcap.Writer }

// newCapture opens the files for a port; a switch without a capture directory
// captures nothing.
func (s *Switch) newCapture(p *port) (*capture, error) {
	if s.cfg.CaptureDir == "" {
		return nil, nil
	}
	name := p.name
	if name == "" {
		name = fmt.Sprintf("port%d", p.num)
	}
	base := filepath.Join(s.cfg.CaptureDir, name)
	in, err := pcap.Create(base + "_in.pcap")
	if err != nil {
		return nil, err
	}
	out, err := pcap.Create(base + "_out.pcap")
	if err != nil {
		return nil, errors.Join(err, in.Close())
	}
	return &capture{in, out}, nil
}

// capture records a frame that came in or goes out at the port.
func (s *Switch) capture(p *port, w *pcap.Writer, frame []byte) {
	err := w.Write(time.Now(), frame)
	if err != nil && !errors.Is(err, os.ErrClosed) && p.n.captureErrors.Add(1) == 1 {
		s.log.Error("capturing fails", "port", p.num, "error", err)
	}
}

func (c *capture) close() {
	if c != nil {
		_ = c.in.Close()
		_ = c.out.Close()
	}
}
