package torture

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"time"

	"github.com/bifrost-rack/bifrost/gatekeeper/admin/api"
	"github.com/bifrost-rack/bifrost/internal/duration"
)

// tellers is how many durable mains there are: they use the first accounts, and half
// of them call Front.
const tellers = 4

// tellersApp is their deployment.
const tellersApp = "tellers"

// teller is the instance of one.
func teller(n int) string { return fmt.Sprintf("%s/t%d/1", tellersApp, n) }

// deployTellers starts the durable mains. They end by themselves, some time before
// the torture does.
func (t *torture) deployTellers(ctx context.Context) error {
	program, err := t.cfg.Host.Locate("counter")
	if err != nil {
		return err
	}
	work := t.cfg.For
	if t.cfg.Hostile {
		work = duration.Add(work, infiltration) // the name of a main that is over is anybody's
	}
	var spec api.AppSpec
	for n := range tellers {
		to := []string{"Counter", "Front"}[n%2]
		spec.Programs = append(spec.Programs, api.Program{
			Name: fmt.Sprint("t", n), Nodes: 1, Job: true, Blades: []string{"c1", "x2", "x1"},
			Args: []string{
				program, "teller", "--name", fmt.Sprint("t", n), "--account", strconv.Itoa(n), "--to", to,
				"--count", "0", "--for", work.String(), "--every", strconv.Itoa(1 + 3*n),
			},
		})
	}
	_, err = t.admin.Deploy(ctx, tellersApp, spec)
	return err
}

// plainClient is one that is gone when it is killed, and its account.
type plainClient struct {
	account      int
	acknowledged int64
	failure      string // what it said if it ended by itself
}

// firstClientAccount and lastClientAccount are the clients' accounts; each has its own.
const (
	firstClientAccount = tellers
	lastClientAccount  = 63
)

// keepClients starts one plain client after the other on c2, and kills each after a
// time, until ctx ends or there are no more accounts.
func (t *torture) keepClients(ctx context.Context) error {
	random := rand.New(rand.NewPCG(t.cfg.Seed, 0xc11e))
	each := t.cfg.For / (lastClientAccount - firstClientAccount + 1)
	for a := firstClientAccount; a <= lastClientAccount && ctx.Err() == nil; a++ {
		life := max(each, 300*time.Millisecond)
		c := &plainClient{account: a}
		if err := t.live(ctx, c, life/2+time.Duration(random.Int64N(int64(life)))); err != nil {
			return err
		}
		t.clients = append(t.clients, c)
	}
	return nil
}

// live runs a client for a time and kills it.
func (t *torture) live(ctx context.Context, c *plainClient, life time.Duration) error {
	program, err := t.cfg.Host.Locate("counter")
	if err != nil {
		return err
	}
	to := []string{"Counter", "Front"}[c.account%2]
	cmd := exec.Command(program, "add", "--account", strconv.Itoa(c.account), "--to", to, "--count", "1000000", "--verbose")
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	if err := t.cfg.Host.Start(t.cfg.Name, "c2", cmd); err != nil {
		return err
	}
	read := make(chan struct{})
	go func() {
		defer close(read)
		c.read(r)
	}()
	living, cancel := context.WithTimeout(ctx, life)
	defer cancel()
	killed := context.AfterFunc(living, func() { _ = cmd.Process.Kill() }) // it may have ended
	_ = cmd.Wait()                                                         // killed
	killed()
	_ = w.Close()
	<-read
	return nil
}

// read takes what the client prints: what its account has after each call, or why it
// has ended.
func (c *plainClient) read(r io.Reader) {
	for lines := bufio.NewScanner(r); lines.Scan(); {
		if n, err := strconv.ParseInt(lines.Text(), 10, 64); err == nil {
			c.acknowledged = n
		} else {
			c.failure += lines.Text() + "; "
		}
	}
	_, _ = io.Copy(io.Discard, r) // a line that is too long
}
