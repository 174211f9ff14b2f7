// Command feed is an example of a large result of which little is read. Run it on a rack:
//
//	sudo bifrost rack exec s1 -- bin/feed serve --posts 1000
//	sudo bifrost rack exec c1 -- bin/feed read --from 500 --count 10
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/bifrost-rack/bifrost/examples/feed/gen-go/feed"
	"github.com/bifrost-rack/bifrost/examples/feed/timeline"
	"github.com/bifrost-rack/bifrost/rpc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "feed:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "feed",
		Short:         "Page through a timeline of megabytes, of which only what is shown is read",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newServeCmd(), newReadCmd())
	return root
}

func newServeCmd() *cobra.Command {
	var s timeline.Service
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve a feed on this blade until interrupted",
		Args:  cobra.NoArgs,
		RunE:  func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), s) },
	}
	cmd.Flags().IntVar(&s.Posts, "posts", 1000, "how many posts there are")
	cmd.Flags().IntVar(&s.Picture, "picture", 10<<10, "bytes of each post's picture")
	return cmd
}

func newReadCmd() *cobra.Command {
	var from, count int
	cmd := &cobra.Command{
		Use:     "read",
		Short:   "Print some posts, without their pictures",
		Example: "  feed read --from 500 --count 10",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return read(cmd.Context(), from, count) },
	}
	cmd.Flags().IntVar(&from, "from", 0, "the first post that is shown; the newest is 0")
	cmd.Flags().IntVar(&count, "count", 10, "how many are shown")
	return cmd
}

// serve is a node that exports the feed until ctx ends or the node is lost.
func serve(ctx context.Context, s timeline.Service) error {
	if s.Posts < 0 || s.Picture < 0 {
		return errors.New("--posts and --picture are 0 or more")
	}
	node, err := rpc.Join(ctx, rpc.WithName("feed"))
	if err != nil {
		return err
	}
	defer leave(node)
	s.Node = node
	if err := feed.ExportFeed(ctx, node, "Feed", &s); err != nil {
		return err
	}
	fmt.Printf("%d posts are served by %s\n", s.Posts, node.Address())
	select {
	case <-ctx.Done():
		return nil
	case <-node.Done():
		return fmt.Errorf("node %s has lost its place in the rack", node.Address())
	}
}

// read prints a page.
func read(ctx context.Context, from, count int) (err error) {
	if from < 0 || count < 0 {
		return errors.New("--from and --count are 0 or more")
	}
	node, err := rpc.Join(ctx, rpc.WithName("feed-reader"))
	if err != nil {
		return err
	}
	defer leave(node)
	list, err := feed.OpenFeed(node, "Feed").Timeline(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, list.Free(context.WithoutCancel(ctx))) }()
	place, err := list.Place(ctx)
	if err != nil {
		return err
	}
	before := time.Now()
	lines, all, err := timeline.Page(ctx, list, from, count)
	if err != nil {
		return err
	}
	took := time.Since(before)
	out := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, l := range lines {
		fmt.Fprintf(out, "%d\t%s\t%s\n", l.Number, l.Author, l.Text)
	}
	fmt.Fprintf(out, "%d of %d posts, of %d bytes together, in %s\n", len(lines), all, place.Size(), took.Round(time.Microsecond))
	return out.Flush()
}

// leave ends the node in an orderly way, also after an interrupt.
func leave(node *rpc.Node) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := node.Close(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "leaving:", err)
	}
}
