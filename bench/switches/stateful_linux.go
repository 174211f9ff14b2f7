package switches

import (
	"context"
	_ "embed" // the program
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
	"github.com/bifrost-rack/bifrost/p4"
)

// program is what the P4 switches run.
type program struct{ json, info []byte }

var bifrostProgram = program{p4.JSON, p4.Info}

// statefulProgram forwards through a register, a meter and a multicast group.
// stateful/stateful.p4 is its source.
var statefulProgram = program{statefulJSON, statefulInfo}

//go:embed stateful/stateful.json
var statefulJSON []byte

//go:embed stateful/stateful.p4info.txt
var statefulInfo []byte

// stateful are the contenders with statefulProgram instead of Bifröst's.
func stateful() (out []contender) {
	for _, c := range allWith(statefulProgram) {
		start := c.start
		c.start = func(dir string) (*joint, error) {
			j, err := start(dir)
			if err != nil || j.addr == "" {
				return j, err
			}
			control, err := spread(j)
			stop := j.stop
			// Nothing is written while it is measured.
			return &joint{stop: func() error { return errors.Join(control.close(), stop()) }}, err
		}
		out = append(out, c)
	}
	return out
}

// spread makes the switch run statefulProgram, with a multicast group for each port.
func spread(j *joint) (*controller, error) {
	ctx := context.Background()
	c, err := dial(j)
	if err != nil {
		return nil, err
	}
	if err = c.open(ctx, statefulProgram, j.loaded); err == nil {
		err = c.client.Write(ctx, inserts(
			p4rtclient.Group(1, p4rtclient.Replica{Port: 2, ID: 1}), p4rtclient.Group(2, p4rtclient.Replica{Port: 1, ID: 1})))
	}
	if err != nil {
		return c, fmt.Errorf("multicast groups: %w", err)
	}
	return c, nil
}
