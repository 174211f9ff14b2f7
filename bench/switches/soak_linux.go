package switches

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/p4rtclient"
)

// churnEvery is after how many changes of permissions many other rules come and
// go at once.
const churnEvery = 64

// tellEvery is how often progress is told.
const tellEvery = 30 * time.Second

// Soak carries memory requests at full rate while their rules change, and
// checks every verdict (traffic). It needs root.
func Soak(ctx context.Context, o SoakOptions) (r SoakResult, err error) {
	err = inThread(func() (err error) { r, err = soak(ctx, o); return err })
	return r, err
}

func soak(ctx context.Context, o SoakOptions) (r SoakResult, err error) {
	var c *contender
	for _, each := range all() {
		if each.name == o.Datapath && each.name != "bmv2" {
			c = &each
		}
	}
	if c == nil {
		return r, fmt.Errorf("no executor is called %q: choose ebpf or go", o.Datapath)
	}
	var k *kept
	if o.Restart > 0 {
		if o.Datapath != "ebpf" {
			return r, fmt.Errorf("only the kernel executor forwards while its process is away, not %q", o.Datapath)
		}
		k = &kept{}
		c = k.contender()
	}
	before, err := measureFootprint()
	if err != nil {
		return r, err
	}
	sw, err := start(ctx, c, o.Rules)
	if err != nil {
		return r, err
	}
	s := &soaking{o: o, running: sw, kept: k, result: SoakResult{Datapath: o.Datapath, Rules: o.Rules}}
	err = errors.Join(s.run(ctx), sw.end())
	if err != nil {
		return s.result, err
	}
	after, err := measureFootprint()
	s.result.LeftOver = max(after.Descriptors-before.Descriptors, 0)
	return s.result, err
}

// soaking is a soak under way.
type soaking struct {
	*running
	o      SoakOptions
	result SoakResult
	early  footprint // when everything was warm
	kept   *kept     // nil if the switch is in this process
}

// footprint is that of the switch's process.
func (s *soaking) footprint() (footprint, error) {
	if s.kept == nil {
		return measureFootprint()
	}
	return footprintOf(strconv.Itoa(s.kept.process.cmd.Process.Pid))
}

func (s *soaking) run(ctx context.Context) error {
	if s.control == nil {
		return errors.New("it has no rules")
	}
	if err := s.memoryRoutes(); err != nil {
		return err
	}
	machine := pointer(0)
	home := entry("dsm_home", "to_hop", []p4rtclient.Param{{Name: "hop", Value: p4rtclient.Uint(2)}},
		p4rtclient.Match{Field: "machine_prefix", Value: p4rtclient.Bytes(machine[:6])})
	if err := s.control.client.Write(ctx, inserts(home)); err != nil {
		return err
	}
	first, err := s.control.verdicts(ctx)
	if err != nil {
		return err
	}
	t := newTraffic()
	if err := s.startTraffic(t); err != nil {
		return err
	}
	begin := time.Now()
	err = s.change(ctx, t)
	t.end()
	if err != nil {
		return err
	}
	r := &s.result
	r.Seconds = time.Since(begin).Seconds()
	r.Checked, r.WrongVerdicts, r.Example = t.checked.Load(), t.wrong.Load(), t.example()
	last, err := s.control.verdicts(ctx)
	for i := range last {
		r.Packets += last[i] - first[i]
	}
	return errors.Join(err, s.compare(ctx, t))
}

// compare looks for what has grown, and for rules that are not as they should be.
func (s *soaking) compare(ctx context.Context, t *traffic) error {
	late, err := s.footprint()
	if err != nil {
		return err
	}
	s.result.Early, s.result.Late = s.early, late
	rules, err := s.control.client.Read(ctx, "control_rule")
	want := s.o.Rules
	for i := range t.regions {
		if t.regions[i].permitted {
			want++
		}
	}
	s.result.RulesLost = want - len(rules)
	return err
}

// change changes rules until the time is up.
func (s *soaking) change(ctx context.Context, t *traffic) error {
	in, out := rulesFrom(s.o.Rules, large)
	warm, begin := s.o.Duration/10, time.Now()
	told, restarted := begin, begin
	for n := 0; time.Since(begin) < s.o.Duration; n++ {
		if err := errors.Join(ctx.Err(), s.flip(ctx, t)); err != nil {
			return err
		}
		if n%churnEvery == 0 {
			if err := errors.Join(s.write(ctx, in), s.write(ctx, out)); err != nil {
				return err
			}
		}
		if s.kept != nil && time.Since(restarted) > s.o.Restart {
			restarted = time.Now()
			if err := s.restart(ctx); err != nil {
				return err
			}
		}
		if s.early.Descriptors == 0 && time.Since(begin) > warm {
			var err error
			if s.early, err = s.footprint(); err != nil {
				return err
			}
		}
		if time.Since(told) > tellEvery {
			told = time.Now()
			now, err := s.footprint()
			if err != nil {
				return err
			}
			s.o.tell("%.0f s: %d verdicts checked, %d wrong; %d updates; %+v", time.Since(begin).Seconds(), t.checked.Load(), t.wrong.Load(), s.result.Updates, now)
		}
	}
	return nil
}

func (s *soaking) write(ctx context.Context, us []p4rtclient.Update) error {
	s.result.Writes++
	s.result.Updates += len(us)
	return s.control.client.Write(ctx, us)
}

// flip revokes or grants some regions with one Write, and waits until packets
// have been judged by that.
func (s *soaking) flip(ctx context.Context, t *traffic) error {
	permit := rand.IntN(2) == 0
	op := map[bool]p4rtclient.Op{true: p4rtclient.Insert, false: p4rtclient.Delete}[permit]
	var chosen []*soakRegion
	var us []p4rtclient.Update
	for range revocation {
		r := &t.regions[rand.IntN(len(t.regions))]
		if r.permitted == permit {
			continue
		}
		r.permitted = permit
		r.state.Store(0) // from here on, anything may be
		chosen = append(chosen, r)
		us = append(us, p4rtclient.Update{Op: op, Entry: r.rule})
	}
	if len(us) == 0 {
		return nil
	}
	if err := s.write(ctx, us); err != nil {
		return err
	}
	for _, r := range chosen {
		r.seen.Store(0)
		r.state.Store(stateOf(permit, t.now()))
	}
	for _, r := range chosen {
		if err := r.await(ctx); err != nil {
			return err
		}
	}
	return nil
}
