package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/bifrost-rack/bifrost/examples/counter/tally"
	"github.com/bifrost-rack/bifrost/gatekeeper/admin/client"
	"github.com/bifrost-rack/bifrost/rack/plan"
)

// verify waits until all callers have come to their end, holds the accounts against
// what they must have, undeploys everything, and looks for what is left.
func (t *torture) verify(ctx context.Context) error {
	t.say("all blades are restored; the tellers come to their end")
	if err := t.until(ctx, t.tellersDone); err != nil {
		return fmt.Errorf("the durable mains do not come to their end: %w", err)
	}
	totals, err := t.totals(ctx)
	if err != nil {
		return err
	}
	if err := errors.Join(t.judge(totals), t.stillStored(ctx)); err != nil {
		return err
	}
	if err := t.until(ctx, t.mirrored); err != nil {
		return err
	}
	for _, app := range []string{tellersApp, plan.App} {
		if _, err := t.admin.Undeploy(ctx, app); err != nil {
			return err
		}
	}
	if err := t.until(ctx, t.nothingLeft); err != nil {
		return fmt.Errorf("something is left: %w", err)
	}
	t.say("%d calls and %d updates, each counted once; nothing is left", t.report.Calls, t.report.Updates)
	return nil
}

// until waits until a question has no objection.
func (t *torture) until(ctx context.Context, question func(context.Context) error) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := question(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

func (t *torture) tellersDone(ctx context.Context) error {
	app, err := t.admin.App(ctx, tellersApp)
	if err != nil {
		return err
	}
	for _, i := range app.Instances {
		if i.Status != "finished" {
			return fmt.Errorf("%s is %s on %s, after %d failures", i.Name, i.Status, i.Blade, i.Failures)
		}
	}
	return nil
}

// totals asks the counter.
func (t *torture) totals(ctx context.Context) (totals [tally.Accounts]int64, err error) {
	program, err := t.cfg.Host.Locate("counter")
	if err != nil {
		return totals, err
	}
	cmd := exec.Command(program, "totals")
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := t.cfg.Host.Start(t.cfg.Name, "c2", cmd); err != nil {
		return totals, err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return totals, fmt.Errorf("counter totals: %w: %s", err, errs.String())
	}
	for line := range strings.Lines(out.String()) {
		var account, total int64
		if _, err := fmt.Sscan(line, &account, &total); err != nil || account < 0 || account >= tally.Accounts {
			return totals, fmt.Errorf("counter totals printed %q", line)
		}
		totals[account] = total
	}
	return totals, nil
}

// gaveUp is what a call says that has been given up since its program has ended as often while it ran as may be
// (rpc.DefaultFailures). What it did is taken back, but for calls that it had made. A torture may well kill so many.
const gaveUp = "times while it executed the call"

// judge holds the accounts against what must be in them. A teller checks each answer
// itself; here, its account must have what some number of calls adds. A plain client
// that was killed may have had one call out.
func (t *torture) judge(totals [tally.Accounts]int64) (err error) {
	for n := range tellers {
		calls, sum := int64(0), int64(0)
		for m := (&tally.Teller{Account: int32(n)}); sum < totals[n]; calls++ {
			sum += tally.Sum(m.Amounts(calls))
		}
		if sum != totals[n] || calls == 0 {
			err = errors.Join(err, fmt.Errorf("teller %d: account %d has %d: %d calls would add %d", n, n, totals[n], calls, sum))
		}
		t.report.Calls += calls
	}
	for _, c := range t.clients {
		extra := totals[c.account] - c.acknowledged
		if extra < 0 || extra > 1 {
			err = errors.Join(err, fmt.Errorf("client %d: %d calls were acknowledged, %d counted", c.account, c.acknowledged, totals[c.account]))
		}
		switch {
		case strings.Contains(c.failure, gaveUp):
			t.report.GivenUp++
		case c.failure != "":
			err = errors.Join(err, fmt.Errorf("client %d: %s", c.account, c.failure))
		}
		t.report.Calls += c.acknowledged
		t.report.Unknown += extra
	}
	t.report.Clients = len(t.clients)
	return err
}

// Left is what of the callers' and services' work is left when all is over.
type Left struct {
	Nodes    int `json:"nodes"`
	Services int `json:"services"`
	Calls    int `json:"calls"`
	Regions  int `json:"regions"`
	// Bytes is what regions take of the memory blades.
	Bytes uint64 `json:"bytes"`
	// Ledgers is how many ledgers the memory blades have, and LedgerBytes what these take.
	Ledgers     int    `json:"ledgers"`
	LedgerBytes uint64 `json:"ledger_bytes"`
	// Records is how many held calls are on record, and LogRecords how many records the
	// Gatekeeper's log has that an idle rack's has not.
	Records    int `json:"records"`
	LogRecords int `json:"log_records"`
}

// ownRecords is how many records the log of an idle rack has beside those of its
// blades and of batches of region slots that nobody has: what it has given out so far, its
// deployments, its policies, and its one memory machine with two copies.
const ownRecords = 4

// nothingLeft objects to whatever is left, and puts it into the report.
func (t *torture) nothingLeft(ctx context.Context) error {
	s, err := t.admin.Status(ctx)
	if err != nil {
		return err
	}
	c := s.Counts
	left := Left{
		Nodes: c.Nodes, Services: c.Services, Calls: c.Calls, Regions: c.Regions, Records: c.Recorded,
		LogRecords: max(0, c.LogRecords-len(rackOf(t.cfg).Blades)-ownRecords-c.FreeBatches),
	}
	listed := 0
	for _, err := range t.admin.Regions(ctx, client.RegionFilter{}) {
		if err != nil {
			return err
		}
		listed++
	}
	left.Regions = max(left.Regions, listed)
	blades, err := t.admin.Blades(ctx)
	if err != nil {
		return err
	}
	for _, b := range blades {
		left.Bytes += b.Used
		if b.Ledgers != nil {
			left.Ledgers += b.Ledgers.Count
			left.LedgerBytes += b.Ledgers.Used
		}
	}
	if t.report.Left = &left; left != (Left{}) {
		return fmt.Errorf("%+v", left)
	}
	return nil
}
