// Command mutants tests the tests: it puts faults of the protocols into the code, one
// at a time, and runs the tests that must find them.
//
//	testdata/NAME.txt ─▶ old text → new text ─▶ go test -overlay ─▶ caught, or survived
//
// Run it with make mutants, or with the names of some; --pick takes some in turn, as CI does. A mutant that
// survives shows that a test is missing. One whose old text is not in the code any
// more is an error, so that mutants stay up to date.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

func main() {
	if err := mutate(); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
}

func mutate() error {
	pick := flag.Int("pick", 0, "run only so many, in turn (0: all)")
	only := flag.String("only", "", "run only those whose names match this `pattern`")
	workers := flag.Int("workers", 2, "run so many at a time")
	list := flag.Bool("list", false, "print the mutants, run none")
	verbose := flag.Bool("v", false, "print what the tests say")
	flag.Parse()
	root, err := moduleRoot()
	if err != nil {
		return err
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return err
	}
	all, err := load(filepath.Join(root, "internal/mutants/testdata"))
	if err != nil {
		return err
	}
	total := len(all)
	if *pick > 0 && *pick < total {
		turn := turnOf(root)
		all = inTurn(all, *pick, turn)
		fmt.Printf("%d of %d mutants, turn %d (the number of commits)\n", len(all), total, turn)
	}
	var chosen []*mutant
	for _, m := range all {
		if pattern.MatchString(m.name) && (flag.NArg() == 0 || slices.Contains(flag.Args(), m.name)) {
			chosen = append(chosen, m)
		}
	}
	if len(chosen) == 0 || flag.NArg() > len(chosen) {
		return fmt.Errorf("of the %d mutants named, %d are among those to run (-list prints all)", flag.NArg(), len(chosen))
	}
	if *list {
		for _, m := range chosen {
			fmt.Printf("%s: %s (%s)\n", m.name, m.wrong, m.where())
		}
		return nil
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	return report(runAll(ctx, root, chosen, max(1, *workers)), len(chosen), *verbose)
}

// runAll runs mutants, some at a time, and yields their results as they come.
func runAll(ctx context.Context, root string, all []*mutant, workers int) <-chan result {
	queue, results := make(chan *mutant), make(chan result)
	var running sync.WaitGroup
	for range workers {
		running.Go(func() {
			for m := range queue {
				results <- m.run(ctx, root)
			}
		})
	}
	go func() {
		for _, m := range all {
			queue <- m
		}
		close(queue)
		running.Wait()
		close(results)
	}()
	return results
}

// report prints what became of mutants. It fails if one survived, or could not be run.
func report(results <-chan result, total int, verbose bool) error {
	found := 0
	var bad []string
	for r := range results {
		said := "caught"
		where := r.mutant.where() + ": " + r.mutant.wrong
		switch {
		case r.err != nil:
			said = "ERROR: " + r.err.Error()
		case r.outcome == survived:
			said = "SURVIVED " + where
		case r.outcome == timedOut:
			said = fmt.Sprintf("TIMED OUT after %v, which finds nothing: %s", patience, where)
		default:
			found++
		}
		if r.err != nil || r.outcome != caught {
			bad = append(bad, r.mutant.name)
		}
		fmt.Printf("%-32s %5.1f s  %s\n", r.mutant.name, r.took.Round(time.Millisecond).Seconds(), said)
		if verbose {
			fmt.Println(r.output)
		}
	}
	fmt.Printf("caught %d of %d\n", found, total)
	if len(bad) > 0 {
		return fmt.Errorf("not caught: %s", strings.Join(bad, ", "))
	}
	return nil
}

// inTurn picks n of the mutants: those whose turn it is, so that all have had theirs
// after len(all)/n turns.
func inTurn(all []*mutant, n, turn int) (picked []*mutant) {
	turns := (len(all) + n - 1) / n
	for i, m := range all {
		if i%turns == turn%turns {
			picked = append(picked, m)
		}
	}
	return picked
}

// turnOf is the number of commits; without a repository, that of days.
func turnOf(root string) int {
	c := exec.Command("git", "rev-list", "--count", "HEAD")
	c.Dir = root
	if out, err := c.Output(); err == nil {
		if n, err := strconv.Atoi(strings.TrimSpace(string(out))); err == nil {
			return n
		}
	}
	return int(time.Now().Unix() / (24 * 60 * 60))
}

// moduleRoot is the directory with go.mod.
func moduleRoot() (string, error) {
	out, err := exec.Command("go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	mod := strings.TrimSpace(string(out))
	if mod == "" || mod == os.DevNull {
		return "", errors.New("run it in the module")
	}
	return filepath.Dir(mod), nil
}
