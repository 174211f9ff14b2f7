package peer

import (
	"context"
	"fmt"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/bench/idl/gen-go/marked"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// Ways in which a value is used that goes by reference (rpc.Ref), for Bifröst alone. The value is
// new in each call: what one reference costs in many calls, others measure.
const (
	Whole   = "whole"  // the callee reads all of Size bytes
	Page    = "page"   // the callee reads one page of them
	Back    = "back"   // the callee returns them, and the caller reads all
	Onward  = "onward" // they go through Hops calls, and the last callee reads all
	Posts   = "posts"  // the caller gets a list of PostCount posts of Size bytes
	OnePost = "post"   // the caller reads one post of such a list, which it has by reference
)

// PostCount is how many posts a list has.
const PostCount = 100

// pageSize is what Page reads, in bytes.
const pageSize = 4 << 10

// The peers differ in what the IDL says of the values.
var (
	refChosen = bifrostKind{name: "ref-chosen", reference: true, patterns: "chosen", policy: rpc.PolicyNone}.peer("rpc.Ref, which chooses", "the IDL says (bifrost.ref), policy none")
	refValue  = bifrostKind{name: "ref-value", reference: true, patterns: "value", policy: rpc.PolicyNone}.peer("always by value", `the IDL says (bifrost.ref = "value"), policy none`)
	refRegion = bifrostKind{name: "ref-region", reference: true, patterns: "region", policy: rpc.PolicyNone}.peer("always by region", `the IDL says (bifrost.ref = "region"), policy none`)
)

// patterns is what the three services have in common, as a client and as a handler.
type patterns interface {
	Whole(ctx context.Context, data *rpc.Ref[[]byte]) (int64, error)
	Page(ctx context.Context, data *rpc.Ref[[]byte]) (int64, error)
	Back(ctx context.Context, data *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error)
	Onward(ctx context.Context, data *rpc.Ref[[]byte], left int32) (int64, error)
}

// patternsOf is the service of a stage of a chain, which itself has the ways to use a value.
func patternsOf(stage int) string { return fmt.Sprintf("Patterns%d", stage) }

// open makes a client of a stage.
func (k bifrostKind) open(node *rpc.Node, stage int) patterns {
	name, policy := k.service(patternsOf(stage)), rpc.WithPolicy(k.policy)
	switch k.patterns {
	case "value":
		return marked.OpenByValue(node, name, policy)
	case "region":
		return marked.OpenByRegion(node, name, policy)
	}
	return marked.OpenChosen(node, name, policy)
}

// servePatterns is the processor of a stage.
func (k bifrostKind) servePatterns(node *rpc.Node, stage int) thrift.TProcessor {
	h := patternsHandler{k.open(node, stage+1)}
	switch k.patterns {
	case "value":
		return marked.NewByValueRefProcessor(h)
	case "region":
		return marked.NewByRegionRefProcessor(h)
	}
	return marked.NewChosenRefProcessor(h)
}

// patternsHandler is a stage.
type patternsHandler struct{ next patterns }

// Whole reads all.
func (patternsHandler) Whole(ctx context.Context, data *rpc.Ref[[]byte]) (int64, error) {
	b, err := data.Load(ctx)
	if err != nil {
		return 0, err
	}
	return ends(b), nil
}

// Page reads the last page.
func (patternsHandler) Page(ctx context.Context, data *rpc.Ref[[]byte]) (int64, error) {
	place, err := data.Place(ctx)
	if err != nil {
		return 0, err
	}
	b := make([]byte, min(place.Size(), pageSize))
	if err := place.Read(ctx, place.Size()-int64(len(b)), b); err != nil {
		return 0, err
	}
	return ends(b), nil
}

// Back returns what it has been lent.
func (patternsHandler) Back(_ context.Context, data *rpc.Ref[[]byte]) (*rpc.Ref[[]byte], error) {
	return data, nil
}

// Onward passes it on.
func (h patternsHandler) Onward(ctx context.Context, data *rpc.Ref[[]byte], left int32) (int64, error) {
	if left > 0 {
		return h.next.Onward(ctx, data, left-1)
	}
	return h.Whole(ctx, data)
}

// ends is enough to notice a value that is cut or shifted, and costs nothing.
func ends(b []byte) int64 {
	if len(b) == 0 {
		return 0
	}
	return int64(b[0])<<8 | int64(b[len(b)-1])
}

// use makes the operations of the ways to use a value.
func (c bifrostClient) use(w Work) Operation {
	calls, data := c.kind.open(c.Node, 1), pattern(w.Size, 1)
	page := data[max(0, len(data)-pageSize):]
	return func(ctx context.Context, k *Clock) error {
		arg := rpc.RefOf(data)
		var got, want int64
		var err error
		switch w.Op {
		case Whole:
			want = ends(data)
			got, err = calls.Whole(ctx, arg)
		case Page:
			want = ends(page)
			got, err = calls.Page(ctx, arg)
		case Onward:
			want = ends(data)
			got, err = calls.Onward(ctx, arg, int32(w.Hops)) //nolint:gosec // checked
		case Back:
			var back *rpc.Ref[[]byte]
			var b []byte
			if back, err = calls.Back(ctx, arg); err == nil {
				b, err = back.Take(ctx)
			}
			want, got = ends(data), ends(b)
		}
		if freed := arg.Free(ctx); err == nil {
			err = freed
		}
		if err == nil && got != want {
			err = errWrong
		}
		return err
	}
}

// postsName is the service that has lists of posts.
const postsName = "Posts"

type postsHandler struct{}

// Latest makes a list of posts.
func (postsHandler) Latest(_ context.Context, count, size int32) (*rpc.Ref[[]*marked.Post], error) {
	posts := make([]*marked.Post, count)
	for i := range posts {
		posts[i] = &marked.Post{ID: int64(i), Author: "somebody", Text: pattern(int(size), byte(i))}
	}
	return rpc.NewRef(postsType, posts), nil
}

var postsType = form.List[[]*marked.Post](form.Struct(marked.NewPost))

// posts makes the operations with lists of posts: by value it is fetched each time, by reference once.
func (c bifrostClient) posts(ctx context.Context, w Work) (Operation, func(), error) {
	service, size := c.kind.service(postsName), int32(w.Size) //nolint:gosec // checked
	if w.Op == Posts {
		client := marked.NewPostsClient(c.Client(service, rpc.WithPolicy(c.kind.policy)))
		return func(ctx context.Context, _ *Clock) error {
			list, err := client.Latest(ctx, PostCount, size)
			if err == nil && (len(list) != PostCount || len(list[PostCount-1].Text) != w.Size) {
				err = errWrong
			}
			return err
		}, func() {}, nil
	}
	list, err := marked.OpenPosts(c.Node, service, rpc.WithPolicy(c.kind.policy)).Latest(ctx, PostCount, size)
	if err != nil {
		return nil, nil, err
	}
	free := func() { _ = list.Free(context.WithoutCancel(ctx)) }
	posts, err := rpc.Elements(ctx, list)
	if err != nil {
		free()
		return nil, nil, err
	}
	n := 0
	return func(ctx context.Context, _ *Clock) error {
		n = (n + 37) % PostCount
		p, err := posts.At(ctx, n)
		if err == nil && (p.ID != int64(n) || len(p.Text) != w.Size) {
			err = errWrong
		}
		return err
	}, free, nil
}
