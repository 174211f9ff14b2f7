// Package words is the wordcount example: the two services, and the job that uses
// them.
//
//	            ┌─ part ─▶ Mapper ─▶ counts ─┐
//	file ─ job ─┤                            ├─▶ Reducer ─▶ counts ─┬─▶ Reducer ─▶ total
//	            └─ part ─▶ Mapper ─▶ counts ─┘               total ─┘
//
// Everything behind an arrow stands on a memory blade and is passed by reference. A Corpus is shared: it stands there once, for all who read it.
package words

import (
	"bytes"
	"context"
	"fmt"
	"unicode"

	"github.com/bifrost-rack/bifrost/examples/wordcount/gen-go/wordcount"
	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
)

// The names that the services are exported as.
const (
	MapperName  = "Mapper"
	ReducerName = "Reducer"
)

// Serve exports a service, by its name, on a node.
func Serve(ctx context.Context, node *rpc.Node, name string) error {
	switch name {
	case MapperName:
		return wordcount.ExportMapper(ctx, node, name, Mapper{})
	case ReducerName:
		return wordcount.ExportReducer(ctx, node, name, Reducer{})
	}
	return fmt.Errorf("no service %q: there are %s and %s", name, MapperName, ReducerName)
}

// Mapper implements the service. It keeps nothing between calls.
type Mapper struct{}

// Count implements the service.
func (Mapper) Count(ctx context.Context, text *rpc.Ref[[]byte]) (*rpc.Ref[*wordcount.Counts], error) {
	b, err := text.Load(ctx)
	if err != nil {
		return nil, err
	}
	return rpc.NewRef(form.Struct(wordcount.NewCounts), &wordcount.Counts{Words: count(b)}), nil
}

// Reducer implements the service. It keeps nothing between calls.
type Reducer struct{}

// Merge implements the service.
func (Reducer) Merge(ctx context.Context, a, b *rpc.Ref[*wordcount.Counts]) (*rpc.Ref[*wordcount.Counts], error) {
	x, err := a.Load(ctx)
	if err != nil {
		return nil, err
	}
	y, err := b.Load(ctx)
	if err != nil {
		return nil, err
	}
	sum := make(map[string]int64, max(len(x.Words), len(y.Words)))
	for _, words := range []map[string]int64{x.Words, y.Words} {
		for w, n := range words {
			sum[w] += n
		}
	}
	return rpc.NewRef(form.Struct(wordcount.NewCounts), &wordcount.Counts{Words: sum}), nil
}

// count counts words: letters and digits in a row, without regard to case.
func count(text []byte) map[string]int64 {
	words := map[string]int64{}
	for _, w := range bytes.FieldsFunc(text, func(r rune) bool { return !inWord(r) }) {
		words[string(bytes.ToLower(w))]++
	}
	return words
}

func inWord(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }
