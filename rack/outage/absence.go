package outage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bifrost-rack/bifrost/rack"
)

// Absence is what the Gatekeeper's death does to calls: of one client, which calls a
// service that keeps state all the time, and of one that begins to call it meanwhile.
type Absence struct {
	// Before, During and After are the phases in which the Gatekeeper is there, has been
	// killed, and is back.
	Before, During, After Phase
	// Begun is how many calls were answered, while there was no Gatekeeper, of a client that made its first call then: 1,000 at most.
	Begun int
	// Back is the time from the Gatekeeper's start to the first right answer of a program that
	// was killed while there was no Gatekeeper.
	Back time.Duration
}

// Phase is what the client saw for some time.
type Phase struct {
	Calls           int
	CallsPerSecond  float64
	Median, Longest time.Duration // between two answers
}

// phaseOf sums up the times between answers, of which there is one at least.
func phaseOf(gaps []time.Duration) (p Phase) {
	var all time.Duration
	for _, g := range gaps {
		all += g
	}
	slices.Sort(gaps)
	p.Calls = len(gaps)
	p.CallsPerSecond = float64(len(gaps)) / all.Seconds()
	p.Median, p.Longest = Median(gaps), Longest(gaps)
	return p
}

// dead is how long a program stays dead before the Gatekeeper is started again: long enough to
// see that nobody else brings it back.
const dead = time.Second

// MeasureAbsence makes a rack, kills its Gatekeeper for so long while a client calls, and another one begins to, kills the
// service then, and starts the Gatekeeper again. Each of the other phases takes a quarter of the
// time. It removes the rack.
func MeasureAbsence(ctx context.Context, cfg Config, absent time.Duration) (a Absence, err error) {
	m, end, err := begin(ctx, cfg)
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, end()) }()
	beginner, err := startCaller(cfg.Host, m.rack, "--account", "2", "--count", "1000", "--after", (absent / 2).String())
	if err != nil {
		return a, err
	}
	defer func() { err = errors.Join(err, beginner.stop()) }()
	if a.Before, err = m.phase(ctx, "with the Gatekeeper", absent/4); err != nil {
		return a, err
	}
	if err := cfg.Host.Fail(ctx, m.rack, "gatekeeper", rack.Kill); err != nil {
		return a, err
	}
	if a.During, err = m.phase(ctx, "without it", absent); err != nil {
		return a, err
	}
	if a.Begun = len(beginner.answers); a.Begun == 0 {
		return a, errors.New("a client that began to call without a Gatekeeper was not answered")
	}
	m.say("a client that made its first call without it: %d calls answered\n", a.Begun)
	if a.Back, err = m.comeBack(ctx); err != nil {
		return a, err
	}
	a.After, err = m.phase(ctx, "with the next one", absent/4)
	return a, err
}

// phase lets the client call for a time.
func (m *measurement) phase(ctx context.Context, name string, d time.Duration) (Phase, error) {
	gaps, err := m.caller.calm(ctx, d)
	if err == nil && len(gaps) == 0 {
		err = errors.New("no calls were answered")
	}
	if err != nil {
		return Phase{}, fmt.Errorf("%s: %w", name, err)
	}
	p := phaseOf(gaps)
	m.say("%s: %d calls, %.0f a second, median %v, longest %v\n", name, p.Calls, p.CallsPerSecond, p.Median.Round(time.Microsecond), p.Longest.Round(time.Microsecond))
	return p, nil
}

// comeBack kills the service, starts the Gatekeeper, and waits for the service's next answer.
func (m *measurement) comeBack(ctx context.Context) (took time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if _, err := m.cfg.Host.SignalProgram(m.rack, service, unix.SIGKILL); err != nil {
		return 0, err
	}
	quiet, err := m.caller.silence(ctx, dead)
	if err != nil {
		return 0, err
	}
	if !quiet {
		return 0, errors.New("a program that was killed answers although there is no Gatekeeper")
	}
	began := time.Now()
	if err := m.cfg.Host.Restore(ctx, m.rack, "gatekeeper"); err != nil {
		return 0, err
	}
	at, err := m.caller.next(ctx)
	if err != nil {
		return 0, fmt.Errorf("after the Gatekeeper's start: %w", err)
	}
	m.say("a program that died meanwhile answers %v after the Gatekeeper's start\n", at.Sub(began).Round(10*time.Microsecond))
	return at.Sub(began), nil
}

func (m *measurement) say(format string, args ...any) {
	if m.cfg.Out != nil {
		fmt.Fprintf(m.cfg.Out, format, args...)
	}
}
