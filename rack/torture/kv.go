package torture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strconv"
	"strings"
)

// Beside the counter a key-value service is called, whose values are nowhere but in
// distributed memory: what a memory blade loses is missed there.

// keyValue is what the key-value service must have.
type keyValue struct {
	visits int    // how often it was told to count
	blob   string // what was put last
}

// blobSize is how much of a value the key-value service is given at a time, in bytes.
const blobSize = 100_000

// callKV calls the key-value service until over ends, and holds each answer against what
// it must be: a number that counts, and a value that was set before.
func (t *torture) callKV(ctx, over context.Context) error {
	random := rand.New(rand.NewPCG(t.cfg.Seed, 0xb10b))
	for over.Err() == nil {
		out, err := t.kv(ctx, "", "incr", "visits")
		if err != nil {
			return err
		}
		t.stored.visits++
		if got, err := strconv.Atoi(strings.TrimSpace(out)); err != nil || got != t.stored.visits {
			return fmt.Errorf("kv incr: call %d answers %q", t.stored.visits, out)
		}
		t.report.Updates++
		if err := t.holds(ctx, "blob", t.stored.blob); err != nil {
			return err
		}
		blob := strings.Repeat(strconv.FormatUint(random.Uint64(), 36), blobSize/12)
		if _, err := t.kv(ctx, blob, "put", "blob", "-"); err != nil {
			return err
		}
		t.stored.blob = blob
		t.report.Updates++
	}
	return nil
}

// stillStored objects if the key-value service has not what it must have in the end.
func (t *torture) stillStored(ctx context.Context) error {
	if t.stored.visits == 0 {
		return nil // there is no such service, or it was never called
	}
	return errors.Join(t.holds(ctx, "visits", strconv.Itoa(t.stored.visits)), t.holds(ctx, "blob", t.stored.blob))
}

// holds objects if the key-value service has another value; "" stands for one that was
// never set.
func (t *torture) holds(ctx context.Context, key, want string) error {
	if want == "" {
		return nil
	}
	got, err := t.kv(ctx, "", "get", key)
	if got = strings.TrimSpace(got); err == nil && got != want {
		err = fmt.Errorf("kv get %s: %d bytes, not the %d that were put: %.40q, not %.40q", key, len(got), len(want), got, want)
	}
	return err
}

// kv runs the key-value service's client on c2.
func (t *torture) kv(ctx context.Context, in string, args ...string) (string, error) {
	program, err := t.cfg.Host.Locate("kv")
	if err != nil {
		return "", err
	}
	cmd := exec.Command(program, append([]string{args[0], "--timeout", settleTimeout.String()}, args[1:]...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(in), &out, &errs
	if err := t.cfg.Host.Start(t.cfg.Name, "c2", cmd); err != nil {
		return "", err
	}
	defer context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })()
	if err := cmd.Wait(); err != nil {
		return "", errors.Join(fmt.Errorf("kv %s: %s", args[0], strings.TrimSpace(errs.String())), err)
	}
	return out.String(), nil
}
