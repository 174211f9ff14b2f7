// Command wordcount counts words with map and reduce over memory blades. The job is
// a durable main: killed at any point and started again, it goes on, and counts no
// word twice. Run it on a rack that is up:
//
//	sudo bifrost deploy examples/wordcount/app.yaml
//	sudo bifrost rack exec c1 -- wordcount count README.md ARCHITECTURE.md
//	sudo bifrost deploy examples/wordcount/job.yaml    # or as a job of the rack
//
// Or have the texts stand in memory once, for as many readers as come:
//
//	sudo bifrost rack exec c1 -- wordcount share README.md ARCHITECTURE.md
//	sudo bifrost rack exec s1 -- wordcount read
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/wordcount/words"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "wordcount:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "wordcount",
		Short:         "Count words with map and reduce over memory blades",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCmd(), newCountCmd(), newShareCmd(), newReadCmd())
	return root
}

func newServeCmd() *cobra.Command {
	return &cobra.Command{
		Use:       "serve SERVICE...",
		Short:     "Serve " + words.MapperName + ", " + words.ReducerName + " or both on this blade until interrupted",
		Args:      cobra.MinimumNArgs(1),
		ValidArgs: []string{words.MapperName, words.ReducerName},
		RunE: func(cmd *cobra.Command, names []string) error {
			return serve(cmd.Context(), names)
		},
	}
}

// serve is a node that exports services until ctx ends or the node is lost.
func serve(ctx context.Context, names []string) error {
	node, err := rpc.Join(ctx, rpc.WithName("wordcount"))
	if err != nil {
		return err
	}
	defer leave(node)
	for _, name := range names {
		if err := words.Serve(ctx, node, name); err != nil {
			return err
		}
		fmt.Printf("%s is served by %s\n", name, node.Address())
	}
	select {
	case <-ctx.Done():
		return nil
	case <-node.Done():
		return fmt.Errorf("node %s has lost its place in the rack", node.Address())
	}
}

func newShareCmd() *cobra.Command {
	return &cobra.Command{
		Use:     "share FILE...",
		Short:   "Share files with all nodes that ask: they stand in memory once, until this is interrupted",
		Example: "  wordcount share README.md ARCHITECTURE.md",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, files []string) error {
			var texts [][]byte
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					return err
				}
				texts = append(texts, b)
			}
			return share(cmd.Context(), texts)
		},
	}
}

// share is a node that shares texts until ctx ends or the node is lost. Its end ends its leases.
func share(ctx context.Context, texts [][]byte) error {
	node, err := rpc.Join(ctx, rpc.WithName("wordcount-corpus"))
	if err != nil {
		return err
	}
	defer leave(node)
	if _, err := words.ServeCorpus(ctx, node, texts); err != nil {
		return err
	}
	fmt.Printf("%s is served by %s\n", words.CorpusName, node.Address())
	select {
	case <-ctx.Done():
		return nil
	case <-node.Done():
		return fmt.Errorf("node %s has lost its place in the rack", node.Address())
	}
}

func newReadCmd() *cobra.Command {
	var top int
	cmd := &cobra.Command{
		Use:   "read",
		Short: "Count the words of what `wordcount share` shares, and print the most frequent",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node, err := rpc.Join(cmd.Context(), rpc.WithName("wordcount-reader"))
			if err != nil {
				return err
			}
			defer leave(node)
			texts, err := words.OpenTexts(cmd.Context(), node)
			if err != nil {
				return err
			}
			total, err := texts.Count(cmd.Context())
			if err != nil {
				return err
			}
			return printTop(cmd.OutOrStdout(), total, top)
		},
	}
	cmd.Flags().IntVar(&top, "top", 10, "how many words to print")
	return cmd
}

// countFlags are the flags of `wordcount count`.
type countFlags struct {
	job words.Job
	top int
	out string
}

func newCountCmd() *cobra.Command {
	var f countFlags
	cmd := &cobra.Command{
		Use:   "count FILE...",
		Short: "Count the words of files and print the most frequent",
		Long: `Count the words of files and print the most frequent ones. If the program dies
before it is done, the same command goes on from its last checkpoint; deployed as a
job (examples/wordcount/job.yaml), it is started again by the rack.`,
		Example: "  wordcount count README.md\n  wordcount count --top 100 --parallel 16 --part 4194304 *.txt",
		Args:    cobra.MinimumNArgs(1),
		RunE:    func(cmd *cobra.Command, files []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), files) },
	}
	cmd.Flags().IntVar(&f.top, "top", 10, "how many words to print")
	cmd.Flags().IntVar(&f.job.Part, "part", 1<<20, "bytes of text that a call gets")
	cmd.Flags().IntVar(&f.job.Parallel, "parallel", 4, "how many calls to make at a time, and between two checkpoints")
	cmd.Flags().StringVar(&f.out, "out", "", "`FILE` to write to instead of standard output")
	cmd.Flags().StringVar(&f.job.Name, "job", "", "name of the job (default: one for these files)")
	return cmd
}

func (f *countFlags) run(ctx context.Context, w io.Writer, files []string) error {
	if f.job.Part < 1 || f.job.Parallel < 1 {
		return fmt.Errorf("--part %d --parallel %d: want 1 at least", f.job.Part, f.job.Parallel)
	}
	for _, file := range files {
		path, err := filepath.Abs(file)
		if err != nil {
			return err
		}
		f.job.Files = append(f.job.Files, path)
	}
	if f.job.Name == "" {
		f.job.Name = jobName(f.job.Files)
	}
	node, err := rpc.Join(ctx, rpc.WithName("wordcount-job"))
	if err != nil {
		return err
	}
	f.job.Deliver = func(total map[string]int64) error {
		if f.out == "" {
			return printTop(w, total, f.top)
		}
		return f.write(total)
	}
	if err := f.job.Run(ctx, node); err != nil {
		return err // without taking leave, which would tell the rack that the job is done
	}
	leave(node)
	return nil
}

// jobName is the name of a job for these files: the same each time, and one that a
// durable main may have.
func jobName(files []string) string {
	return fmt.Sprintf("wordcount-%x", sha256.Sum256([]byte(strings.Join(files, "\n"))))
}

// write makes the file what it should be, in one step: to do it twice does no harm.
func (f *countFlags) write(total map[string]int64) error {
	var b bytes.Buffer
	if err := printTop(&b, total, f.top); err != nil {
		return err
	}
	if err := os.WriteFile(f.out+".part", b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(f.out+".part", f.out)
}

// printTop prints the most frequent words, and of those that are equally frequent
// the first in the alphabet.
func printTop(w io.Writer, total map[string]int64, top int) error {
	list := slices.Sorted(maps.Keys(total))
	slices.SortStableFunc(list, func(a, b string) int { return int(total[b] - total[a]) })
	for _, word := range list[:min(top, len(list))] {
		if _, err := fmt.Fprintf(w, "%7d %s\n", total[word], word); err != nil {
			return err
		}
	}
	return nil
}

// leave ends the node in an orderly way, also after an interrupt.
func leave(node *rpc.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leaving:", err)
	}
}
