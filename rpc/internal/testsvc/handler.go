package testsvc

import (
	"context"
	"errors"
	"sync"

	"github.com/bifrost-rack/bifrost/rpc/idl/bifrost"
)

// Handler implements Test. Methods may be called concurrently.
type Handler struct {
	// Gate, if set, is called first by count, with its argument.
	Gate func(ctx context.Context, number int64) error
	// Next calls the service again, for nest.
	Next func(ctx context.Context, depth int64) (int64, error)

	mu     sync.Mutex
	counts map[int64]int64
	notes  map[int64]int
}

var _ Test = (*Handler)(nil)

// Ping does nothing.
func (h *Handler) Ping(context.Context) error { return nil }

// Echo returns its argument.
func (h *Handler) Echo(_ context.Context, thing *Everything) (*Everything, error) { return thing, nil }

// Blob returns its argument.
func (h *Handler) Blob(_ context.Context, raw []byte) ([]byte, error) { return raw, nil }

// Add adds.
func (h *Handler) Add(_ context.Context, a, b int64) (int64, error) { return a + b, nil }

// Evidence is what Greet gives. Its node has to own it.
func Evidence() *bifrost.GlobalPointer {
	return &bifrost.GlobalPointer{Address: []byte{4: 16, 5: 1, 12: 64, 15: 0}}
}

// Greet greets; it refuses nobody's name and gives evidence for "other".
func (h *Handler) Greet(_ context.Context, name string, titles []string) (string, error) {
	switch name {
	case "":
		return "", &Refused{Why: "no name", Number: 7}
	case "other":
		return "", &Other{Evidence: Evidence()}
	}
	s := "hello"
	for _, t := range titles {
		s += " " + t
	}
	return s + " " + name, nil
}

// Check refuses negative numbers.
func (h *Handler) Check(_ context.Context, number int32) error {
	if number < 0 {
		return &Refused{Why: "negative", Number: number}
	}
	return nil
}

// ErrFail is what Fail fails with.
var ErrFail = errors.New("undeclared")

// Fail fails with an undeclared error, or panics.
func (h *Handler) Fail(ctx context.Context, how string) error {
	switch how {
	case "panic":
		panic("as asked")
	case "wait":
		<-ctx.Done()
		return ctx.Err()
	}
	return ErrFail
}

// Note notes that it was run for a number.
func (h *Handler) Note(_ context.Context, number int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.notes == nil {
		h.notes = make(map[int64]int)
	}
	h.notes[number]++
	return nil
}

// Notes tells how often each number was noted.
func (h *Handler) Notes() map[int64]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	notes := make(map[int64]int)
	for k, v := range h.notes {
		notes[k] = v
	}
	return notes
}

// Count counts how often it has been run for a number.
func (h *Handler) Count(ctx context.Context, number int64) (int64, error) {
	h.mu.Lock()
	if h.counts == nil {
		h.counts = make(map[int64]int64)
	}
	h.counts[number]++
	n := h.counts[number]
	h.mu.Unlock()
	if h.Gate != nil {
		if err := h.Gate(ctx, number); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// Counts tells how often each number was counted.
func (h *Handler) Counts() map[int64]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	counts := make(map[int64]int64)
	for k, v := range h.counts {
		counts[k] = v
	}
	return counts
}

// Swap returns its argument.
func (h *Handler) Swap(_ context.Context, p *bifrost.GlobalPointer) (*bifrost.GlobalPointer, error) {
	return p, nil
}

// Plant returns its argument.
func (h *Handler) Plant(_ context.Context, tree *Tree) (*Tree, error) { return tree, nil }

// Give notes that it was run, for number -1.
func (h *Handler) Give(ctx context.Context, _ *bifrost.GlobalPointer) error { return h.Note(ctx, -1) }

// Nest calls Next until depth is 0, and returns how deep it was.
func (h *Handler) Nest(ctx context.Context, depth int64) (int64, error) {
	if depth == 0 {
		return 0, nil
	}
	below, err := h.Next(ctx, depth-1)
	return below + 1, err
}

// MethodWithAVeryLongName returns its argument.
func (h *Handler) MethodWithAVeryLongName(_ context.Context, text string) (string, error) {
	return text, nil
}
