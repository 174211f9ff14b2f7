package wal

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// childEnv makes the test binary a Gatekeeper that logs until it is killed: its
// value is the log's directory, and "sync" or ""; or fullDisk.
const childEnv = "BIFROST_LOG_TEST_CHILD"

func TestMain(m *testing.M) {
	if where := os.Getenv(childEnv); where != "" {
		run := func() error { return logUntilKilled(where) }
		if where == fullDisk {
			run = startOnFullDisk
		}
		if err := run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

const killWriters = 8

// payload is what the k-th record of a writer holds.
func payload(writer, k int) []byte {
	size := 1 + (writer*7919+k*104729)%(1<<(4+k%13)) // up to 64 KiB
	b := make([]byte, size)
	rng := rand.NewPCG(uint64(writer), uint64(k))
	for i := 0; i+8 <= size; i += 8 {
		binary.BigEndian.PutUint64(b[i:], rng.Uint64())
	}
	return b
}

func killRecord(writer, k int) Record {
	return Record{
		Kind: KindNode, ID: ID{byte(writer), 12: byte(k >> 24), 13: byte(k >> 16), 14: byte(k >> 8), 15: byte(k)},
		Order: uint64(k), Data: payload(writer, k),
	}
}

// logUntilKilled lets writers log one batch after another: the k-th puts record
// k and deletes record k-2. Each one that is logged is told on standard output.
func logUntilKilled(where string) error {
	dir, sync_, _ := strings.Cut(where, ":")
	l, err := Open(dir, Options{Sync: sync_ == "sync"})
	if err != nil {
		return err
	}
	next := make([]int, killWriters)
	for r, err := range l.Records() {
		if err != nil {
			return err
		}
		next[r.ID[0]] = max(next[r.ID[0]], int(r.Order)+1)
	}
	var wg sync.WaitGroup
	for w := range killWriters {
		wg.Go(func() {
			for k := next[w]; err == nil; k++ {
				var b Batch
				b.Put(killRecord(w, k))
				if k >= 2 {
					old := killRecord(w, k-2)
					b.Delete(old.Kind, old.ID)
				}
				if err := l.Append(context.Background(), &b); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				fmt.Printf("%d %d\n", w, k) // one write, never torn
			}
		})
	}
	wg.Wait()
	return nil
}

// TestKill kills a logging process at random instants, again and again on one
// directory: every batch that it was told is logged is there as a whole, and no
// batch is there in part.
func TestKill(t *testing.T) {
	for mode, rounds := range map[string]int{"page cache": 12, "sync": 4} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			if testing.Short() {
				rounds = 2
			}
			dir, dice := filepath.Join(t.TempDir(), "log"), rand.New(rand.NewPCG(uint64(rounds), 1))
			acknowledged := map[int]int{}
			for round := range rounds {
				until := 1 + dice.IntN(1<<(3+round%9)) // from the very first batches on
				if err := runAndKill(dir+":"+mode, until, acknowledged); err != nil {
					t.Fatal(err)
				}
				checkKilled(t, dir, acknowledged)
			}
		})
	}
}

// runAndKill notes the last batch of each writer that was logged.
func runAndKill(where string, until int, acknowledged map[int]int) error {
	var stderr bytes.Buffer
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childEnv+"="+where)
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(out)
	for count := 1; ; count++ {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		w, k, _ := strings.Cut(strings.TrimSpace(line), " ")
		writer, err1 := strconv.Atoi(w)
		number, err2 := strconv.Atoi(k)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		acknowledged[writer] = number
		if count == until {
			if err := cmd.Process.Kill(); err != nil {
				return err
			}
		}
	}
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		return fmt.Errorf("the child ended by itself: %w: %s", err, stderr.Bytes())
	}
	return nil
}

func checkKilled(t *testing.T, dir string, acknowledged map[int]int) {
	t.Helper()
	l, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	found := map[int][]int{}
	for _, r := range readAll(t, l) {
		w, k := int(r.ID[0]), int(r.Order)
		if want := killRecord(w, k); r.Key() != want.Key() || !bytes.Equal(r.Data, want.Data) {
			t.Errorf("record %d of writer %d is torn", k, w)
		}
		found[w] = append(found[w], k)
	}
	for w, last := range acknowledged {
		ks := found[w]
		if len(ks) == 0 {
			t.Errorf("writer %d: nothing is there, batch %d was logged", w, last)
			continue
		}
		j := ks[len(ks)-1] // the last batch that is there; at most one was not told
		whole := len(ks) == min(j+1, 2) && (j == 0 || ks[0] == j-1)
		if j < last || j > last+1 || !whole {
			t.Errorf("writer %d: records %v are there, batch %d was logged", w, ks, last)
		}
		acknowledged[w] = j // whoever goes on from here relies on it
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}
