package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/rack"
)

// With Config.Memory, memory blades die, one after the other, and a compute blade after
// them. Beside the counter a key-value service is called, whose values are nowhere but in
// distributed memory:
//
//	first copy's blade dies ─▶ filled ─▶ second one's daemon dies ─▶ filled ─▶ kv's blade dies ─┐
//	      ▲                                                                                     │
//	      └─────────────────────────────────────────────────────────────────────────────────────┘

// kvInstance is the key-value service's program.
const kvInstance = "rack/store/1"

// blobSize is how much of a value the key-value service is given at a time, in bytes.
const blobSize = 100_000

// memoryRounds kills memory blades and the key-value service's blade, round after round,
// until ctx ends; the first round is finished in any case.
func (t *torture) memoryRounds(ctx context.Context) error {
	whole := context.WithoutCancel(ctx)
	for round := 0; round == 0 || ctx.Err() == nil; round++ {
		for _, how := range []rack.How{rack.Kill, rack.Daemon} {
			if err := t.loseCopy(whole, how); err != nil {
				return err
			}
		}
		if err := t.loseService(whole); err != nil {
			return err
		}
		t.done["round"]++
	}
	return nil
}

// loseCopy kills the blade that answers reads, or its daemon alone, waits until the machine
// goes on with its other copy, restores the blade, and waits until it is filled.
func (t *torture) loseCopy(ctx context.Context, how rack.How) error {
	m, err := t.machine(ctx)
	if err != nil {
		return err
	}
	victim := m.Copies[0]
	what := map[rack.How]string{rack.Kill: "memory blade ", rack.Daemon: "the daemon of "}[how] + victim
	t.say("kill %s", what)
	start := time.Now()
	if err := t.cfg.Host.Fail(ctx, t.cfg.Name, victim, how); err != nil {
		return err
	}
	if err := t.copies(ctx, 1); err != nil {
		return fmt.Errorf("after the death of %s: %w", what, err)
	}
	t.say("the other copy serves, %v after the death of %s", time.Since(start).Round(time.Millisecond), what)
	t.done["kill "+what]++
	start = time.Now()
	if err := t.cfg.Host.Restore(ctx, t.cfg.Name, victim); err != nil {
		return err
	}
	if err := t.copies(ctx, 2); err != nil {
		return fmt.Errorf("after %s is back: %w", victim, err)
	}
	t.say("%s is filled, %v after its start", victim, time.Since(start).Round(time.Millisecond))
	return nil
}

// loseService kills the blade that the key-value service runs on, and restores it when the
// service is elsewhere.
func (t *torture) loseService(ctx context.Context) error {
	was, err := t.whereIsKV(ctx)
	if err != nil {
		return err
	}
	t.say("kill blade %s of the key-value service", was)
	if err := t.cfg.Host.Fail(ctx, t.cfg.Name, was, rack.Kill); err != nil {
		return err
	}
	t.done["kill blade of kv"]++
	waiting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := t.until(waiting, func(ctx context.Context) error {
		if now, err := t.whereIsKV(ctx); err != nil || now == was {
			return fmt.Errorf("the key-value service is on %s still: %w", now, err)
		}
		return nil
	}); err != nil {
		return err
	}
	return t.cfg.Host.Restore(ctx, t.cfg.Name, was)
}

// whereIsKV returns the blade that the key-value service runs on.
func (t *torture) whereIsKV(ctx context.Context) (string, error) {
	app, err := t.admin.App(ctx, "rack")
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(app.Instances, func(i api.Instance) bool { return i.Name == kvInstance })
	if i < 0 || app.Instances[i].Blade == "" {
		return "", fmt.Errorf("%s is on no blade", kvInstance)
	}
	return app.Instances[i].Blade, nil
}

// machine returns the rack's memory machine.
func (t *torture) machine(ctx context.Context) (api.Machine, error) {
	all, err := t.admin.Machines(ctx)
	if err == nil && (len(all) != 1 || len(all[0].Copies) == 0) {
		err = fmt.Errorf("memory machines %+v, want one with a copy", all)
	}
	if err != nil {
		return api.Machine{}, err
	}
	return all[0], nil
}

// copies waits until so many copies of the memory machine serve.
func (t *torture) copies(ctx context.Context, want int) error {
	waiting, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	return t.until(waiting, func(ctx context.Context) error {
		m, err := t.machine(ctx)
		if err == nil && (m.InService != want || want > 1 && m.Why != "") {
			err = fmt.Errorf("the memory machine has %d copies in service, not %d: %s", m.InService, want, m.Why)
		}
		return err
	})
}

// callKV calls the key-value service until ctx ends, and holds each answer against what it
// must be: a number that counts, and a value that was set before.
func (t *torture) callKV(ctx context.Context) error {
	random := rand.New(rand.NewPCG(t.cfg.Seed, 0xb10b))
	last := ""
	for n := 1; ctx.Err() == nil; n++ {
		whole := context.WithoutCancel(ctx)
		out, err := t.kv(whole, "", "incr", "visits")
		if err != nil {
			return err
		}
		if got, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || got != n {
			return fmt.Errorf("kv incr: call %d answers %q", n, out)
		}
		t.report.Updates++
		if last != "" {
			if got, err := t.kv(whole, "", "get", "blob"); err != nil || strings.TrimSpace(got) != last {
				return fmt.Errorf("kv get: %d bytes, not the %d that were put, %w", len(got), len(last), err)
			}
		}
		last = strings.Repeat(strconv.FormatUint(random.Uint64(), 36), blobSize/12)
		if _, err := t.kv(whole, last, "put", "blob", "-"); err != nil {
			return err
		}
		t.report.Updates++
	}
	return nil
}

// kv runs the key-value service's client on c1.
func (t *torture) kv(ctx context.Context, in string, args ...string) (string, error) {
	program, err := t.cfg.Host.Locate("kv")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, append([]string{args[0], "--timeout", settleTimeout.String()}, args[1:]...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	if err := t.cfg.Host.Start(t.cfg.Name, "c1", cmd); err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return "", errors.Join(fmt.Errorf("kv %s: %s", args[0], strings.TrimSpace(errs.String())), err)
	}
	return out.String(), nil
}
