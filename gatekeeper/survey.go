package gatekeeper

import (
	"encoding/json"

	"github.com/bifrost-rack/bifrost/internal/control"
	"github.com/bifrost-rack/bifrost/internal/fault"
)

// survey asks a memory blade that this Gatekeeper meets for the first time for
// its regions, page by page, and then goes on with its hello. Regions from the
// time of another Gatekeeper belong to nobody any more. No node can allocate
// there before the blade is welcome, so none is taken for such a stray that is
// just coming up.
func (c *controller) survey(p *port, hello control.Message, h *control.Hello) error {
	p.strays = nil
	return c.surveyFrom(p, hello, h, 0)
}

func (c *controller) surveyFrom(p *port, hello control.Message, h *control.Hello, from uint64) error {
	return c.ask(p, control.KindRegions, control.Regions{From: from, Max: maxRegionList}, func(m control.Message) {
		page, err := regionList(m)
		p.strays = append(p.strays, page.Regions...)
		if err == nil && page.Next > from {
			if err = c.surveyFrom(p, hello, h, page.Next); err == nil {
				return
			}
		}
		if err != nil {
			c.count.Failures++
			c.log.Error("a memory blade does not tell its regions", "blade", h.Blade, "error", err)
		}
		p.surveyed = h.Boot
		c.request(p, hello)
	})
}

// regionList reads the answer to a survey.
func regionList(m control.Message) (page control.RegionList, err error) {
	switch m.Status {
	case fault.OK:
		err = json.Unmarshal(m.Body, &page)
	case fault.Unavailable: // it does not serve memory yet, so it has none
	default:
		err = fault.Remote(m.Status, "regions", "%s", m.Body)
	}
	return page, err
}
