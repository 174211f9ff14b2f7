package words

import (
	"context"

	"github.com/apache/thrift/lib/go/thrift"

	"github.com/bifrost-rack/bifrost/examples/wordcount/gen-go/wordcount"
	"github.com/bifrost-rack/bifrost/rpc"
)

// Job counts the words of files. It is a durable main: when its program dies and is
// started again, it goes on from its last checkpoint, and what it had begun since
// then is not done twice. The files must not change meanwhile.
type Job struct {
	// Name tells jobs of a rack apart.
	Name string
	// Files are paths that lead to the same texts wherever the job runs.
	Files []string
	// Part is how many bytes of text a call gets; Parallel how many are made at a
	// time, and between two checkpoints.
	Part, Parallel int
	// Deliver gets the counts when all are there. After a crash at the very end it is
	// called once more, so it should do no harm twice.
	Deliver func(total map[string]int64) error

	mapper  *wordcount.MapperRefClient
	reducer *wordcount.ReducerRefClient
	at      wordcount.Progress
}

// Run runs the job on a node. If it is over already, which a program that died at the
// very end does not know, it returns at once.
func (j *Job) Run(ctx context.Context, node *rpc.Node) error {
	j.mapper, j.reducer = wordcount.OpenMapper(node, MapperName), wordcount.OpenReducer(node, ReducerName)
	return rpc.Main(ctx, node, j.Name, j.main)
}

// main is what is run again after a crash, with the last checkpoint's state.
func (j *Job) main(ctx context.Context, state []byte) error {
	if err := j.resume(ctx, state); err != nil {
		return err
	}
	in := reader{files: j.Files, file: int(j.at.File), offset: j.at.Offset, part: j.Part}
	for {
		parts, err := in.next(j.Parallel)
		if err != nil {
			return err
		}
		if len(parts) == 0 {
			return j.Deliver(j.at.Total.Words)
		}
		if err := j.add(ctx, parts); err != nil {
			return err
		}
		j.at.File, j.at.Offset = int32(in.file), in.offset
		if err := j.checkpoint(ctx); err != nil {
			return err
		}
	}
}

// add counts parts of the text, all at the same time, and adds up what comes out.
func (j *Job) add(ctx context.Context, parts [][]byte) error {
	counts := make([]*rpc.Ref[*wordcount.Counts], len(parts))
	err := each(ctx, len(parts), func(ctx context.Context, i int) (err error) {
		text := rpc.RefOf(parts[i])
		if counts[i], err = j.mapper.Count(ctx, text); err != nil {
			return err
		}
		return text.Free(ctx)
	})
	for err == nil && len(counts) > 1 {
		counts, err = j.halve(ctx, counts)
	}
	if err != nil {
		return err
	}
	sum, err := counts[0].Take(ctx)
	if err != nil {
		return err
	}
	for w, n := range sum.Words {
		j.at.Total.Words[w] += n
	}
	return nil
}

// halve merges counts, two by two. An odd one stays as it is.
func (j *Job) halve(ctx context.Context, counts []*rpc.Ref[*wordcount.Counts]) ([]*rpc.Ref[*wordcount.Counts], error) {
	merged := make([]*rpc.Ref[*wordcount.Counts], (len(counts)+1)/2)
	err := each(ctx, len(merged), func(ctx context.Context, i int) (err error) {
		if 2*i+1 == len(counts) {
			merged[i] = counts[2*i]
			return nil
		}
		a, b := counts[2*i], counts[2*i+1]
		if merged[i], err = j.reducer.Merge(ctx, a, b); err != nil {
			return err
		}
		if err := a.Free(ctx); err != nil {
			return err
		}
		return b.Free(ctx)
	})
	return merged, err
}

// each runs f in branches, for they are what an exactly-once execution may do at
// the same time, and returns the first error in their order.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) (err error) {
	branches := make([]*rpc.Branch, n)
	for i := range branches {
		branches[i] = rpc.Go(ctx, func(ctx context.Context) error { return f(ctx, i) })
	}
	for _, b := range branches {
		if berr := b.Wait(); err == nil {
			err = berr
		}
	}
	return err
}

// checkpoint makes what is done so far what the job goes on from.
func (j *Job) checkpoint(ctx context.Context) error {
	state, err := thrift.NewTSerializer().Write(ctx, &j.at)
	if err != nil {
		return err
	}
	return rpc.Checkpoint(ctx, state)
}

// resume goes on from a checkpoint's state; nil is the beginning.
func (j *Job) resume(ctx context.Context, state []byte) error {
	j.at = wordcount.Progress{Total: &wordcount.Counts{Words: map[string]int64{}}}
	if state == nil {
		return nil
	}
	return thrift.NewTDeserializer().Read(ctx, &j.at, state)
}
