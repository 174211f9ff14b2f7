// Package timeline serves a feed, and reads pages of it.
//
//	service:  posts ──one after the other──▶ list in memory ──reference──▶ client
//	client:   index, then the fields of ten posts that it shows: a few KiB of megabytes
package timeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/bifrost-rack/bifrost/examples/feed/gen-go/feed"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// Service is a feed of posts that are made up. Its method may be called concurrently.
type Service struct {
	Node    *rpc.Node
	Posts   int // how many there are
	Picture int // bytes of the picture of each
}

var _ feed.FeedRefHandler = (*Service)(nil)

var post = form.Struct(feed.NewPost)

// Timeline writes the list as its posts come: there is never more than one of them, and some of the list's end, in the
// service's own memory.
func (s *Service) Timeline(ctx context.Context) (*rpc.Ref[[]*feed.Post], error) {
	list := rpc.NewRef(form.List[[]*feed.Post](post), nil)
	w, err := list.Writer(ctx, s.Node)
	if err != nil {
		return nil, err
	}
	for n := s.Posts; n > 0; n-- {
		if err := form.Append(w, post, s.post(n)); err != nil {
			return nil, errors.Join(err, list.Free(ctx)) // of what is half written
		}
	}
	if err := w.Close(); err != nil {
		return nil, errors.Join(err, list.Free(ctx))
	}
	return list, nil
}

func (s *Service) post(n int) *feed.Post {
	return &feed.Post{
		Number: int64(n), Author: fmt.Sprintf("user %d", n%7), Text: fmt.Sprintf("This is post %d.", n),
		Picture: bytes.Repeat([]byte{byte(n)}, s.Picture),
	}
}

// Line is what a reader shows of a post.
type Line struct {
	Number       int64
	Author, Text string
}

// Page reads count posts of a timeline, or fewer if it ends, from the from-th on, without their
// pictures. It returns how many posts the timeline has, too.
func Page(ctx context.Context, list *rpc.Ref[[]*feed.Post], from, count int) (lines []Line, all int, err error) {
	posts, err := rpc.Elements(ctx, list)
	if err != nil {
		return nil, 0, err
	}
	from = min(from, posts.Len())
	page, err := posts.Slice(from, min(from+count, posts.Len()))
	if err != nil {
		return nil, 0, err
	}
	for i := range page.Len() {
		line, err := show(ctx, page, i)
		if err != nil {
			return nil, 0, err
		}
		lines = append(lines, line)
	}
	return lines, posts.Len(), nil
}

// show reads three fields of a post; its picture is not moved.
func show(ctx context.Context, page form.Array[*feed.Post], i int) (l Line, err error) {
	place, err := page.Place(ctx, i)
	if err != nil {
		return l, err
	}
	p, err := feed.PostFieldsOf(ctx, place)
	if err != nil {
		return l, err
	}
	if l.Number, _, err = p.Number(ctx); err != nil {
		return l, err
	}
	if l.Author, _, err = p.Author(ctx); err != nil {
		return l, err
	}
	l.Text, _, err = p.Text(ctx)
	return l, err
}
