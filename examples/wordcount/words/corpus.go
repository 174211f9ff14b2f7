package words

import (
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/bifrost-rack/bifrost/examples/wordcount/gen-go/wordcount"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// CorpusName is the name that the corpus is exported as.
const CorpusName = "Corpus"

// Corpus implements the service: texts that stand in distributed memory once. Each node that asks gets a standing lease of each, by which it reads
// when it likes:
//
//	corpus ── Share ──▶ lease ── open ──▶ reader ── read, read, … ──▶ memory
type Corpus struct {
	node  *rpc.Node
	texts []*rpc.Ref[[]byte]
	mu    sync.Mutex
	given map[opened]*bifrost.Lease
}

// opened is what a reader has a lease of.
type opened struct {
	reader netip.Addr
	text   int32
}

// ServeCorpus exports texts on a node.
func ServeCorpus(ctx context.Context, node *rpc.Node, texts [][]byte) (*Corpus, error) {
	c := &Corpus{node: node, given: map[opened]*bifrost.Lease{}}
	for _, text := range texts {
		c.texts = append(c.texts, rpc.RefOf(text))
	}
	return c, wordcount.ExportCorpus(ctx, node, CorpusName, c)
}

// Size implements the service.
func (c *Corpus) Size(context.Context) (int32, error) {
	return int32(len(c.texts)), nil //nolint:gosec // few
}

// Open implements the service. A reader that asks again gets the same lease.
func (c *Corpus) Open(ctx context.Context, text int32) (*bifrost.Lease, error) {
	if text < 0 || int(text) >= len(c.texts) {
		return nil, fmt.Errorf("text %d: there are %d", text, len(c.texts))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	who := opened{rpc.CallerAddress(ctx), text}
	if l := c.given[who]; l != nil {
		return l, nil
	}
	l, err := c.texts[text].Share(ctx, c.node, who.reader)
	if err == nil {
		c.given[who] = l
	}
	return l, err
}

// Close takes all leases back, and frees the texts.
func (c *Corpus) Close(ctx context.Context) error {
	for _, text := range c.texts {
		if err := text.Unshare(ctx); err != nil {
			return err
		}
		if err := text.Free(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Texts are those of a corpus, as a reader has them.
type Texts []*rpc.Ref[[]byte]

// OpenTexts opens all texts of the corpus for a node.
func OpenTexts(ctx context.Context, node *rpc.Node) (all Texts, err error) {
	corpus := wordcount.OpenCorpus(node, CorpusName)
	size, err := corpus.Size(ctx)
	for i := int32(0); err == nil && i < size; i++ {
		var l *bifrost.Lease
		if l, err = corpus.Open(ctx, i); err == nil {
			text := rpc.RefOf[[]byte](nil)
			err = text.Borrow(node, l)
			all = append(all, text)
		}
	}
	return all, err
}

// Count counts how often each word occurs in them. No text goes to another node for that, or through a call.
func (t Texts) Count(ctx context.Context) (map[string]int64, error) {
	total := map[string]int64{}
	for _, text := range t {
		b, err := text.Load(ctx)
		if err != nil {
			return nil, err
		}
		for w, n := range count(b) {
			total[w] += n
		}
	}
	return total, nil
}
