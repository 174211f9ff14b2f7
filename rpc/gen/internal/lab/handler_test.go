package lab_test

import (
	"bytes"
	"context"
	"fmt"
	"math"
	"slices"
	"sync/atomic"

	"github.com/bifrost-rack/bifrost/rpc"
	"github.com/bifrost-rack/bifrost/rpc/form"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/labtest/lab"
	"github.com/bifrost-rack/bifrost/rpc/gen/internal/lab/gen-go/shared"
)

// handler is the laboratory, for Bifröst and for plain Thrift.
type handler struct {
	kept     *rpc.Ref[[]byte] // the last argument of burn, beyond its call
	archived chan string
	noted    atomic.Int64
	again    lab.LabRefHandler // asked by show "nested"
}

var _ lab.LabRefHandler = (*handler)(nil)

func newHandler() *handler { return &handler{archived: make(chan string, 1)} }

func (h *handler) Count(ctx context.Context, film *rpc.Ref[[]byte]) (int64, error) {
	b, err := film.Load(ctx)
	return int64(len(b)), err
}

func (h *handler) Label(_ context.Context, text string) (string, error) { return "<" + text + ">", nil }

// Develop inverts the film; a zero byte is a corruption.
func (h *handler) Develop(ctx context.Context, raw *rpc.Ref[[]byte], contrast int32) (*rpc.Ref[[]byte], error) {
	b, err := raw.Load(ctx)
	if err != nil {
		return nil, err
	}
	if i := bytes.IndexByte(b, 0); i >= 0 {
		return nil, &lab.Corrupt{Offset: int64(i)}
	}
	switch contrast {
	case -1:
		return raw, nil // what was lent
	case -2:
		return nil, &shared.Broken{Why: "contrast"}
	case -3:
		return nil, rpc.Errorf(rpc.NotFound, "no such contrast")
	case -4:
		return nil, fmt.Errorf("undeclared")
	case -5:
		return nil, nil
	}
	return rpc.RefOf(inverted(b)), nil
}

func inverted(b []byte) []byte {
	out := make([]byte, len(b))
	for i := range b {
		out[i] = ^b[i]
	}
	return out
}

// Mix adds up what it can find.
func (h *handler) Mix(ctx context.Context, film *rpc.Ref[[]byte], a *rpc.Ref[[]int8], b *rpc.Ref[[]int16], c *rpc.Ref[[]int32],
	d *rpc.Ref[[]int64], e *rpc.Ref[[]float64], sheet *rpc.Ref[*lab.Print], frame *rpc.Ref[*shared.Frame], medium *rpc.Ref[*lab.Medium],
	user lab.UserID, prints map[lab.Colour][]*lab.Print, set []string,
) (int64, error) {
	bytes, err := film.Load(ctx)
	if err != nil {
		return 0, err
	}
	sum := int64(len(bytes)) + int64(user) + int64(len(prints[lab.Colour_GREEN])) + int64(len(set))
	for _, add := range []func() (int64, error){
		func() (int64, error) { return total(ctx, a) }, func() (int64, error) { return total(ctx, b) },
		func() (int64, error) { return total(ctx, c) }, func() (int64, error) { return total(ctx, d) },
		func() (int64, error) { return total(ctx, e) },
	} {
		n, err := add()
		if err != nil {
			return 0, err
		}
		sum += n
	}
	s, err := sheet.Load(ctx)
	if err != nil {
		return 0, err
	}
	f, err := frame.Load(ctx)
	if err != nil {
		return 0, err
	}
	m, err := medium.Load(ctx)
	if err != nil {
		return 0, err
	}
	return sum + int64(len(s.Title)) + int64(f.Width) + int64(len(m.Film)), nil
}

func total[E int8 | int16 | int32 | int64 | float64](ctx context.Context, r *rpc.Ref[[]E]) (int64, error) {
	list, err := r.Load(ctx)
	var sum int64
	for _, v := range list {
		sum += int64(v)
	}
	return sum, err
}

func (h *handler) Histogram(ctx context.Context, raw *rpc.Ref[[]byte]) (*rpc.Ref[[]int32], error) {
	b, err := raw.Load(ctx)
	if err != nil {
		return nil, err
	}
	counts := make([]int32, 256)
	for _, v := range b {
		counts[v]++
	}
	return rpc.RefOf(counts), nil
}

func (h *handler) Show(_ context.Context, title string) (*rpc.Ref[*lab.Print], error) {
	p := lab.NewPrint()
	p.Colour, p.Frame = lab.Colour_GREEN, &shared.Frame{Width: 3, Height: 4, Planes: [][]byte{{1}, {2, 3}}}
	if title != "" {
		p.Title = title
	}
	return rpc.NewRef(form.Struct(lab.NewPrint), p), nil
}

// ScaleFrame passes its argument on, and returns what came back as it is.
func (h *handler) ScaleFrame(ctx context.Context, frame *rpc.Ref[*shared.Frame], by float64) (*rpc.Ref[*shared.Frame], error) {
	if h.again != nil && by > 1 {
		return h.again.ScaleFrame(ctx, frame, math.Sqrt(by))
	}
	f, err := frame.Load(ctx)
	if err != nil {
		return nil, err
	}
	return rpc.NewRef(form.Struct(shared.NewFrame), &shared.Frame{Width: int32(float64(f.Width) * by), Height: int32(float64(f.Height) * by), Planes: f.Planes}), nil
}

func (h *handler) NewCurve_(_ context.Context, points int32) (*rpc.Ref[[]float64], error) {
	curve := make([]float64, points)
	for i := range curve {
		curve[i] = float64(i) / 2
	}
	return rpc.RefOf(curve), nil
}

func (h *handler) Colour(ctx context.Context, sheet *rpc.Ref[*lab.Print]) (lab.Colour, error) {
	p, err := sheet.Load(ctx)
	if err != nil {
		return 0, err
	}
	return p.Colour, nil
}

// Burn keeps its argument, which it must not.
func (h *handler) Burn(ctx context.Context, raw *rpc.Ref[[]byte]) error {
	h.kept = raw
	if b, err := raw.Load(ctx); err != nil || len(b) == 1 {
		return &lab.Corrupt{Offset: 1}
	}
	return nil
}

func (h *handler) Archive(ctx context.Context, raw *rpc.Ref[[]byte], name string) error {
	b, err := raw.Load(ctx)
	h.archived <- fmt.Sprintf("%s %s %v", name, b, err)
	return err
}

func (h *handler) Greet(_ context.Context, name string, picture *shared.Frame) (string, error) {
	return fmt.Sprint("hello ", name, picture.GetWidth()), nil
}

func (h *handler) Note(_ context.Context, number int64) error {
	h.noted.Store(number)
	return nil
}

func (h *handler) Plain(_ context.Context, curve lab.Curve, film lab.Film, _ bool, id int8) ([]map[lab.UserID][]lab.Colour, error) {
	return []map[lab.UserID][]lab.Colour{{lab.UserID(len(curve) + len(film)): {lab.Colour(id)}}}, nil
}

// Album reads its arguments in place, and writes its result as it goes.
func (h *handler) Album(ctx context.Context, prints *rpc.Ref[[]*lab.Print], colours *rpc.Ref[[]lab.Colour]) (*rpc.Ref[map[string][]*lab.Print], error) {
	wanted, err := colours.Load(ctx)
	if err != nil {
		return nil, err
	}
	list, err := rpc.Elements(ctx, prints)
	if err != nil {
		return nil, err
	}
	album := map[string][]*lab.Print{}
	for p, err := range list.All(ctx) {
		if err != nil {
			return nil, err
		}
		if slices.Contains(wanted, p.Colour) {
			album[p.Title] = append(album[p.Title], p)
		}
	}
	return rpc.NewRef(albumType, album), nil
}

var (
	printsType = form.List[[]*lab.Print](form.Struct(lab.NewPrint))
	albumType  = form.Map[map[string][]*lab.Print](form.String[string](), printsType)
)
